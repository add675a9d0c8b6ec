"""Finds files of a project that have other names outside it, and replaces them by copies of the project's own.

pnpm, bun, uv and conda make packages from hard links into a store. If a command wrote such a file in place, it would change the store and
every project that uses it. Where there is too much to copy, commands see the directory read-only.
"""

from __future__ import annotations

import os
import stat

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral._lib.dirfd_tree import DirfdTree

MAX_LOOKED_AT = 4_000  # files, about 10 ms; in a larger project only SAMPLED files of each further directory
SAMPLED = 1  # package managers link all files of a package
MAX_COPIED_FILES = 20_000  # about two seconds, once
MAX_COPIED_BYTES = 256 << 20  # unless the file system shares the blocks
MAX_WALKED = 500_000  # files with several names, against a tree that exhausts the host's memory
MAX_TREES = 64  # mounts; with more, the directories above them are read-only
_GIT = ".git"  # has its own protection
# A package manager links the files below these. Beside the first two it keeps caches, which stay writable.
_INNER_TREES = (".pnpm", "site-packages")
_TREES = ("node_modules", ".venv", "venv", "env", ".conda", "target", "vendor")
_FICLONE = 0x40049409
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SET_ID = stat.S_ISUID | stat.S_ISGID


@frozen
class Survey(Record):
    """The shared files of a project: their number, their size, and the directories that hold them."""

    files: int = 0
    size: int = 0
    trees: tuple[str, ...] = ()


class LinkSampler:
    """Looks at the files of directories that are listed anyway, and notes those with several names."""

    def __init__(self, limit: int | None = None) -> None:
        self.found: list[str] = []
        self._left = MAX_LOOKED_AT if limit is None else limit

    def note(self, entries: Iterable[os.DirEntry[str]]) -> None:
        """Look at the files of one directory, or at a few of them."""
        left = max(self._left, SAMPLED)
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                try:
                    names = entry.stat(follow_symlinks=False).st_nlink
                except OSError:
                    continue  # removed meanwhile
                if names > 1:
                    self.found.append(entry.path)
                left -= 1
                self._left -= 1
                if left <= 0:
                    return


def make_own_copies(root: str, found: Iterable[str]) -> tuple[str, ...]:
    """Copy the files that the project shares with others. Return the directories that must be read-only, because that is not possible."""
    shared = {tree: files for tree in _trees(root, found) if (files := _shared_below(tree))}
    if sum(map(len, shared.values())) > MAX_COPIED_FILES:
        return tuple(shared)
    from corral._lib.dirfd_tree import DirfdTree  # noqa: PLC0415  most projects share no file

    readonly = []
    with DirfdTree(root, opens_files=False) as project:
        left = _bytes_to_copy(project)
        for tree, files in shared.items():
            is_too_large = sum(size for _, size in files) > left
            for path, _ in files:
                try:
                    copied = _copy(project, os.path.relpath(path, root), left)
                except OSError:
                    copied = None
                # The first file shows whether the file system shares blocks, so that nothing is written.
                if copied is None or (copied and is_too_large):
                    readonly.append(tree)
                    break
                left -= copied
    return tuple(readonly)


def survey(root: str) -> Survey:
    """Look at all files of a project. This takes long for a large one."""
    sampler = LinkSampler(MAX_WALKED)
    for entries in _walk(root):
        sampler.note(entries)
    trees = _trees(root, sampler.found)
    paths = {path: size for tree in trees for path, size in _shared_below(tree)}
    kept = tuple(tree for tree in trees if any(path == tree or path.startswith(f"{tree}/") for path in paths))
    return Survey(len(paths), sum(paths.values()), kept)


def _trees(root: str, found: Iterable[str]) -> tuple[str, ...]:
    """Return the directories to look at for files that were found, without those inside another."""
    tops = {_tree_of(root, path) for path in found}
    if len(tops) > MAX_TREES:
        tops = {"/".join(top.split("/")[: root.count("/") + 2]) for top in tops}
    kept: list[str] = []
    for top in sorted(tops):
        if not any(top.startswith(f"{other}/") for other in kept):
            kept.append(top)
    return tuple(kept)


