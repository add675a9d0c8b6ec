"""Finds the opening that would let a command use a path outside the project. Pure but for `Machine`.

No opening reaches credentials, files that run later, the machine's own directories, or a whole home directory.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.guard.analysis.command import REDIRECT
from corral.guard.axes.openings import IN_CALL, Opening
from corral.guard.path_zones import classify_path, contains_secret, inside, protected
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE
from corral.model.grant import ANY_COMMAND, CREATE, LIST, LIST_ALL, READ, WRITE, Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.guard.analysis.command import Command
    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Word
    from corral.policy.config import SandboxConfig

# Below / or a home directory: `/srv/app` and `~/work/app` can be granted, `/srv` and `~/work` hold too much. A new directory holds nothing.
MIN_LEVELS = 2
_KINDS = {
    "read-outside": READ,
    "read-private": READ,
    "run-outside": READ,
    "write-outside": WRITE,
    "delete-outside": WRITE,
}
_MACHINE = (
    *(
        "/usr",
        "/etc",
        "/var",
        "/opt",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/boot",
        "/proc",
        "/sys",
        "/dev",
        "/run",
    ),
    *("/snap", "/nix", "/lost+found"),
)
_TEMPORARY = "/var/tmp"  # noqa: S108  every user has files there, unlike in the rest of /var
# They show names, sizes and dates, and no contents.
_LISTING = frozenset({"ls", "dir", "vdir", "find", "tree", "stat", "test", "[", "[["})
_RECURSIVE = frozenset({"find", "tree"})
# They make no file, so a missing path is not a new name.
_CHANGING = frozenset({"chmod", "chown", "chgrp", "setfacl"})
# They open a file that exists and write into it. Others replace it by a new one, which a mount does not allow.
_IN_PLACE = frozenset({"tee", "cp", "touch", "dd", "curl", "wget", "tar", "sort", "openssl"})
_HOOKS = frozenset({
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg", "post-commit",
    "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update", "proc-receive", "post-receive", "post-update",
    "reference-transaction", "push-to-checkout", "pre-auto-gc", "post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change",
})  # fmt: skip


@frozen
class Use(Record):
    """The use of one path by one command, which the profile refuses."""

    key: str  # the effect
    command: Command
    word: Word
    path: str  # resolved
    detail: str = ""

    @property
    def makes_directory(self) -> bool:
        """True if the path is a directory, or becomes one."""
        verb = self.command.verbs[0].text if self.command.verbs else ""
        makes = self.command.real == "mkdir" or (self.command.real == "git" and verb in ("init", "clone"))
        return makes or literal_part(self.word).endswith("/")


def literal_part(word: Word) -> str:
    """Return the path of a word, or the directory before its first part that is only known at run time."""
    cut = min(
        (at for sign in (HOLE, NUMBER_HOLE, *("*?[" if word.glob else "")) if (at := word.text.find(sign)) >= 0),
        default=-1,
    )
    return word.text if cut < 0 else word.text[:cut].rpartition("/")[0] + "/"


def path_opening(use: Use, opened: Iterable[Grant], config: SandboxConfig, machine: Machine) -> Opening | None:
    """Return the opening of one path outside the project, or None if none is given for it. `opened` are those of the call so far."""
    kind = _KINDS.get(use.key)
    if kind is None or not config.opens or f"effects.{use.key}" in config.rules.closed:
        return None
    if kind == READ:
        return _read_opening(use, machine)
    if _runs_later(use.path, machine) and (use.key != "delete-outside" or machine.exists(use.path, "/")):
        return None
    known = [grant for grant in (*opened, *config.grants) if grant.kind in (WRITE, CREATE)]
    if any(use.path == grant.target for grant in known) and not _keeps_mount(use):
        return None
    for grant in known:
        if inside(use.path, grant.target):
            return Opening((grant,))
    return _write_opening(use, known, machine)


def _keeps_mount(use: Use) -> bool:
    """Say whether a command neither deletes nor replaces the path: the kernel refuses that for a path that is a mount."""
    is_in_place = use.detail == REDIRECT or use.command.real in _IN_PLACE or use.makes_directory
    return use.key != "delete-outside" and (is_in_place or use.command.real in _CHANGING)


def _read_opening(use: Use, machine: Machine) -> Opening | None:
    target = _repository_above(use.path, machine) or use.path
    if use.key == "run-outside" and target == use.path and _is_open_to(READ, _parent(target), machine):
        target = _parent(target)  # a program reads files beside it
    if _is_open_to(READ, target, machine) and not contains_secret(target):
        # Several commands may use it, so the family is the path itself. A log may hold anything, so it is asked about each time.
        return Opening((Grant(READ, target, IN_CALL),), ANY_COMMAND if use.key == "read-outside" else "")
    if use.command.real not in _LISTING or not _is_listable(use.path, machine):
        return None
    options = [word.text for word in use.command.words if word.text[:1] == "-" and word.text[:2] != "--"]
    is_recursive = use.command.real in _RECURSIVE or any("R" in option for option in options)
    is_recursive = is_recursive or any(word.text.startswith("--rec") for word in use.command.words)
    return Opening((Grant(LIST, use.path + LIST_ALL if is_recursive else use.path, IN_CALL),))


def _write_opening(use: Use, known: list[Grant], machine: Machine) -> Opening | None:
    path = use.path
    exists = machine.exists(path, "/")
    target = path
    if not exists and (use.key == "delete-outside" or use.command.real in _CHANGING):
        # There is nothing to change, unless an earlier part of the call makes it. The sandbox shows none that appears later.
        is_made = any(inside(grant.target, path) for grant in known)
        is_small = is_made or (_levels(path, machine) >= MIN_LEVELS and not use.word.glob)
        return Opening(()) if is_small and not _is_machine(path, machine) else None
    if not use.makes_directory and (use.key == "delete-outside" or not exists):
        target = _parent(path)  # a new name, or one less, is a change of the directory
    if _runs_later(target, machine):
        return None
    if _is_open_to(WRITE, target, machine):
        return Opening((Grant(WRITE, target, IN_CALL),))
    is_new_file = target != path and use.key == "write-outside" and machine.is_directory(target)
    if is_new_file and _keeps_mount(use) and _is_own_place(WRITE, path, machine) and path.rpartition("/")[2][:1] != ".":
        return Opening((Grant(CREATE, path, IN_CALL),))
    return None


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _home_of(path: str, machine: Machine) -> str:
    """Return the home directory that contains a path, or nothing."""
    if inside(path, machine.home):
        return machine.home
    if inside(path, "/root"):
        return "/root"
    name = path.split("/", 3)[2] if path.startswith("/home/") else ""
    return f"/home/{name}" if name else ""


def _runs_later(path: str, machine: Machine) -> bool:
    """Say whether other programs run or obey a file: in a project, a home directory's own programs and settings, or a git directory."""
    home = _home_of(path, machine)
    first, _, rest = path[len(home) + 1 :].partition("/") if home else ("", "", "")
    if (
        protected(path, "")
        or first.startswith(".")
        or first == "bin"
        or (first == "go" and f"{rest}/".startswith("bin/"))
    ):
        return True
    parts = path.split("/")
    for number, below in enumerate(parts[1:]):
        name = parts[number]
        if (name == "hooks" and below in _HOOKS) or (name.endswith(".git") and below in ("hooks", "config", "info")):
            return True
    at = path
    while at:
        if machine.exists(f"{at}/HEAD", "/") and machine.exists(f"{at}/objects", "/"):
            return True  # a repository without a working tree
        at = at.rpartition("/")[0]
    return False


