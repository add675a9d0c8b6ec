"""Parses the entries of a git index without the cached file times, which `git status` rewrites.

Total: data that is not a plain index gives no bytes, and is then compared like any other file.
"""

from __future__ import annotations

import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from corral._lib.dirfd_tree import DirfdTree

MAX_BYTES = 1 << 26
_HEAD_BYTES = 12  # before the entries
_MODE_AT = 24  # offset in an entry; times, device and inode come before it, owner and size after it
_HASH_AT = 40  # offset of the object's hash, which flags and name follow
_NAME_AT = 62
_HASH_BYTES = 20
_EXTENDED = 0x4000
_VERSIONS = (2, 3)


def read_entries(tree: DirfdTree, path: str, found: os.stat_result) -> bytes:
    """Return the entries of the index at a path, or no bytes if the path is not a git index."""
    if not f"/{path}".endswith("/.git/index") or not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
        return b""
    try:
        descriptor = tree.open(path)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        return parse_entries(file.read(MAX_BYTES + 1))


def parse_entries(data: bytes) -> bytes:
    """Return modes, hashes, flags and names of an index."""
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in _VERSIONS:
        return b""
    entries, at = [data[:_HEAD_BYTES]], _HEAD_BYTES
    for _ in range(count):
        flags = int.from_bytes(data[at + 60 : at + 62], "big")
        start = at + _NAME_AT + (2 if flags & _EXTENDED else 0)
        end = data.find(b"\0", start)
        after = at + (end - at) // 8 * 8 + 8
        if end < 0 or after > len(data) or data[end:after].strip(b"\0"):
            return b""
        entries.append(data[at + _MODE_AT : at + _MODE_AT + 4] + data[at + _HASH_AT : end])
        at = after
    while at < len(data) - _HASH_BYTES:
        # An extension whose name begins with a small letter changes the meaning of the entries.
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "big")
        if not name.isalpha() or not name[:1].isupper():
            return b""
        at += 8 + size
    return b"\0".join(entries) if at == len(data) - _HASH_BYTES else b""
