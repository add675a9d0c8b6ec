"""What an index of git says, without what it remembers of the files' times: `git status` alone writes that anew.

Total: what is no plain index gives nothing, and is then compared as any file.
"""

from __future__ import annotations

import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from corral._lib.dirfd_tree import DirfdTree

MAX_BYTES = 1 << 26
_HEAD_BYTES = 12  # before the entries
_MODE_AT = 24  # in an entry; before it stand times and numbers of the file, behind it owners and size
_SAID_AT = 40  # what it says of the contents, the flags and the name
_NAME_AT = 62
_HASH_BYTES = 20
_EXTENDED = 0x4000
_VERSIONS = (2, 3)


def said_by(tree: DirfdTree, path: str, found: os.stat_result) -> bytes:
    """Return what the index at a path says: modes, contents, flags and names; nothing where it is none."""
    if not f"/{path}".endswith("/.git/index") or not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
        return b""
    try:
        descriptor = tree.open(path)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        return parsed(file.read(MAX_BYTES + 1))


def parsed(data: bytes) -> bytes:
    """Return what the bytes of an index say."""
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in _VERSIONS:
        return b""
    said, at = [data[:_HEAD_BYTES]], _HEAD_BYTES
    for _ in range(count):
        flags = int.from_bytes(data[at + 60 : at + 62], "big")
        start = at + _NAME_AT + (2 if flags & _EXTENDED else 0)
        end = data.find(b"\0", start)
        after = at + (end - at) // 8 * 8 + 8
        if end < 0 or after > len(data) or data[end:after].strip(b"\0"):
            return b""
        said.append(data[at + _MODE_AT : at + _MODE_AT + 4] + data[at + _SAID_AT : end])
        at = after
    while at < len(data) - _HASH_BYTES:
        # An extension in small letters is one that changes what the entries mean.
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "big")
        if not name.isalpha() or not name[:1].isupper():
            return b""
        at += 8 + size
    return b"\0".join(said) if at == len(data) - _HASH_BYTES else b""
