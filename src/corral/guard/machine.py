"""The guard's one window on the machine: working directory, root, home, and how a path resolves. Everything else it judges is text."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.policy.config import SandboxConfig

    Shown = tuple[tuple[str, str], ...]  # what a command sees at a path and where it lies, the longest paths first

MAX_GLOB_MATCHES = 64  # against a directory of a million files
MAX_LINKS = 40  # as the kernel's, against links in a circle
TEMPORARY = "/tmp"  # noqa: S108  what commands call it, wherever it lies


def kernel_realpath(path: str) -> str:
    """Return what `os.path.realpath` returns, from the kernel where it knows: half the time for /usr/bin/true."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path)
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        found = ""
    finally:
        os.close(descriptor)
    # What has no path has another text there: a pipe, a file that was deleted, a mount that is not in sight.
    if found.startswith("/") and not found.endswith(" (deleted)"):
        return found
    return os.path.realpath(path)


def host_path(path: str, shown: Shown) -> str:
    """Return where something lies that a command sees at a path."""
    for seen, real in shown:
        if path == seen or path.startswith(f"{seen}/"):
            return real + path[len(seen) :]
    return path


def resolve_in_sandbox(path: str, shown: Shown) -> str:
    """Return where an absolute path leads for a command, through every link; what does not exist keeps its name."""
    at = ""
    links = 0
    pending = path.split("/")[::-1]
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = at.rpartition("/")[0]
            continue
        inner = f"{at}/{part}"
        try:
            text = os.readlink(host_path(inner, shown)) if links < MAX_LINKS else ""
        except OSError:
            text = ""
        if text:
            links += 1
            at = "" if text.startswith("/") else at
            pending += text.split("/")[::-1]
        else:
            at = inner
    return at or "/"


