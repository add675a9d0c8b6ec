"""Wraps renameat2(2). A transaction changes a project only by these renames, and none of them overwrites a file."""

from __future__ import annotations

import os
from errno import EINVAL, ENOSYS, ENOTSUP

from corral._lib.dirfd_tree import split
from corral.containment.kernel.syscalls import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral._lib.dirfd_tree import DirfdTree

_NOREPLACE, _EXCHANGE = 1, 2
_UNSUPPORTED = (EINVAL, ENOSYS, ENOTSUP)


def move(source: DirfdTree, path: str, target: DirfdTree, new: str) -> None:
    """Move a file or directory to a new path. Raise FileExistsError if the new path exists."""
    _rename(source, path, target, new, _NOREPLACE)


def exchange(source: DirfdTree, path: str, target: DirfdTree, new: str) -> None:
    """Exchange two files or directories atomically."""
    _rename(source, path, target, new, _EXCHANGE)


def _rename(source: DirfdTree, path: str, target: DirfdTree, new: str, flags: int) -> None:
    (from_above, from_name), (to_above, to_name) = split(path), split(new)
    names = os.fsencode(from_name), os.fsencode(to_name)
    try:
        syscall("renameat2", source.directory(from_above), names[0], target.directory(to_above), names[1], flags)
    finally:
        source.forget()
        target.forget()


def can_exchange(tree: DirfdTree) -> bool:
    """Return whether the file system supports RENAME_EXCHANGE. NFS, for example, does not."""
    names = ".exchange-0", ".exchange-1"
    for name in names:
        os.mkdir(name, 0o700, dir_fd=tree.descriptor)
    try:
        exchange(tree, names[0], tree, names[1])
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    finally:
        for name in names:
            os.rmdir(name, dir_fd=tree.descriptor)
    return True


def mount_of(descriptor: int) -> tuple[int, str]:
    """Return device and mount id of an open file. rename(2) works only within one mount."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
    return os.fstat(descriptor).st_dev, mount