def _repository_above(path: str, machine: Machine) -> str:
    """Return the repository that contains a path, or nothing: a question about each of its files would help nobody."""
    at = path
    while _is_open_to(READ, at, machine):
        if machine.exists(f"{at}/.git", "/"):
            return at
        at = at.rpartition("/")[0]
    return ""


def _is_own_place(kind: str, path: str, machine: Machine) -> bool:
    """Say whether a path is where users keep files, and not the machine's, nor a directory above the project or the home directory."""
    place = classify_path(path, machine.root, machine.home)
    if place not in ("outside", "private", "notes") or inside(machine.root, path) or inside(machine.home, path):
        return False
    return kind != WRITE or (not _is_machine(path, machine) and machine.is_writable(path))


def _is_machine(path: str, machine: Machine) -> bool:
    """Say whether a path belongs to the machine, so that no command may change it."""
    return (
        any(inside(path, each) for each in _MACHINE) and not inside(path, machine.home) and not inside(path, _TEMPORARY)
    )


def _levels(path: str, machine: Machine) -> int:
    """Return how many directories deep a path is below / or a home directory."""
    below = path[len(_home_of(path, machine)) + 1 :]
    return below.count("/") + 1 if below else 0


def _is_open_to(kind: str, path: str, machine: Machine) -> bool:
    """Say whether a path can be granted: it is the user's, and deep enough not to hold a hundred other things."""
    if not _is_own_place(kind, path, machine):
        return False
    exists = machine.exists(path, "/")
    # A new directory holds nothing, and a file only itself.
    is_small = not exists if kind == WRITE else exists and not machine.is_directory(path)
    return (exists or kind == WRITE) and _levels(path, machine) >= (1 if is_small else MIN_LEVELS)


def _is_listable(path: str, machine: Machine) -> bool:
    """Say whether the names in a directory can be shown. A whole home directory can, without what its credentials are called."""
    if inside("/home", path) and path != "/home":
        return False
    place = classify_path(path, machine.root, machine.home)
    return place in ("outside", "private") and not inside(machine.root, path)
