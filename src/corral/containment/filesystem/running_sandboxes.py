"""Finds the sandboxes of this user that are running, by the records that they keep. The hook asks, so this imports little."""

from __future__ import annotations

import marshal
import os
from fcntl import LOCK_NB, LOCK_SH, LOCK_UN, flock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

MARKER_PREFIX = "open-"  # of the files that running sandboxes keep beside /tmp and home
DIRECTORIES = 3  # the position of `Protected.directories` in a record


def is_sandbox_running(tops: Collection[str], environ: Mapping[str, str]) -> bool:
    """Say whether a sandbox of this user may be running that writes in one of these directories, whatever its project is."""
    try:
        found = all_scratch_paths(environ)
        if found is None:
            # A sandbox that finds no private directory keeps no record.
            return True
        return any(_writes_in(path, tops) for place in found for path in marker_paths(place))
    except (OSError, ValueError, EOFError, TypeError, IndexError):
        # A sandbox ended at this moment, or its record cannot be read.
        return True


def _writes_in(marker: str, tops: Collection[str]) -> bool:
    with open(os.open(marker, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        if not is_held(file.fileno()):
            return False
        directories = marshal.loads(file.read())[DIRECTORIES]  # noqa: S302  written by a sandbox, where no command can
    return any(lies_in(walked[0], top) or lies_in(top, walked[0]) for walked in directories for top in tops)


def lies_in(path: str, root: str) -> bool:
    """Say whether a path is the root or below it."""
    # guard.path_zones has the same, but loads the table of places, which the keeper does not need.
    return f"{path}/".startswith(f"{root}/")


def is_held(descriptor: int) -> bool:
    """Say whether the sandbox of a record runs. Shared: two processes that ask at the same time must not see each other."""
    try:
        flock(descriptor, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    flock(descriptor, LOCK_UN)
    return False


def marker_paths(place: str) -> list[str]:
    """Return the records in a project's scratch directory."""
    try:
        return [f"{place}/{name}" for name in os.listdir(place) if name.startswith(MARKER_PREFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def scratch_bases(environ: Mapping[str, str], kind: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the directories that may hold scratch, the preferred one first: the user's own, and the names below it."""
    cache, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    for base in (cache, home and f"{home}/.cache"):
        if base.startswith("/"):
            yield os.path.realpath(base), ("corral", kind)
    yield os.path.realpath("/var/tmp"), (f"corral-{os.geteuid()}", kind)  # noqa: S108  the directory must be ours alone


def all_scratch_paths(environ: Mapping[str, str]) -> list[str] | None:
    """Return the scratch directories of all projects, or None if this user has never had one."""
    found: list[str] | None = None
    for base, below in dict.fromkeys(scratch_bases(environ, "scratch")):
        above = "/".join((base, *below))
        if os.path.lexists(above):
            found = [*(found or ()), *(f"{above}/{name}" for name in os.listdir(above))]
    return found
