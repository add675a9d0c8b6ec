"""What a command leaves in the kernel besides processes: System V memory, semaphores and queues, and files in shared memory."""

from __future__ import annotations

import ctypes
import os

from corral.containment import scratch
from corral.containment.kernel import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_RMID = 0
_SHM_STAT, _SHM_INFO, _SEM_STAT, _SEM_INFO, _MSG_STAT, _MSG_INFO = 13, 14, 18, 19, 11, 12
_buffer = ctypes.create_string_buffer(256)


def clear(shared_memory: int, kept: Collection[str]) -> None:
    """Remove all of it in this namespace; `shared_memory` is a descriptor of the directory, in which the `kept` stay."""
    _clear(libc.shmctl, _SHM_INFO, _SHM_STAT)
    _clear(libc.msgctl, _MSG_INFO, _MSG_STAT)
    _clear(lambda index, command, buffer: libc.semctl(index, 0, command, buffer), _SEM_INFO, _SEM_STAT)
    moved = 0
    while names := [name for name in os.listdir(shared_memory) if name not in kept]:
        for name in names:
            moved = scratch.remove_entry(name, shared_memory, moved)


def _clear(control: Callable[[int, int, object], int], info: int, stat: int) -> None:
    # The answer is the highest index in use, and 0 both for one and for none.
    for index in range(control(0, info, _buffer) + 1):
        identifier = control(index, stat, _buffer)
        if identifier >= 0:
            control(identifier, _RMID, None)
