"""Makes and removes the directory that holds a sandbox's /tmp and home.

Commands see the two directories in it, never the directory itself, so they cannot lead the keeper elsewhere.
"""

from __future__ import annotations

import os
from errno import EEXIST, ENOTDIR, ENOTEMPTY
from time import monotonic

from corral._lib.nofollow import DIRECTORY, chmod_directory, make_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def make(path: str, files: Mapping[str, bytes]) -> dict[str, tuple[int, int]]:
    """Make the directory, with these files in its home. Keep what exists already, from a keeper that was killed.

    Return device and inode of each directory by its path. They stay open, so that no other directory gets the same inode.
    """
    opened: dict[str, int] = {}
    for name, mode in ((path, 0o700), ("tmp", 0o1777), ("home", 0o700)):
        above = opened.get(path)
        make_directory(name, above)
        opened[name if above is None else f"{path}/{name}"] = chmod_directory(name, above, mode)
    for name, data in files.items():
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=opened[f"{path}/home"])
        except FileExistsError:
            continue
        os.write(descriptor, data)
        os.close(descriptor)
    found = {path: os.fstat(descriptor) for path, descriptor in opened.items()}
    return {path: (status.st_dev, status.st_ino) for path, status in found.items()}


def new_scratch_path(writable: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return an unused path for one sandbox's scratch, outside of everything that commands can write."""
    from corral.containment.filesystem.temp_dirs import safe_temp_dir  # noqa: PLC0415  only hosts choose

    return f"{safe_temp_dir(writable, environ)}/corral-{os.getuid()}-{os.urandom(8).hex()}"


def remove(path: str, give_up_at: float = float("inf")) -> None:
    """Remove the directory. Stop where this user may not remove an entry, or at `give_up_at` of the monotonic clock."""
    try:
        top = os.open(path, DIRECTORY)
    except OSError:
        return
    try:
        moved = 0
        while names := os.listdir(top):
            for name in names:
                moved = remove_entry(name, top, moved)
                if monotonic() > give_up_at:
                    return
        os.rmdir(path)
    except OSError:
        return
    finally:
        os.close(top)


def remove_entry(name: str, top: int, moved: int) -> int:
    """Remove an entry of the open directory `top`. Directories inside it are first moved up into `top`.

    `moved` numbers the moved directories; the new number is returned. Recursion would fail: a command may have made a chain of
    directories too deep for a path or for the stack.
    """
    try:
        os.unlink(name, dir_fd=top)
        return moved
    except IsADirectoryError:
        os.close(chmod_directory(name, top, 0o700))
    inner = os.open(name, DIRECTORY, dir_fd=top)
    try:
        for entry in os.listdir(inner):
            try:
                os.unlink(entry, dir_fd=inner)
            except IsADirectoryError:
                os.close(chmod_directory(entry, inner, 0o700))
                moved = _move_up(entry, inner, top, moved)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _move_up(entry: str, inner: int, top: int, moved: int) -> int:
    # A command may have taken the next names.
    while True:
        moved += 1
        try:
            os.rename(entry, f"{moved}.moved", src_dir_fd=inner, dst_dir_fd=top)
            return moved
        except OSError as error:
            if error.errno not in (EEXIST, ENOTEMPTY, ENOTDIR):
                raise
