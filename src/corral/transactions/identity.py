"""What tells a directory from any other that may come to lie at its path: a name alone does not, and an inode is used again."""

from __future__ import annotations

import ctypes
import os
from sys import byteorder

from corral.containment.kernel import call

_AT_EMPTY_PATH = 0x1000
_MAX_HANDLE_BYTES = 128
_HEAD_BYTES = 8  # its size and its kind


def identity(descriptor: int) -> str:
    """Return the identity of an open directory: its inode, and where the file system gives one the handle that no later inode has."""
    inode = os.fstat(descriptor).st_ino
    size = _MAX_HANDLE_BYTES.to_bytes(4, byteorder)
    handle = ctypes.create_string_buffer(size, _HEAD_BYTES + _MAX_HANDLE_BYTES)
    try:
        call("name_to_handle_at", descriptor, b"", handle, ctypes.create_string_buffer(4), _AT_EMPTY_PATH)
    except (OSError, AttributeError):
        # A file system or a C library that knows none.
        return f"{inode:x}"
    end = _HEAD_BYTES + int.from_bytes(handle.raw[:4], byteorder)
    return f"{inode:x}-{handle.raw[4:end].hex()}"
