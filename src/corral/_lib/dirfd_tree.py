"""A tree that is read and changed by descriptor only: no link in it is ever followed, whoever swaps it in meanwhile."""

from __future__ import annotations

import os
import stat
from errno import ELOOP, ENOTDIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
)  # a named pipe would wait for its other end
_ALL_RIGHTS = 0o700


def disk_usage(path: str) -> int:
    """Return how many bytes of the disk a directory takes, as far as this user may look."""
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
    """Return the directory of a path below a root, and the name in it."""
    above, _, name = path.rpartition("/")
    return above, name


class DirfdTree:
    """A directory and all below it. A path is relative to it, without dots; the empty one is the directory itself."""

    def __init__(self, path: str, *, opens_files: bool = True) -> None:
        self.path = path
        self._opens_files = opens_files  # that are closed to their owner; that is a change of theirs which others see
        self.descriptor = os.open(path, os.O_RDONLY | _DIRECTORY)
        self._above: tuple[str, int] = ("", self.descriptor)  # the directory that was asked for last
        self.modes: dict[str, int] = {}  # of directories that were opened up

    def directory(self, path: str) -> int:
        """Return a descriptor of a directory, which is this tree's to close; NotADirectoryError where a link is in the way."""
        known, descriptor = self._above
        if path != known or not path:
            self.forget()
            if not path:
                return self.descriptor
            self._above = (path, self._open(path, os.O_RDONLY))
            descriptor = self._above[1]
        return descriptor

    def _open(self, path: str, flags: int) -> int:
        at, opened = self.descriptor, -1
        parts = path.split("/")
        for number, part in enumerate(parts, 1):
            way = flags if number == len(parts) else os.O_PATH
            try:
                inner = os.open(part, way | _DIRECTORY, dir_fd=at)
            except OSError as error:
                if error.errno == ELOOP:
                    raise NotADirectoryError(ENOTDIR, "a link is in the way", path) from None
                raise
            finally:
                if opened >= 0:
                    os.close(opened)
            at = opened = inner
        return opened

    def status(self, path: str) -> os.stat_result | None:
        """Return what lies at a path, or None where nothing does or no directory leads there."""
        if not path:
            return os.fstat(self.descriptor)
        above, name = split(path)
        try:
            return os.stat(name, dir_fd=self.directory(above), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            if not self._open_way(above):
                raise
        self.forget()
        return self.status(path)

    def _open_way(self, path: str) -> bool:
        """Open what is closed to its owner of a directory and those above it; false where that is not what keeps one out."""
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
        """Return the names in a directory, in order."""
        return sorted(os.listdir(self.directory(path)))

    def make_accessible(self, path: str, found: os.stat_result) -> None:
        """Open a directory of this user's that a command has closed to its owner, until this tree is let go of."""
        mode = stat.S_IMODE(found.st_mode)
        if mode & _ALL_RIGHTS == _ALL_RIGHTS or os.geteuid() == 0 or not path:
            return
        above, name = split(path)
        held = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=self.directory(above))
        try:
            os.chmod(f"/proc/self/fd/{held}", mode | _ALL_RIGHTS)
        finally:
            os.close(held)
        self.modes[path] = mode

    def mode(self, path: str, found: os.stat_result) -> int:
        """Return the mode that something has for everybody else."""
        return self.modes.get(path, stat.S_IMODE(found.st_mode))

    def link(self, path: str) -> str:
        """Return the text of a symbolic link."""
        above, name = split(path)
        return os.readlink(name, dir_fd=self.directory(above))

    def open(self, path: str) -> int:
        """Open a regular file to read; one that its owner has closed is opened for this."""
        above, name = split(path)
        at = self.directory(above)
        try:
            descriptor = os.open(name, READ, dir_fd=at)
        except PermissionError:
            if not self._opens_files:
                raise
            held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            try:
                mode = stat.S_IMODE(os.fstat(held).st_mode)
                os.chmod(f"/proc/self/fd/{held}", mode | 0o400)
                try:
                    descriptor = os.open(name, READ, dir_fd=at)
                finally:
                    os.chmod(f"/proc/self/fd/{held}", mode)
            finally:
                os.close(held)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(ELOOP, "it is no regular file", path)
        return descriptor

    def attribute(self, path: str, name: str) -> bytes:
        """Return an extended attribute of a directory; nothing where it has none."""
        held = self._open(path, os.O_PATH) if path else os.dup(self.descriptor)
        try:
            return os.getxattr(f"/proc/self/fd/{held}", name)
        except OSError:
            return b""
        finally:
            os.close(held)

    def has_xattr(self, path: str, name: str) -> bool:
        """Say whether a file or a directory has an extended attribute."""
        above, last = split(path)
        held = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.directory(above))
        try:
            kind = stat.S_IFMT(os.fstat(held).st_mode)
            return kind in (stat.S_IFREG, stat.S_IFDIR) and name in os.listxattr(f"/proc/self/fd/{held}")
        except OSError:
            return False
        finally:
            os.close(held)

    def _close_again(self) -> None:
        # The deepest first, or the others could not be reached.
        for path in sorted(self.modes, reverse=True):
            above, name = split(path)
            try:
                held = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=self.directory(above))
            except OSError:
                # It was moved or removed meanwhile.
                continue
            os.chmod(f"/proc/self/fd/{held}", self.modes[path])
            os.close(held)

    def forget(self) -> None:
        """Look up anew what was looked up: after a rename, a directory may be another."""
        if self._above[1] != self.descriptor:
            os.close(self._above[1])
        self._above = ("", self.descriptor)

    def close(self) -> None:
        """Let go of it."""
        if self.descriptor >= 0:
            self._close_again()
            self.forget()
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
