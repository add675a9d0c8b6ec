"""Copies files and trees with contents, modes, times, owners and links. Shares blocks where the file system supports it."""

from __future__ import annotations

import os
import stat
from fcntl import ioctl

from corral._lib.dirfd_tree import DirfdTree, split
from corral.containment.kernel.overlay import COPY
from corral.transactions.scan import next_data, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from corral.transactions.workspace import Place

BLOCK_BYTES = 1 << 22
OVERLAY_XATTRS = "user.overlay."
_FICLONE = 0x40049409
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_tree(project: str, place: Place) -> None:
    """Copy a project to a transaction's directory, and note whether blocks are shared."""
    shared, inodes = copy_all(project, f"{place.path}/{COPY}")
    place.copied("reflink" if shared else "copy", inodes)


def copy_all(directory: str, target: str, *, opens: bool = False) -> tuple[bool, dict[str, tuple[int, int]]]:
    """Copy a directory and everything below. Return whether all blocks are shared, and both inodes of each path.

    `opens` makes directories that their user cannot read accessible during the copy.
    """
    os.mkdir(target, 0o700)
    shared = True
    inodes: dict[str, tuple[int, int]] = {}
    links: dict[tuple[int, int], str] = {}
    directories = []
    with DirfdTree(directory) as source, DirfdTree(target) as copy:
        for path, status in walk(source, "", opens=opens):
            if stat.S_ISDIR(status.st_mode):
                directories.append((path, status))
                if not path:
                    continue
                above, name = split(path)
                os.mkdir(name, 0o700, dir_fd=copy.directory(above))
            else:
                shared &= copy_file(source, path, status, copy, path, links=links)
            made = copy.status(path)
            inodes[path] = status.st_ino, 0 if made is None else made.st_ino
        # The deepest first: adding an entry changes the directory's times.
        for path, status in reversed(directories):
            copy_metadata(copy, path, status, stat.S_IMODE(status.st_mode))
    return shared, inodes


def copy_file(
    source: DirfdTree,
    path: str,
    found: os.stat_result,
    target: DirfdTree,
    new: str,
    *,
    links: dict[tuple[int, int], str],
) -> bool:
    """Copy anything but a directory, and return whether all blocks are shared. `links` maps inodes to copies, to keep hard links."""
    above, name = split(new)
    at = target.directory(above)
    known = links.get((found.st_dev, found.st_ino)) if found.st_nlink > 1 else None
    if known is not None:
        known_above, known_name = split(known)
        with DirfdTree(target.path) as again:
            os.link(known_name, name, src_dir_fd=again.directory(known_above), dst_dir_fd=at, follow_symlinks=False)
        return True
    shared = True
    if stat.S_ISREG(found.st_mode):
        with open(source.open(path), "rb", 0) as file, open(os.open(name, _NEW, 0o600, dir_fd=at), "wb", 0) as copy:
            shared = _copy_bytes(file.fileno(), copy.fileno())
            _copy_xattrs(file.fileno(), copy.fileno())
    elif stat.S_ISLNK(found.st_mode):
        os.symlink(source.link(path), name, dir_fd=at)
    else:
        # A pipe or a socket. For a device, mknod fails without the right to make one.
        os.mknod(name, found.st_mode, dir_fd=at)
    copy_metadata(target, new, found, stat.S_IMODE(found.st_mode))
    if found.st_nlink > 1:
        links[found.st_dev, found.st_ino] = new
    return shared


def _copy_bytes(source: int, target: int) -> bool:
    try:
        ioctl(target, _FICLONE, source)
        return True
    except OSError:
        pass
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    for start, end in _data_ranges(source, size):
        _copy_range(source, target, start, end)
    return size == 0


def _data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that are not holes: a file of a terabyte may be one large hole."""
    at = 0
    while (at := next_data(descriptor, at, size)) < size:
        try:
            end = os.lseek(descriptor, at, os.SEEK_HOLE)
        except OSError:
            # The file system cannot tell.
            end = size
        yield at, end
        at = end


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    at, is_supported = start, True
    while at < end:
        if is_supported:
            try:
                copied = os.copy_file_range(source, target, min(end - at, BLOCK_BYTES * 16), at, at)
            except OSError:
                # For example between two file systems.
                is_supported = False
                continue
        else:
            copied = os.pwrite(target, os.pread(source, min(end - at, BLOCK_BYTES), at), at)
        if not copied:
            # The file was truncated meanwhile.
            return
        at += copied


def _copy_xattrs(source: int, target: int) -> None:
    try:
        for name in os.listxattr(source):
            if name.startswith("user.") and not name.startswith(OVERLAY_XATTRS):
                os.setxattr(target, name, os.getxattr(source, name))
    except OSError:
        # A file system without extended attributes.
        return


def copy_metadata(tree: DirfdTree, path: str, found: os.stat_result, mode: int) -> None:
    """Copy owner and times from a status, and set a mode."""
    times_ns = found.st_atime_ns, found.st_mtime_ns
    set_metadata(tree, path, (found.st_uid, found.st_gid), None if stat.S_ISLNK(found.st_mode) else mode, times_ns)


def set_metadata(
    tree: DirfdTree, path: str, owner: tuple[int, int] | None, mode: int | None, times_ns: tuple[int, int]
) -> None:
    """Set owner, mode and times of a file; None keeps the present one. Only root sets owners."""
    above, name = split(path)
    at = tree.directory(above)
    # The root is named by its descriptor: "." would need permission to search it.
    where: dict[str, Any] = {"dir_fd": at, "follow_symlinks": False} if path else {}
    target = name if path else at
    if owner is not None and os.geteuid() == 0:
        os.chown(target, *owner, **where)
    if mode is not None:
        change_mode(tree, path, mode)
    os.utime(target, ns=times_ns, **where)


def change_mode(tree: DirfdTree, path: str, mode: int) -> None:
    """Change a mode by descriptor, because a symbolic link may have replaced the file. A link is left alone."""
    above, name = split(path)
    if not path:
        os.chmod(tree.descriptor, mode)
        return
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=tree.directory(above))
    try:
        if not stat.S_ISLNK(os.fstat(held).st_mode):
            os.chmod(f"/proc/self/fd/{held}", mode)
            # When the tree is closed, it must not restore the mode from before it made the directory accessible.
            tree.modes.pop(path, None)
    finally:
        os.close(held)
