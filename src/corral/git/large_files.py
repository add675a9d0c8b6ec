"""Copies the objects of Git LFS that a command stored to the user's store. The name of each is the SHA-256 of its content."""

from __future__ import annotations

import os
from _hashlib import openssl_sha256
from time import monotonic, time

from corral._lib.lazy_regex import pattern
from corral._lib.nofollow import NEW_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.git.safe_files import SafeTree

MAX_FILE_BYTES = 1 << 33
MAX_SECONDS = 120.0  # of one comparison
KEPT_SECONDS = 60.0
MAX_REFUSED = 1000  # files that are remembered
_NO_SPACE = "the disk has too little space"
_STORE = "lfs/objects"
_NAME = pattern(r"lfs/objects/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})\Z")


def copy_large_files(private: SafeTree, user_dir: str, refused: dict[str, list[int]]) -> list[str]:
    """Copy the objects that the user does not have. Return a note for each that is not what its name says.

    These are added to `refused`, and not read again until they change: a file without data on the disk can have any size.
    """
    notes = []
    give_up_at = monotonic() + MAX_SECONDS
    for path, found in private.files(_STORE):
        named = _NAME.match(path)
        if named is None:
            continue
        if monotonic() > give_up_at:
            # The next comparison goes on.
            break
        if os.path.lexists(f"{user_dir}/{path}"):
            # A git-lfs that starts now finds it in the user's store. One that runs already may not look there.
            if time() - found.st_mtime > KEPT_SECONDS:
                private.remove(path)
        elif refused.get(path) == (signature := [found.st_ino, found.st_size, found.st_mtime_ns]):
            continue
        elif why := _why_not(private, path, found.st_size, user_dir) or _copy(private, path, user_dir, named[3]):
            notes.append(f"the LFS object {named[3][:12]} stays in the sandbox: {why}")
            if len(refused) < MAX_REFUSED and why != _NO_SPACE:
                refused[path] = signature
    return notes


def _why_not(private: SafeTree, path: str, size: int, user_dir: str) -> str:
    """Return why a file is not even read, or "". A command can make files of any size that take no space, and the copies would take it."""
    if size > MAX_FILE_BYTES:
        return f"it has more than {MAX_FILE_BYTES >> 30} GiB"
    descriptor = private.open(path)
    try:
        if size and os.lseek(descriptor, 0, os.SEEK_HOLE) < size:
            return "its file has holes"
    finally:
        os.close(descriptor)
    free = os.statvfs(user_dir)
    return _NO_SPACE if size > free.f_bavail * free.f_frsize // 2 else ""


def _copy(private: SafeTree, path: str, user_dir: str, name: str) -> str:
    """Copy a file. Return why it was not, or ""."""
    target = f"{user_dir}/{path}"
    digest = openssl_sha256(usedforsecurity=False)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    partial = f"{os.path.dirname(target)}/.corral-{os.urandom(6).hex()}"
    try:
        with open(private.open(path), "rb") as source, open(os.open(partial, NEW_FILE, 0o644), "wb") as file:
            while (data := source.read(1 << 20)) and file.tell() <= MAX_FILE_BYTES:
                digest.update(data)
                file.write(data)
        if digest.hexdigest() != name:
            os.unlink(partial)
            return "its content is not what its name says"
    except BaseException:
        if os.path.lexists(partial):
            os.unlink(partial)
        raise
    os.rename(partial, target)
    return ""
