"""System calls that the standard library lacks, by number. A failure is an OSError that names the call."""

from __future__ import annotations

import ctypes
import os
from fcntl import ioctl
from sys import byteorder

# From 424 on all machines share one table.
_SHARED = {
    "open_tree": 428,
    "move_mount": 429,
    "openat2": 437,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
_OWN = {
    "x86_64": {"pivot_root": 155, "renameat2": 316, "keyctl": 250, "capset": 126, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "renameat2": 276, "keyctl": 219, "capset": 91, "seccomp": 277},
}
MACHINE = os.uname().machine
NUMBERS = _SHARED | _OWN.get(MACHINE, {})

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_HANDLE_FID = 0x200  # of a file system whose handles cannot be opened; unknown to old kernels
_MAX_HANDLE_BYTES = 128
_HEAD_BYTES = 8  # its size and its kind
_ROOM = _MAX_HANDLE_BYTES.to_bytes(4, byteorder)
_mount = ctypes.create_string_buffer(4)  # written, and never read
_FIONREAD, _NOTHING = 0x541B, bytes(4)

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
Argument = int | bytes | None | ctypes.Array[ctypes.c_char]


def _word(value: Argument) -> object:
    return ctypes.c_long(value) if isinstance(value, int) else value


def syscall(name: str, *arguments: Argument) -> int:
    """Make a system call."""
    number = NUMBERS.get(name)
    if number is None:
        raise OSError(38, f"{name}: no number is known for {MACHINE}")
    result: int = libc.syscall(ctypes.c_long(number), *map(_word, arguments))
    if result < 0:
        raise _failure(name)
    return result


def call(name: str, *arguments: Argument) -> int:
    """Call a function of the C library that fails by -1 and errno."""
    result: int = getattr(libc, name)(*map(_word, arguments))
    if result < 0:
        raise _failure(name)
    return result


def prctl(option: int, value: int = 0, third: int = 0) -> int:
    """Set a property of this process."""
    return call("prctl", option, value, third, 0, 0)


def handle(path: str, directory: int = _AT_FDCWD) -> bytes:
    """Return the handle of what is at a path, or of an open directory for an empty one; nothing where the file system gives none.

    No later thing has it, although it may get the same inode.
    """
    given = ctypes.create_string_buffer(_ROOM, _HEAD_BYTES + _MAX_HANDLE_BYTES)
    for kind in (0, _AT_HANDLE_FID):
        try:
            flags = kind if path else kind | _AT_EMPTY_PATH
            call("name_to_handle_at", directory, os.fsencode(path), given, _mount, flags)
        except (OSError, AttributeError):
            # Also of a C library that knows none.
            continue
        return given.raw[4 : _HEAD_BYTES + int.from_bytes(given.raw[:4], byteorder)]
    return b""


def waiting(descriptor: int) -> int:
    """Return how many bytes can be read at once."""
    said = ioctl(descriptor, _FIONREAD, _NOTHING)
    return 0 if said == _NOTHING else int.from_bytes(said, byteorder)


def _failure(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")
