"""Answers the guard's questions about this machine: project root, home directory, and how a path resolves. The rest of the guard is pure text."""

from __future__ import annotations

import os
import stat
from time import thread_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from corral.guard.git_remotes import Remotes
    from corral.policy.config import SandboxConfig

    Answer = TypeVar("Answer")
    Shown = tuple[tuple[str, str], ...]  # (path in the sandbox, path on the host), the longest paths first

MAX_GLOB_MATCHES = 64  # against a directory of a million files
MAX_PATH = 4096  # bytes, the kernel's own limit, against a look at the disk for each of a hundred thousand components
MAX_LINKS = 40  # the kernel's own limit, against links in a circle
TEMPORARY = "/tmp"  # noqa: S108  its path in the sandbox


def kernel_realpath(path: str) -> str:
    """Return the same as `os.path.realpath`, but ask the kernel first. That takes half the time for /usr/bin/true."""
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
    # A pipe, a deleted file and a mount outside this namespace have other text here than a path.
    if found.startswith("/") and not found.endswith(" (deleted)"):
        return found
    return os.path.realpath(path)


def host_path(path: str, path_map: Shown) -> str:
    """Return the host path of a path in the sandbox."""
    for inner, outer in path_map:
        if path == inner or path.startswith(f"{inner}/"):
            return outer + path[len(inner) :]
    return path


