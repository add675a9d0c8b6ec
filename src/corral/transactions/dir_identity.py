"""What tells a directory from any other that may come to lie at its path: a name alone does not, and an inode is used again."""

from __future__ import annotations

import os

from corral.containment.kernel.syscalls import handle


def identity(descriptor: int) -> str:
    """Return the identity of an open directory: its inode, and where the file system gives one the handle that no later inode has."""
    inode = os.fstat(descriptor).st_ino
    known = handle("", descriptor)
    return f"{inode:x}-{known.hex()}" if known else f"{inode:x}"
