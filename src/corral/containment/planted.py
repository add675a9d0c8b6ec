"""Looks after each command for protected names that were not there before, and moves them out of the way before the result returns.

Links are never followed: a command of another warden may be swapping directories meanwhile.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from time import time_ns

from corral.containment.protected import HEADS
from corral.model import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A directory's time of change has the kernel's clock tick: younger than this, another change may have the same.
_SETTLED_NS = 50_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INSTEAD = "It would run outside the sandbox; ask the owner to put it there."


class Watch:
    """The absent protected names of one sandbox."""

    def __init__(self, absent: Iterable[tuple[str, tuple[str, ...]]], root: str) -> None:
        self._names = {directory: set(names) for directory, names in absent}
        self._seen: dict[str, int] = {}  # the time of change of a directory that was looked through and had settled
        self._root = root
        self._lock = allocate_lock()
        self._locked_in = os.getpid()

    def look(self) -> tuple[Violation, ...]:
        """Quarantine what has appeared, and return a violation for each."""
        found: list[Violation] = []
        if self._locked_in != os.getpid():
            # A thread of the process that this one was forked from may have held it.
            self._locked_in, self._lock = os.getpid(), allocate_lock()
        with self._lock:
            for directory in list(self._names):
                try:
                    changed = os.lstat(directory).st_ctime_ns
                except OSError:
                    continue
                if self._seen.get(directory) != changed:
                    self._search(directory, found)
                    if changed < time_ns() - _SETTLED_NS and not found:
                        self._seen[directory] = changed
        return tuple(found)

    def _search(self, directory: str, found: list[Violation]) -> None:
        for name in sorted(self._names[directory]):
            path = f"{directory}/{name}"
            if not os.path.lexists(path):
                continue
            rests = HEADS.get(name, ("",)) if directory == self._root else ("",)
            if "" in rests or not os.path.isdir(path) or os.path.islink(path):
                found.append(_quarantine(directory, name, self._root))
                continue
            # A directory that may be there, as .github: only some names in it are protected.
            self._names[directory].discard(name)
            self._names[path] = set(rests)
            self._search(path, found)


def _quarantine(directory: str, name: str, root: str) -> Violation:
    path = f"{directory}/{name}"
    try:
        place = _move(directory, name, root)
    except OSError as error:
        return Violation("planted", path, f"it could not be moved away: {error.strerror}; remove it", _INSTEAD)
    return Violation("planted", path, f"it was moved to {place}", _INSTEAD)


def _move(directory: str, name: str, root: str) -> str:
    above, _, last = name.rpartition("/")
    source = _open(f"{directory}/{above}" if above else directory)
    try:
        for base in (state_directory(os.environ), root):
            place = f"{base}/corral-quarantine/{os.urandom(8).hex()}"
            try:
                os.makedirs(place, 0o700)
                target = _open(place)
            except OSError:
                continue
            try:
                os.rename(last, last, src_dir_fd=source, dst_dir_fd=target)
            except OSError:
                # Another file system; the project's own is the last to be tried.
                os.rmdir(place)
                if base == root:
                    raise
                continue
            finally:
                os.close(target)
            return f"{place}/{last}"
        raise PermissionError(13, "no directory for it can be made")
    finally:
        os.close(source)


def _open(path: str) -> int:
    """Open a directory, refusing links on the whole way."""
    at = os.open("/", _DIRECTORY)
    for part in path.strip("/").split("/"):
        try:
            inner = os.open(part, _DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def state_directory(environ: Mapping[str, str]) -> str:
    """Return where the owner's programs keep what lasts."""
    own = environ.get("XDG_STATE_HOME", "")
    return os.path.realpath(own if own.startswith("/") else f"{environ.get('HOME') or '/nonexistent'}/.local/state")
