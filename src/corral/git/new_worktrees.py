"""Makes and removes the worktrees of a repository for the user that commands have added or removed in the project."""

from __future__ import annotations

import os

from corral.git import work_files
from corral.git.host_git import path_in
from corral.git.names import why_not_ref
from corral.git.refs import SYMBOLIC, keep, read_value, store, unreached
from corral.git.split_index import tracks
from corral.git.worktree import Worktree
from corral.guard.path_zones import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.git.comparison import Comparison
    from corral.git.safe_files import SafeTree

_FOLDER = "worktrees"
MAX_WORKTREES = 1000


def make_new(comparison: Comparison) -> None:
    """Make the worktrees that the commands' side has and the user's has not."""
    private, base = comparison.private, comparison.base
    try:
        names = private.names(_FOLDER)
    except OSError:
        return
    for name in names[:MAX_WORKTREES]:
        unit = f"{_FOLDER}/{name}"
        if unit in base.get("units", {}) or comparison.user.status(unit) is not None:
            continue
        pointer = private.text(f"{unit}/gitdir").rstrip("\n")
        head = read_value(private.text(f"{unit}/HEAD"))
        why = _why_not(comparison, name, pointer, head)
        if why:
            comparison.tell_once(unit, f"the worktree {name!r} stays in the sandbox: {why}")
            continue
        target = f"{comparison.mirror.user_dir}/{unit}"
        for file, text in (("gitdir", pointer), ("commondir", "../.."), ("HEAD", head)):
            comparison.user.write(f"{unit}/{file}", f"{text}\n".encode("utf-8", "surrogateescape"))
        work_files.write_pointer(os.path.dirname(pointer), target)
        base.setdefault("units", {})[unit] = {"head": head, "user_index": [], "private_index": None}
        comparison.user.forget()
        comparison.user_files.units[unit] = {}


def _why_not(comparison: Comparison, name: str, pointer: str, head: str) -> str:
    place = os.path.dirname(pointer)
    if "\0" in pointer or not pointer.startswith("/") or os.path.normpath(pointer) != pointer:
        return f"{pointer!r} is not a path"
    if not name.isprintable() or name.startswith((".", "-")) or "\\" in name:
        return "its name is not a usual one"
    if not pointer.isprintable():
        # `git worktree list` prints it as it is, also to the programs that read its lines.
        return f"{pointer!r} has characters that do not print"
    if os.path.basename(pointer) != ".git" or os.path.realpath(place) != place or not os.path.isdir(place):
        return f"{pointer!r} is not in a directory"
    if not os.path.isfile(pointer) or os.path.islink(pointer):
        return f"{pointer} is no file"
    if not any(inside(place, root) for root in comparison.mirror.roots) or "/.git/" in f"{place}/":
        return f"{place} is not in the project"
    if has_users_files(comparison.user, comparison.mirror.user_dir, place):
        return f"the repository tracks files in {place}"
    if work_files.pointer_target(pointer) != f"{comparison.mirror.user_dir}/{_FOLDER}/{name}":
        return f"{pointer} does not lead to it"
    if not head or (head.startswith(SYMBOLIC) and not head.startswith(f"{SYMBOLIC}refs/heads/")):
        return "its HEAD is broken"
    branch = head.removeprefix(SYMBOLIC)
    known = comparison.user_refs
    units = work_files.units_of(comparison.user)
    if head != branch and head in [read_value(comparison.user.text(path_in(unit, "HEAD"))) for unit in units]:
        return "its branch is that of another worktree"
    if head == branch:
        # The user's git would end with an error in every worktree if it were missing.
        return comparison.why_not_commit(head)
    return why_not_ref(branch, known) if branch not in known else ""


def has_users_files(user: SafeTree, user_dir: str, place: str) -> bool:
    """Say whether a directory has files of the main worktree: there, the user expects git to work on that one."""
    top = os.path.dirname(user_dir)
    return user_dir.endswith("/.git") and inside(place, top) and tracks(user, place[len(top) + 1 :], is_folder=True)


def remove_gone(comparison: Comparison) -> None:
    """Remove the worktrees that a command has removed, unless the user has changed them meanwhile."""
    for name in list(comparison.base.get("units", {})):
        if not name or comparison.private.status(name) is not None or comparison.user.status(name) is None:
            continue
        if Worktree(comparison, name).is_unchanged() and comparison.user.status(f"{name}/locked") is None:
            head = read_value(comparison.user.text(f"{name}/HEAD"))
            is_others = not head.startswith(SYMBOLIC) and head not in comparison.base.get("own_commits", ())
            lost = unreached(comparison, {"HEAD": head}, unit=name) if head and is_others else {}
            # Before it is removed: this process may be killed in between.
            store(comparison, lost)
            comparison.user.remove(name)
            comparison.user.forget()
            del comparison.base["units"][name]
            comparison.user_files.units.pop(name, None)
            why = f"HEAD of {name} was on no branch, and a command removed it"
            keep(comparison, {each: (oid, why) for each, oid in lost.items()})
