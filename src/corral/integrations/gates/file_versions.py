"""The version of a file: a hash of what it holds, so that a touch is no change and a change within one tick of the clock is one."""

from __future__ import annotations

import os
import stat
from hashlib import sha256

from corral.integrations.gates.recency import ABSENT
from corral.model.errors import PolicyError

READ_BYTES = 1024 * 1024
MAX_HASHED_BYTES = 16 * 1024 * 1024  # of a larger file, size and times must do: hashing would hold up every call


class FileStates:
    """Versions of files by their paths, which are relative to one directory. Links are followed; nothing raises for a path."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.realpath(os.fspath(root))
        if not os.path.isdir(self._root):
            # In it nothing would ever be there, and so nothing stale.
            raise PolicyError(f"{self._root!r} is not an existing directory; name the one that paths are relative to")

    def key_of(self, path: str) -> str:
        """Return the one name of a file, whichever way it was written."""
        try:
            return os.path.realpath(os.path.join(self._root, path))
        except ValueError:  # a NUL
            return path

    def __call__(self, path: str) -> str:
        """Return the version of a file; `ABSENT` where there is none, and the same text for all that is no regular file."""
        try:
            # O_NONBLOCK: a named pipe would wait for its other end.
            descriptor = os.open(
                os.path.join(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return ABSENT
        except OSError as error:
            return f"unreadable:{error.errno}"
        try:
            return _version(descriptor)
        except OSError as error:
            return f"unreadable:{error.errno}"
        finally:
            os.close(descriptor)


def _version(descriptor: int) -> str:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        return f"special:{stat.S_IFMT(facts.st_mode):o}"
    digest, read = sha256(), 0
    while read <= MAX_HASHED_BYTES >= facts.st_size:
        data = os.read(descriptor, READ_BYTES)
        if not data:
            return version_of_bytes(digest.digest())
        digest.update(data)
        read += len(data)
    return f"stat:{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ctime_ns}"


def version_of_bytes(digest: bytes) -> str:
    """Return the version of a file that holds what this is the SHA-256 of."""
    return f"sha256:{digest.hex()}"
