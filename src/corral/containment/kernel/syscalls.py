"""Makes the system calls that the standard library lacks. A failure is an OSError that names the call."""

from __future__ import annotations

import ctypes
import os
import stat
from _struct import pack
from errno import ELOOP, ENOSYS, EPERM, ESTALE
from fcntl import ioctl
from sys import byteorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# From 424 on, all architectures have the same numbers.
_SHARED = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
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
_RESOLVE_NO_SYMLINKS = 4
_REFERENCE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_EMPTY_PATH = 0x1000
_AT_HANDLE_FID = 0x200  # for file systems whose handles cannot be opened; old kernels do not know it
_MAX_HANDLE_BYTES = 128
_HEAD_BYTES = 8  # the size and the type of a handle
_ROOM = _MAX_HANDLE_BYTES.to_bytes(4, byteorder)
_mount_id = ctypes.create_string_buffer(4)  # the kernel writes it; never read
_FIONREAD, _NOTHING = 0x541B, bytes(4)

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
Argument = int | bytes | None | ctypes.Array[ctypes.c_char]


def _word(value: Argument) -> object:
    return ctypes.c_long(value) if isinstance(value, int) else value


def syscall(name: str, *arguments: Argument) -> int:
    """Make a system call by name."""
    number = NUMBERS.get(name)
    if number is None:
        raise OSError(38, f"{name}: corral has no system call number for {MACHINE}")
    result: int = libc.syscall(ctypes.c_long(number), *map(_word, arguments))
    if result < 0:
        raise _failure(name)
    return result


def call(name: str, *arguments: Argument) -> int:
    """Call a function of the C library that reports failure by -1 and errno."""
    result: int = getattr(libc, name)(*map(_word, arguments))
    if result < 0:
        raise _failure(name)
    return result


def prctl(option: int, value: int = 0, third: int = 0) -> int:
    """Call prctl(), which sets a property of this process."""
    return call("prctl", option, value, third, 0, 0)


def open_verified(path: str, known: Mapping[str, Sequence[int]]) -> int:
    """Open a path with O_PATH, following no link. Paths in `known` must have the device and inode given there."""
    how = pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
    try:
        descriptor = syscall("openat2", _AT_FDCWD, os.fsencode(path), how, len(how))
    except OSError as error:
        if error.errno == ELOOP:
            # The host resolved all paths when it made the sandbox.
            raise OSError(
                ESTALE, f"{path} was replaced since the sandbox was made: there is a link in it now"
            ) from error
        if error.errno not in (ENOSYS, EPERM):
            raise
        # The filter of another sandbox or of an old container engine refuses openat2().
        descriptor = _open_by_parts(path)
    if path in known:
        found = os.fstat(descriptor)
        if [found.st_dev, found.st_ino] != [*known[path]]:
            os.close(descriptor)
            raise OSError(ESTALE, f"{path} was replaced since the sandbox was made")
    return descriptor


def _open_by_parts(path: str) -> int:
    at = os.open("/", _REFERENCE | os.O_DIRECTORY)
    names = path.strip("/").split("/") if path.strip("/") else []
    for number, name in enumerate(names, 1):
        above = at
        try:
            at = os.open(name, _REFERENCE | (os.O_DIRECTORY if number < len(names) else 0), dir_fd=above)
        finally:
            os.close(above)
    if stat.S_ISLNK(os.fstat(at).st_mode):
        os.close(at)
        raise OSError(ELOOP, f"{path} is a link")
    return at


def handle(path: str, directory: int = _AT_FDCWD) -> bytes:
    """Return the file handle of a path, or of an open directory if the path is empty; b"" if the file system has none.

    A later file never has the same handle, although it can have the same inode.
    """
    given = ctypes.create_string_buffer(_ROOM, _HEAD_BYTES + _MAX_HANDLE_BYTES)
    for kind in (0, _AT_HANDLE_FID):
        try:
            flags = kind if path else kind | _AT_EMPTY_PATH
            call("name_to_handle_at", directory, os.fsencode(path), given, _mount_id, flags)
        except (OSError, AttributeError):
            # AttributeError if the C library lacks the function.
            continue
        return given.raw[4 : _HEAD_BYTES + int.from_bytes(given.raw[:4], byteorder)]
    return b""


def write_file(path: str, data: bytes) -> None:
    """Write to a file of the kernel by a single system call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def waiting(descriptor: int) -> int:
    """Return how many bytes can be read from a descriptor without blocking."""
    count = ioctl(descriptor, _FIONREAD, _NOTHING)
    return 0 if count == _NOTHING else int.from_bytes(count, byteorder)


def _failure(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")
