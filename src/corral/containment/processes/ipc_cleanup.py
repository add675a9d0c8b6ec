"""Removes the System V IPC objects and the files in /dev/shm that a command leaves."""

from __future__ import annotations

import ctypes
import os
from stat import S_IMODE

from corral.containment.filesystem import scratch
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime
from corral.containment.kernel.syscalls import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_RMID = 0
_SHM_INFO, _SEM_INFO, _MSG_INFO = 14, 19, 12
# The first command of each pair works on any object; old kernels have only the second, which needs read permission.
_SHM_STATS, _SEM_STATS, _MSG_STATS = (15, 13), (20, 18), (13, 11)
# The index of the number of objects in the kernel's answer.
_SHM_USED, _MSG_USED, _SEM_USED = 0, 0, 7
_buffer = (ctypes.c_int * 64)()
_shmctl, _msgctl, _semctl = libc.shmctl, libc.msgctl, libc.semctl


class IpcObjects:
    """Cleans one IPC namespace. `shared_memory` is a descriptor of its /dev/shm."""

    def __init__(self, shared_memory: int) -> None:
        self._shared_memory = shared_memory
        # A project or grant that lies in /dev/shm is mounted there, and stays.
        self._kept = os.listdir(shared_memory)
        self._mode = os.fstat(shared_memory).st_mode
        self._changed = NO_CTIME

    def clear(self) -> None:
        """Remove everything that commands have left."""
        # Ask for the number first, because almost no command leaves anything.
        if _shmctl(0, _SHM_INFO, _buffer) < 0 or _buffer[_SHM_USED]:
            _clear(_shmctl, _SHM_INFO, _SHM_STATS)
        if _msgctl(0, _MSG_INFO, _buffer) < 0 or _buffer[_MSG_USED]:
            _clear(_msgctl, _MSG_INFO, _MSG_STATS)
        if _semctl(0, 0, _SEM_INFO, _buffer) < 0 or _buffer[_SEM_USED]:
            _clear(lambda index, command, buffer: _semctl(index, 0, command, buffer), _SEM_INFO, _SEM_STATS)
        if os.fstat(self._shared_memory).st_ctime_ns != self._changed:
            self._clear_shared_memory()

    def _clear_shared_memory(self) -> None:
        if os.fstat(self._shared_memory).st_mode != self._mode:
            os.fchmod(self._shared_memory, S_IMODE(self._mode))
        for name in os.listxattr(self._shared_memory):
            if name.startswith("user."):
                os.removexattr(self._shared_memory, name)
        self._remove_files()
        self._changed = comparable_ctime(os.fstat(self._shared_memory).st_ctime_ns)

    def _remove_files(self) -> None:
        moved = 0
        while names := [name for name in os.listdir(self._shared_memory) if name not in self._kept]:
            for name in names:
                moved = scratch.remove_entry(name, self._shared_memory, moved)


def _clear(control: Callable[[int, int, object], int], info: int, stats: tuple[int, ...]) -> None:
    # The result is the highest index in use, which is 0 both for one object and for none.
    for index in range(control(0, info, _buffer) + 1):
        for stat in stats:
            identifier = control(index, stat, _buffer)
            if identifier >= 0:
                control(identifier, _RMID, None)
                break
