"""Which directories have changed, as the kernel tells by inotify: a read that costs a microsecond, however many are watched."""

from __future__ import annotations

import os
from _struct import Struct

from corral.containment.kernel.syscalls import call, waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    Changes = tuple[dict[str, set[bytes]], set[str]]

_CREATE, _DELETE, _MOVED_FROM, _MOVED_TO, _ONLYDIR, _DONT_FOLLOW = 0x100, 0x200, 0x40, 0x80, 0x1000000, 0x2000000
_IGNORED, _OVERFLOW, _ISDIR = 0x8000, 0x4000, 0x40000000
_WATCHED = _CREATE | _MOVED_FROM | _MOVED_TO | _ONLYDIR | _DONT_FOLLOW
_EVENT = Struct("=iIII")
_READ_BYTES = 1 << 16
MAX_TOLD, MAX_TOLD_BYTES = 64, 1 << 12  # of what the kernel says again and again


class InotifyWatches:
    """The directories that the kernel watches for one sandbox."""

    def __init__(self) -> None:
        self._descriptor = call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._told: dict[bytes, Changes] = {}  # by what the kernel said, while what is watched is the same

    def add(self, path: str, *, removals: bool = False) -> None:
        """Watch a directory; one that was moved is known by its new path from now on. What comes and goes is told if `removals` are."""
        number = call("inotify_add_watch", self._descriptor, os.fsencode(path), _WATCHED | (_DELETE if removals else 0))
        self._paths[number], self._numbers[path] = path, number
        self._told.clear()

    def changed(self) -> Changes | None:
        """Return the names that have appeared in each directory, and the directories that are gone; None when that cannot be told.

        So it is when the kernel lost count, and when a directory was moved: what is watched goes with it, its path does not.
        """
        # Asked first: an error for nothing to read takes longer than to ask. What comes later is of no command that has ended.
        left = waiting(self._descriptor)
        data = b""
        while left > 0:
            some = os.read(self._descriptor, min(left, _READ_BYTES))
            left -= len(some)
            data += some
        # Git makes and removes the same file in each command.
        told = self._told.get(data)
        return self._parsed(data) if told is None else told

    def _parsed(self, data: bytes) -> Changes | None:
        appeared: dict[str, set[bytes]] = {}
        gone: set[str] = set()
        is_lost = False
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length]
            at += _EVENT.size + length
            if mask & _OVERFLOW or (mask & _ISDIR and mask & (_MOVED_FROM | _MOVED_TO)):
                is_lost = True
            elif mask & _IGNORED:
                path = self._paths.pop(number, "")
                # Told only when nobody is in it any more: another may be at that path by now.
                if self._numbers.get(path) == number:
                    gone.add(path)
            elif number in self._paths and mask & _DELETE:
                # In order: whatever has the name afterwards is told of once more. Not so of two that were exchanged.
                appeared.get(self._paths[number], set()).discard(name.rstrip(b"\0"))
            elif number in self._paths and not mask & _MOVED_FROM:
                appeared.setdefault(self._paths[number], set()).add(name.rstrip(b"\0"))
        if is_lost:
            return None
        told = {path: names for path, names in appeared.items() if names}, gone
        if not gone and len(data) <= MAX_TOLD_BYTES:
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told[data] = told
        return told

    def forget(self) -> None:
        """Know no path any more, until it is added again. What is watched stays so: to close it all takes longer."""
        self._paths.clear()
        self._told.clear()
        self._numbers.clear()

    def close(self) -> None:
        """Forget all of them."""
        # Here the kernel waits until no event can be on its way, 13 ms as measured; once a sandbox.
        os.close(self._descriptor)