def _tree_of(root: str, path: str) -> str:
    *parts, _ = path[len(root) + 1 :].split("/")
    for names in (_INNER_TREES, _TREES):
        for number, part in enumerate(parts, 1):
            if part in names:
                return "/".join((root, *parts[:number]))
    # A file beside everything else is a tree of its own, so that the whole project is never read-only.
    return "/".join((root, *parts)) if parts else path


def _shared_below(tree: str) -> list[tuple[str, int]]:
    """Return path and size of the files below a directory that have more names than those below it."""
    names: dict[tuple[int, int], list[str]] = {}
    facts: dict[tuple[int, int], os.stat_result] = {}
    for entry in _files(tree):
        try:
            status = entry.stat(follow_symlinks=False) if isinstance(entry, os.DirEntry) else os.lstat(entry)
        except OSError:
            continue
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
            key = status.st_dev, status.st_ino
            names.setdefault(key, []).append(os.fspath(entry))
            facts[key] = status
            if len(names) > MAX_WALKED:
                break  # the other names are taken to lie outside
    return [
        (path, facts[key].st_size) for key, paths in names.items() if len(paths) < facts[key].st_nlink for path in paths
    ]


def _files(tree: str) -> Iterator[os.DirEntry[str] | str]:
    if not os.path.isdir(tree):
        yield tree
        return
    for entries in _walk(tree):
        yield from (entry for entry in entries if entry.is_file(follow_symlinks=False))


def _walk(top: str) -> Iterator[list[os.DirEntry[str]]]:
    pending = [top]
    while pending:
        path = pending.pop()
        try:
            with os.scandir(path) as entries:
                listed = list(entries)
        except OSError:
            continue
        pending += [each.path for each in listed if each.name != _GIT and each.is_dir(follow_symlinks=False)]
        yield listed


def _bytes_to_copy(project: DirfdTree) -> int:
    """Return how many bytes may be copied: at most a tenth of what is free."""
    free = os.fstatvfs(project.descriptor)
    return min(MAX_COPIED_BYTES, free.f_bavail * free.f_frsize // 10)


def _copy(project: DirfdTree, path: str, left: int) -> int | None:
    """Replace a file by a copy, and return the bytes that were written. None if it cannot be replaced by an equal one.

    Works by descriptor: a command of another sandbox may put links in the way.
    """
    above, _, name = path.rpartition("/")
    source = project.open(path)
    new = f".corral-{os.urandom(8).hex()}"
    try:
        before = os.fstat(source)
        if before.st_nlink == 1:
            return 0  # another process was faster
        if before.st_mode & _SET_ID:
            return None
        directory = project.directory(above)
        target = os.open(new, _NEW, 0o600, dir_fd=directory)
        try:
            written = _copy_content(source, target, before.st_size, left)
            if written is not None:
                _copy_metadata(source, target, before)
            after = os.fstat(source)
            is_same = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
            if written is None or not is_same:
                os.unlink(new, dir_fd=directory)
                return None
            os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            os.unlink(new, dir_fd=directory)
            raise
        finally:
            os.close(target)
    finally:
        os.close(source)
    return written


def _copy_content(source: int, target: int, size: int, left: int) -> int | None:
    from fcntl import ioctl  # noqa: PLC0415  as above

    try:
        ioctl(target, _FICLONE, source)
    except OSError:
        # The file system does not share blocks.
        if size > left:
            return None
        at = 0
        while at < size:
            count = os.copy_file_range(source, target, size - at, at, at)
            if not count:
                return None
            at += count
        return size
    return 0


def _copy_metadata(source: int, target: int, status: os.stat_result) -> None:
    for name in os.listxattr(source):
        if not name.startswith("security."):
            os.setxattr(target, name, os.getxattr(source, name))
    made = os.fstat(target)
    if (status.st_uid, status.st_gid) != (made.st_uid, made.st_gid):
        os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
