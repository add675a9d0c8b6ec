"""The directory that holds a sandbox's /tmp and home: made by its keeper, and removed by it with whatever commands left there.

Commands see the two below it, never itself, so nothing they do can lead its keeper elsewhere.
"""

from __future__ import annotations

import os
from errno import EEXIST, ENOTDIR, ENOTEMPTY
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FOREVER = float("inf")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make(path: str, files: Mapping[str, bytes]) -> dict[str, tuple[int, int]]:
    """Make the directory with these files in its home; one that is there already, from a keeper that was killed, stays.

    Return device and inode of each directory by its path. They stay open, so that no other directory gets the same inode.
    """
    opened = {path: _made(path, None, 0o700)}
    for name, mode in (("tmp", 0o1777), ("home", 0o700)):
        opened[f"{path}/{name}"] = _made(name, opened[path], mode)
    home = opened[f"{path}/home"]
    for name, data in files.items():
        try:
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=home)
        except FileExistsError:
            continue
        os.write(descriptor, data)
        os.close(descriptor)
    found = [os.fstat(descriptor) for descriptor in opened.values()]
    return {path: (status.st_dev, status.st_ino) for path, status in zip(opened, found, strict=True)}


def make_directory(path: str, above: int | None = None) -> None:
    """Make a directory, unless something is there."""
    try:
        os.mkdir(path, 0o700, dir_fd=above)
    except FileExistsError:
        return


def _made(name: str, above: int | None, mode: int) -> int:
    """Open a directory without following a link, made where it is missing, and give it a mode."""
    make_directory(name, above)
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    os.chmod(f"/proc/self/fd/{descriptor}", mode)
    return descriptor


def new_scratch_path(writable: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return a path for a directory of one sandbox alone, where nothing that commands can write leads."""
    from corral.containment.filesystem.temp_dirs import safe_temp_dir  # noqa: PLC0415  only hosts choose

    return f"{safe_temp_dir(writable, environ)}/corral-{os.getuid()}-{os.urandom(8).hex()}"


def remove(path: str, give_up_at: float = _FOREVER) -> None:
    """Remove the directory when nobody uses it any more; what this user cannot remove, or not in time, stays behind."""
    try:
        top = os.open(path, _DIRECTORY)
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
    """Remove an entry of the top; directories in it become entries of the top themselves."""
    # A command may have made a chain of directories too deep for a path or a stack.
    try:
        os.unlink(name, dir_fd=top)
        return moved
    except IsADirectoryError:
        _open_up(name, top)
    inner = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        for entry in os.listdir(inner):
            try:
                os.unlink(entry, dir_fd=inner)
            except IsADirectoryError:
                _open_up(entry, inner)
                moved = _move_up(entry, inner, top, moved)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _move_up(entry: str, inner: int, top: int, moved: int) -> int:
    """Make a directory an entry of the top, under the next free name: a command may have taken those that come next."""
    while True:
        moved += 1
        try:
            os.rename(entry, f"{moved}.moved", src_dir_fd=inner, dst_dir_fd=top)
            return moved
        except OSError as error:
            if error.errno not in (EEXIST, ENOTEMPTY, ENOTDIR):
                raise


def _open_up(name: str, safe_temp_dir: int) -> None:
    """Give the owner all rights to a directory. Not by its name: a process that is still dying may make that a link."""
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=safe_temp_dir)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)