def resolve_in_sandbox(path: str, path_map: Shown) -> str:
    """Return an absolute path of the sandbox with every link resolved. Missing components keep their names."""
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
            text = os.readlink(host_path(inner, path_map)) if links < MAX_LINKS else ""
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
    """This machine as the guard sees it. No method changes anything, and none raises."""

    __slots__ = (
        "_listed",
        "_prefix",
        "_shown",
        "home",
        "path",
        "path_map",
        "readable",
        "root",
        "search_path",
        "writable",
    )

    def __init__(self, root: str, home: str = "/nonexistent", path: tuple[str, ...] = ()) -> None:
        self.root = root
        self._prefix = root + "/"
        self.home = home
        self.path = path  # the directories of PATH inside the root, where any program can have any name
        self.readable: tuple[str, ...] = ()  # paths that the policy grants besides the project
        self.writable: tuple[str, ...] = ()
        self.path_map: Shown = ()  # maps the sandbox's own temporary directory to the host
        self.search_path = ""  # PATH, if the toolchains that the sandbox shows count
        self._shown: list[tuple[str, ...]] = []  # them, once they were asked for
        self._listed: dict[
            str, tuple[tuple[str, ...], bool]
        ] = {}  # links of a directory, and whether a name begins with a dash

    @classmethod
    def of(cls, config: SandboxConfig, temporary: str = "") -> Machine:
        """Return this machine under a config. `temporary` is the host path of the sandbox's own /tmp."""
        root = config.project_root
        home = os.environ.get("HOME") or "/nonexistent"
        search_path = os.environ.get("PATH", "")
        inside = tuple(d for d in search_path.split(":") if d == root or d.startswith(root + "/"))
        machine = cls(root, os.path.normpath(home), inside)
        machine.search_path = search_path
        containment = config.containment
        if containment.read or containment.write:
            machine.writable = tuple(os.path.realpath(p) for p in containment.write)
            machine.readable = (*machine.writable, *(os.path.realpath(p) for p in containment.read))
        if temporary:
            kept = [path for path in (root, *machine.readable) if path.startswith(f"{TEMPORARY}/")]
            unmapped = [(path, path) for path in sorted(kept, key=len, reverse=True)]
            machine.path_map = (*unmapped, (TEMPORARY, temporary))
        return machine

    def under(self, config: SandboxConfig) -> Machine:
        """Return this machine under another config of the same sandbox."""
        return Machine.of(config, dict(self.path_map).get(TEMPORARY, ""))

    def granted(self, verb: str, path: str) -> bool:
        """Say whether the policy grants this use of a path outside the project."""
        roots = self.readable if verb in ("reads", "runs") else self.writable
        return any(path == root or path.startswith(root + "/") for root in roots)

    def shows(self, path: str) -> bool:
        """Say whether a path is in a toolchain or package cache that the sandbox shows read-only."""
        if not self.search_path:
            return False
        if not self._shown:
            from corral.guard.toolchains import sandbox_toolchains  # noqa: PLC0415  few calls name a path there

            # Once, as the sandbox does: its view is built before the first command.
            found = sandbox_toolchains(self.search_path, os.path.realpath(self.home), self.root)
            self._shown.append((*found.shown, *found.caches))
        return any(path == root or path.startswith(root + "/") for root in self._shown[0])

    def absolute(self, path: str, cwd: str) -> str:
        """Return the absolute path without resolving links."""
        return os.path.normpath(path if path.startswith("/") else f"{cwd}/{path}")

    def resolve(self, path: str, cwd: str) -> str:
        """Return the absolute path with every link resolved. Missing components keep their names."""
        if not path.startswith("/"):
            path = f"{cwd}/{path}"
        if len(path) >= MAX_PATH:  # the kernel opens none as long; a program may shorten it
            path = os.path.normpath(path)
            if len(path) >= MAX_PATH:
                return path
        try:
            return self._resolve(path)
        except (ValueError, OSError):  # no file can have this name
            return os.path.normpath(path)

    def _real_path(self, path: str) -> str:
        if self.path_map and path.startswith(f"{TEMPORARY}/"):
            return resolve_in_sandbox(path, self.path_map)
        found = kernel_realpath(path)
        if self.path_map and found.startswith(f"{TEMPORARY}/") and not found.startswith(self._prefix):
            return resolve_in_sandbox(path, self.path_map)
        return found

    def _resolve(self, path: str) -> str:
        if "/../" in path or path.endswith("/..") or "\0" in path:
            return self._real_path(path.replace("\0", ""))
        if path == self.root:
            return path
        if not path.startswith(self._prefix):
            return self._real_path(path)
        # The root is resolved already: only components below it can be links.
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

    def cpu_seconds(self) -> float:
        """Return the CPU time of this thread. Other threads and a busy machine do not shorten the time for a call."""
        return thread_time()

    def exists(self, path: str, cwd: str) -> bool:
        """Say whether a path exists, even as a broken link."""
        return os.path.lexists(host_path(path if path.startswith("/") else f"{cwd}/{path}", self.path_map))

    def is_directory(self, path: str) -> bool:
        """Say whether a path is a directory."""
        return os.path.isdir(host_path(path, self.path_map))

    def is_writable(self, path: str) -> bool:
        """Say whether this user can write a path, or make it if it does not exist."""
        at = host_path(path, self.path_map)
        if os.path.lexists(at):
            return os.access(at, os.W_OK)
        while not os.path.lexists(at):
            at = os.path.dirname(at)
        return os.path.isdir(at) and os.access(at, os.W_OK | os.X_OK)

    def forget_listings(self) -> None:
        """Look at directories again. A call that names one a thousand times lists it once."""
        self._listed.clear()

    def _listing(self, directory: str) -> tuple[tuple[str, ...], bool]:
        """Return the names of the links in a directory, and whether a name in it begins with a dash."""
        place = host_path(directory, self.path_map) or "/"
        found = self._listed.get(place)
        if found is None:
            links, has_dash = [], False
            try:
                with os.scandir(place) as entries:
                    for entry in entries:
                        has_dash = has_dash or entry.name.startswith("-")
                        if entry.is_symlink():
                            links.append(entry.name)
            except (ValueError, OSError):
                pass
            found = self._listed[place] = tuple(links), has_dash
        return found

    def has_option_like_name(self, directory: str) -> bool:
        """Say whether a directory has a file whose name begins with a dash."""
        return self._listing(directory)[1]

    def is_unpushed(self, cwd: str, depth: str) -> bool:
        """Say whether no remote has the newest `depth` commits of the repository at a directory."""
        from corral.guard.unpushed_commits import is_unpushed  # noqa: PLC0415  few calls replace commits

        return is_unpushed(host_path(cwd, self.path_map), host_path(self.root, self.path_map), int(depth))

    def is_repository(self, cwd: str) -> bool:
        """Say whether a directory of the project lies in a repository of the project."""
        from corral.guard.unpushed_commits import git_directories  # noqa: PLC0415  few calls use a remote

        try:
            return git_directories(host_path(cwd, self.path_map), host_path(self.root, self.path_map)) is not None
        except (OSError, ValueError):
            return True

    def remotes(self, cwd: str) -> Remotes | None:
        """Return the remotes of the repository at a directory of the project, or None if they cannot be known."""
        from corral.guard.git_remotes import read_remotes  # noqa: PLC0415  few calls use a remote

        return read_remotes(host_path(cwd, self.path_map), host_path(self.root, self.path_map), self.home)

    def matches(self, pattern: str, cwd: str) -> list[str]:
        """Return the symbolic links that a glob matches now, at most MAX_GLOB_MATCHES."""
        directory, _, tail = (pattern if pattern.startswith("/") else f"{cwd}/{pattern}").rpartition("/")
        if any(c in directory for c in "*?["):
            return []
        found: list[str] = []
        for name in self._listing(directory)[0]:
            from corral.guard.globs import glob_matches  # noqa: PLC0415  few directories contain links

            if glob_matches(name, tail):
                found.append(f"{directory}/{name}")
                if len(found) >= MAX_GLOB_MATCHES:
                    break
        return found


def _recorded(ask: Callable[..., Answer]) -> Callable[..., Answer]:
    def ask_and_record(machine: RecordingMachine, *about: str) -> Answer:
        answer = ask(machine, *about)
        machine.answers[ask, about] = answer
        return answer

    return ask_and_record


class RecordingMachine(Machine):
    """A machine that records every question and its answer."""

    __slots__ = ("answers",)

    def __init__(self, machine: Machine) -> None:
        for name in Machine.__slots__:
            setattr(self, name, getattr(machine, name))
        self.answers: dict[tuple[Callable[..., object], tuple[str, ...]], object] = {}

    resolve = _recorded(Machine.resolve)
    exists = _recorded(Machine.exists)
    is_directory = _recorded(Machine.is_directory)
    is_writable = _recorded(Machine.is_writable)
    shows = _recorded(Machine.shows)
    is_unpushed = _recorded(Machine.is_unpushed)
    has_option_like_name = _recorded(Machine.has_option_like_name)
    is_repository = _recorded(Machine.is_repository)
    remotes = _recorded(Machine.remotes)
    matches = _recorded(Machine.matches)