class Machine:
    """What the guard may ask: nothing here changes anything, and nothing raises."""

    __slots__ = ("_prefix", "cwd", "home", "path", "readable", "root", "shown", "writable")

    def __init__(self, root: str, cwd: str | None = None, home: str | None = None, path: tuple[str, ...] = ()) -> None:
        self.root = root
        self._prefix = root + "/"
        self.cwd = cwd or root
        self.home = home or "/nonexistent"
        self.path = path  # the directories of PATH that lie inside the root, where a name can be anything
        self.readable: tuple[str, ...] = ()  # what the owner grants besides the project
        self.writable: tuple[str, ...] = ()
        self.shown: Shown = ()  # where the commands' own temporary directory lies, and what lies in it as it is

    @classmethod
    def of(cls, config: SandboxConfig, temporary: str = "") -> Machine:
        """Look at this machine as a config sees it, and as a command does whose temporary directory lies elsewhere."""
        root = config.project_root
        home = os.environ.get("HOME") or "/nonexistent"
        inside = tuple(d for d in os.environ.get("PATH", "").split(":") if d == root or d.startswith(root + "/"))
        machine = cls(root, None, os.path.normpath(home), inside)
        containment = config.containment
        if containment.read or containment.write:
            machine.writable = tuple(os.path.realpath(p) for p in containment.write)
            machine.readable = (*machine.writable, *(os.path.realpath(p) for p in containment.read))
        if temporary:
            kept = [path for path in (root, *machine.readable) if path.startswith(f"{TEMPORARY}/")]
            machine.shown = (*((path, path) for path in sorted(kept, key=len, reverse=True)), (TEMPORARY, temporary))
        return machine

    def granted(self, verb: str, path: str) -> bool:
        """Say whether the owner granted this use of a path outside the project."""
        roots = self.readable if verb in ("reads", "runs") else self.writable
        return any(path == root or path.startswith(root + "/") for root in roots)

    def absolute(self, path: str, cwd: str) -> str:
        """Return a path as an absolute one, without looking at the disk."""
        return os.path.normpath(path if path.startswith("/") else f"{cwd}/{path}")

    def resolve(self, path: str, cwd: str) -> str:
        """Return where a path leads, through every link; what does not exist keeps its name."""
        if not path.startswith("/"):
            path = f"{cwd}/{path}"
        try:
            return self._resolve(path)
        except (ValueError, OSError):  # a name that no file can have
            return os.path.normpath(path)

    def _real_path(self, path: str) -> str:
        if self.shown and path.startswith(f"{TEMPORARY}/"):
            return resolve_in_sandbox(path, self.shown)
        found = kernel_realpath(path)
        if self.shown and found.startswith(f"{TEMPORARY}/") and not found.startswith(self._prefix):
            return resolve_in_sandbox(path, self.shown)
        return found

    def _resolve(self, path: str) -> str:
        if "/../" in path or path.endswith("/..") or "\0" in path:
            return self._real_path(path.replace("\0", ""))
        if not path.startswith(self._prefix):
            if path == self.root:
                return path
            return self._real_path(path)
        # The root is resolved already: only what lies below it can be a link.
        at = self.root
        for part in path[len(self._prefix) :].split("/"):
            if part in ("", "."):
                continue
            at = f"{at}/{part}"
            try:
                mode = os.lstat(at).st_mode
            except FileNotFoundError:
                return os.path.normpath(path)
            if stat.S_ISLNK(mode):
                return self._real_path(path)
        return at

    def exists(self, path: str, cwd: str) -> bool:
        """Say whether anything has this name."""
        try:
            return os.path.lexists(host_path(path if path.startswith("/") else f"{cwd}/{path}", self.shown))
        except (ValueError, OSError):
            return False

    def is_directory(self, path: str) -> bool:
        """Say whether a path is a directory."""
        try:
            return os.path.isdir(host_path(path, self.shown))
        except (ValueError, OSError):
            return False

    def is_unpushed(self, cwd: str, depth: str) -> bool:
        """Say whether no remote has the newest commits of the repository at a directory, as many as `depth` says."""
        from corral.guard.unpushed_commits import is_unpushed  # noqa: PLC0415  only for a command that would replace commits

        return is_unpushed(host_path(cwd, self.shown), host_path(self.root, self.shown), int(depth))

    def matches(self, pattern: str, cwd: str) -> list[str]:
        """Return what a glob matches now, links first of all; at most MAX_GLOB_MATCHES."""
        directory, _, tail = (pattern if pattern.startswith("/") else f"{cwd}/{pattern}").rpartition("/")
        if any(c in directory for c in "*?["):
            return []
        found: list[str] = []
        try:
            with os.scandir(host_path(directory, self.shown) or "/") as entries:
                for entry in entries:
                    if entry.is_symlink() and _fits(entry.name, tail):
                        found.append(f"{directory}/{entry.name}")
                        if len(found) >= MAX_GLOB_MATCHES:
                            break
        except (ValueError, OSError):
            return []
        return found


class RecordingMachine(Machine):
    """A machine that notes what it was asked and what it answered."""

    __slots__ = ("answers",)

    def __init__(self, machine: Machine) -> None:
        for name in Machine.__slots__:
            setattr(self, name, getattr(machine, name))
        self.answers: dict[tuple[Callable[..., object], tuple[str, ...]], object] = {}

    def resolve(self, path: str, cwd: str) -> str:
        """Return where a path leads."""
        answer = Machine.resolve(self, path, cwd)
        self.answers[Machine.resolve, (path, cwd)] = answer
        return answer

    def exists(self, path: str, cwd: str) -> bool:
        """Say whether anything has this name."""
        answer = Machine.exists(self, path, cwd)
        self.answers[Machine.exists, (path, cwd)] = answer
        return answer

    def is_directory(self, path: str) -> bool:
        """Say whether a path is a directory."""
        answer = Machine.is_directory(self, path)
        self.answers[Machine.is_directory, (path,)] = answer
        return answer

    def is_unpushed(self, cwd: str, depth: str) -> bool:
        """Say whether no remote has the newest commits."""
        answer = Machine.is_unpushed(self, cwd, depth)
        self.answers[Machine.is_unpushed, (cwd, depth)] = answer
        return answer

    def matches(self, pattern: str, cwd: str) -> list[str]:
        """Return what a glob matches now."""
        answer = Machine.matches(self, pattern, cwd)
        self.answers[Machine.matches, (pattern, cwd)] = answer
        return answer


def _fits(name: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase  # noqa: PLC0415  only where a directory holds links

    return fnmatchcase(name, pattern)
