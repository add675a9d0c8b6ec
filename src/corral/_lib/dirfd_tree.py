"""Reads and changes a directory tree through descriptors only. No symbolic link is followed, even if one is swapped in meanwhile."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from errno import ELOOP, ENOTDIR

from corral._lib.nofollow import chmod_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # opening a named pipe must not block
_ALL_RIGHTS = 0o700


def disk_usage(path: str) -> int:
    """Return the disk space of a directory in bytes, without subdirectories that this user cannot read."""
    found, pending = 0, [""]
    with DirfdTree(path) as tree:
        while pending:
            at = pending.pop()
            try:
                for name in tree.names(at):
                    inner = f"{at}/{name}" if at else name
                    status = tree.status(inner)
                    found += 0 if status is None else status.st_blocks * 512
                    if status is not None and stat.S_ISDIR(status.st_mode):
                        pending.append(inner)
            except OSError:
                continue
    return found


def split(path: str) -> tuple[str, str]:
    """Return the directory part and the last name of a relative path."""
    above, _, name = path.rpartition("/")
    return above, name


@contextmanager
def _opened(name: str, directory: int, flags: int = os.O_NOFOLLOW | os.O_CLOEXEC) -> Iterator[tuple[int, str]]:
    """Open a path without read or write access. Yield its descriptor and a path for calls that take no such descriptor."""
    held = os.open(name, os.O_PATH | flags, dir_fd=directory)
    try:
        yield held, f"/proc/self/fd/{held}"
    finally:
        os.close(held)


class DirfdTree:
    """A directory and everything below it. Paths are relative to it, without dots; the empty path is the directory itself."""

    def __init__(self, path: str, *, opens_files: bool = True) -> None:
        self.path = path
        self._opens_files = (
            opens_files  # change the mode of unreadable files for a moment, which other processes can see
        )
        self.descriptor = os.open(path, os.O_RDONLY | _DIRECTORY)
        self._cached: tuple[str, int] = ("", self.descriptor)  # the last directory that was opened
        self.modes: dict[str, int] = {}  # original modes of directories that were made accessible

    def directory(self, path: str) -> int:
        """Return a descriptor of a directory, which this tree closes. Raise NotADirectoryError where a link is in the path."""
        known, descriptor = self._cached
        if path != known or not path:
            self.forget()
            if not path:
                return self.descriptor
            self._cached = (path, self._open(path, os.O_RDONLY))
            descriptor = self._cached[1]
        return descriptor

    def _open(self, path: str, flags: int) -> int:
        at, opened = self.descriptor, -1
        parts = path.split("/")
        for number, part in enumerate(parts, 1):
            try:
                inner = os.open(part, (flags if number == len(parts) else os.O_PATH) | _DIRECTORY, dir_fd=at)
            except OSError as error:
                if error.errno == ELOOP:
                    raise NotADirectoryError(ENOTDIR, "a symbolic link is in the path", path) from None
                raise
            finally:
                if opened >= 0:
                    os.close(opened)
            at = opened = inner
        return opened

    def status(self, path: str) -> os.stat_result | None:
        """Return the status of a path, or None where it does not exist."""
        if not path:
            return os.fstat(self.descriptor)
        above, name = split(path)
        try:
            return os.stat(name, dir_fd=self.directory(above), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            if not self._make_parents_accessible(above):
                raise
        self.forget()
        return self.status(path)

    def _make_parents_accessible(self, path: str) -> bool:
        """Make a directory and those above it accessible. Return whether that changed any mode."""
        before = len(self.modes)
        parts = path.split("/")
        for number in range(1, len(parts) + 1):
            at = "/".join(parts[:number])
            found = self.status(at)
            if found is None or not stat.S_ISDIR(found.st_mode):
                return False
            self.make_accessible(at, found)
        return len(self.modes) > before

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(self.directory(path)))

    def make_accessible(self, path: str, found: os.stat_result) -> None:
        """Give this user all rights to a directory that a command has made inaccessible. `close` restores the mode."""
        mode = stat.S_IMODE(found.st_mode)
        if mode & _ALL_RIGHTS == _ALL_RIGHTS or os.geteuid() == 0 or not path:
            return
        above, name = split(path)
        os.close(chmod_directory(name, self.directory(above), mode | _ALL_RIGHTS))
        self.modes[path] = mode

    def mode(self, path: str, found: os.stat_result) -> int:
        """Return the original mode of a file or directory."""
        return self.modes.get(path, stat.S_IMODE(found.st_mode))

    def link(self, path: str) -> str:
        """Return the target of a symbolic link."""
        above, name = split(path)
        return os.readlink(name, dir_fd=self.directory(above))

    def open(self, path: str) -> int:
        """Open a regular file for reading, also one whose mode does not allow that."""
        above, name = split(path)
        at = self.directory(above)
        try:
            descriptor = os.open(name, READ, dir_fd=at)
        except PermissionError:
            if not self._opens_files:
                raise
            with _opened(name, at) as (held, link):
                mode = stat.S_IMODE(os.fstat(held).st_mode)
                os.chmod(link, mode | 0o400)
                try:
                    descriptor = os.open(name, READ, dir_fd=at)
                finally:
                    os.chmod(link, mode)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(ELOOP, "it is not a regular file", path)
        return descriptor

    def attribute(self, path: str, name: str) -> bytes:
        """Return an extended attribute of a directory, empty where it has none."""
        held = self._open(path, os.O_PATH) if path else os.dup(self.descriptor)
        try:
            return os.getxattr(f"/proc/self/fd/{held}", name)
        except OSError:
            return b""
        finally:
            os.close(held)

    def has_xattr(self, path: str, name: str) -> bool:
        """Return whether a file or directory has an extended attribute."""
        above, last = split(path)
        with _opened(last, self.directory(above)) as (held, link):
            try:
                kind = stat.S_IFMT(os.fstat(held).st_mode)
                return kind in (stat.S_IFREG, stat.S_IFDIR) and name in os.listxattr(link)
            except OSError:
                return False

    def forget(self) -> None:
        """Close the cached directory. After a rename, its path may be another directory."""
        if self._cached[1] != self.descriptor:
            os.close(self._cached[1])
        self._cached = ("", self.descriptor)

    def close(self) -> None:
        """Restore the modes of directories and close all descriptors."""
        if self.descriptor < 0:
            return
        # The deepest first: the others must stay accessible until then.
        for path in sorted(self.modes, reverse=True):
            above, name = split(path)
            try:
                directory = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=self.directory(above))
            except OSError:
                # The directory was moved or removed.
                continue
            os.chmod(f"/proc/self/fd/{directory}", self.modes[path])
            os.close(directory)
        self.forget()
        os.close(self.descriptor)
        self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
