"""Copies of files and trees that are the same in all that is kept: contents, modes, times, owners, links. Shared where the disk can."""

from __future__ import annotations

import os
import stat
from errno import ENXIO
from fcntl import ioctl

from corral._lib.dirfd_tree import DirfdTree, split
from corral.containment.kernel.overlay import COPY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.transactions.workspace import Place

BLOCK_BYTES = 1 << 22
_FICLONE = 0x40049409
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OVERLAY = "user.overlay."


def copy_tree(project: str, place: Place) -> str:
    """Copy a project to a transaction's place; return `reflink` where no byte was copied, else `copy`."""
    shared, inodes = copy_all(project, f"{place.path}/{COPY}")
    how = "reflink" if shared else "copy"
    place.copied(how, inodes)
    return how


def copy_all(directory: str, target: str, *, opens: bool = False) -> tuple[bool, dict[str, tuple[int, int]]]:
    """Copy a directory and all below; return whether no byte was copied, and the inodes of each path and its copy.

    `opens` what is closed to its owner meanwhile.
    """
    os.mkdir(target, 0o700)
    shared = True
    inodes: dict[str, tuple[int, int]] = {}
    with DirfdTree(directory) as source, DirfdTree(target) as copy:
        links: dict[tuple[int, int], str] = {}
        pending = [""]
        directories = [("", os.fstat(source.descriptor))]
        while pending:
            at = pending.pop()
            for name in source.names(at):
                path = f"{at}/{name}" if at else name
                status = source.status(path)
                if status is None:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    above, last = split(path)
                    os.mkdir(last, 0o700, dir_fd=copy.directory(above))
                    if opens:
                        source.make_accessible(path, status)
                    pending.append(path)
                    directories.append((path, status))
                else:
                    shared &= copy_one(source, path, status, copy, path, links=links)
                made = copy.status(path)
                inodes[path] = status.st_ino, 0 if made is None else made.st_ino
        for path, status in reversed(directories):
            dress(copy, path, status, stat.S_IMODE(status.st_mode))
    return shared, inodes


def copy_one(
    source: DirfdTree,
    path: str,
    found: os.stat_result,
    target: DirfdTree,
    new: str,
    *,
    links: dict[tuple[int, int], str],
) -> bool:
    """Copy what is no directory; `links` are the copies by inode, so that names of one file stay so. True where no byte was copied."""
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
        shared = _copy_file(source, path, name, at)
    elif stat.S_ISLNK(found.st_mode):
        os.symlink(source.link(path), name, dir_fd=at)
    else:
        # A pipe or a socket; devices are not copied by anybody without rights to make them.
        os.mknod(name, found.st_mode, dir_fd=at)
    dress(target, new, found, stat.S_IMODE(found.st_mode))
    if found.st_nlink > 1:
        links[found.st_dev, found.st_ino] = new
    return shared


def _copy_file(source: DirfdTree, path: str, name: str, at: int) -> bool:
    given = source.open(path)
    try:
        made = os.open(name, _NEW, 0o600, dir_fd=at)
        try:
            return _copy_bytes(given, made)
        finally:
            _copy_attributes(given, made)
            os.close(made)
    finally:
        os.close(given)


def _copy_bytes(given: int, made: int) -> bool:
    try:
        ioctl(made, _FICLONE, given)
        return True
    except OSError:
        pass
    size = os.fstat(given).st_size
    os.ftruncate(made, size)
    for start, end in _written(given, size):
        _copy_range(given, made, start, end)
    return size == 0


def _written(given: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that hold something: a file of a terabyte may be one large hole."""
    at = 0
    while at < size:
        try:
            at = os.lseek(given, at, os.SEEK_DATA)
            end = os.lseek(given, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == ENXIO:
                return
            # A file system that does not tell.
            end = size
        yield at, end
        at = end


def _copy_range(given: int, made: int, start: int, end: int) -> None:
    at, is_known = start, True
    while at < end:
        if is_known:
            try:
                copied = os.copy_file_range(given, made, min(end - at, BLOCK_BYTES * 16), at, at)
            except OSError:
                # Between file systems that know no such call.
                is_known = False
                continue
        else:
            copied = os.pwrite(made, os.pread(given, min(end - at, BLOCK_BYTES), at), at)
        if not copied:
            # It was cut meanwhile.
            return
        at += copied


def _copy_attributes(given: int, made: int) -> None:
    try:
        names = [name for name in os.listxattr(given) if name.startswith("user.") and not name.startswith(_OVERLAY)]
        for name in names:
            os.setxattr(made, name, os.getxattr(given, name))
    except OSError:
        # A file system without them.
        return


def dress(tree: DirfdTree, path: str, found: os.stat_result, mode: int) -> None:
    """Give something the owner, mode and times of another."""
    above, name = split(path)
    at = tree.directory(above) if path else tree.descriptor
    if os.geteuid() == 0:
        if path:
            os.chown(name, found.st_uid, found.st_gid, dir_fd=at, follow_symlinks=False)
        else:
            os.chown(at, found.st_uid, found.st_gid)
    if not stat.S_ISLNK(found.st_mode):
        change_mode(tree, path, mode)
    times = (found.st_atime_ns, found.st_mtime_ns)
    if path:
        os.utime(name, ns=times, dir_fd=at, follow_symlinks=False)
    else:
        os.utime(at, ns=times)


def change_mode(tree: DirfdTree, path: str, mode: int) -> None:
    """Change the mode of what is no link. By its descriptor: a name could be a link by now."""
    above, name = split(path)
    if not path:
        os.chmod(tree.descriptor, mode)
        return
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=tree.directory(above))
    try:
        if not stat.S_ISLNK(os.fstat(held).st_mode):
            os.chmod(f"/proc/self/fd/{held}", mode)
    finally:
        os.close(held)
