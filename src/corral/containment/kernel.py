"""System calls that the standard library lacks, by number. A failure is an OSError that names the call."""

from __future__ import annotations

import ctypes
import os

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


def _failure(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")
