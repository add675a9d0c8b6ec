"""Reads and writes small files below a directory that commands can change, without following any link."""

from __future__ import annotations

import os
import stat
from errno import ENAMETOOLONG

from corral._lib.dirfd_tree import DirfdTree, split
from corral._lib.nofollow import NEW_FILE, chmod_directory, open_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 32
MAX_NAMES = 200_000  # against a directory that is too large to be listed


class SafeTree(DirfdTree):
    """A git directory, of the user's or a command's. With `is_strict`, no link may be in the path to it."""

    def __init__(self, path: str, *, is_strict: bool = False) -> None:
        super().__init__(path)
        if is_strict:
            os.close(self.descriptor)
            self.descriptor = open_directory(path)
            self._cached = ("", self.descriptor)

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a regular file, or None if it is missing or larger than this."""
        try:
            descriptor = self.open(path)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            data = file.read(max_bytes + 1)
        return data if len(data) <= max_bytes else None

    def text(self, path: str, max_bytes: int = 4096) -> str:
        """Return the text of a small file, or ""."""
        return (self.read(path, max_bytes) or b"").decode("utf-8", "surrogateescape")

    def write(self, path: str, data: bytes, like: os.stat_result | None = None) -> None:
        """Write a file by renaming a new one over it. It gets mode and time of `like`."""
        above, name = split(path)
        self.make_directory(above)
        at = self.directory(above)
        partial = f".corral-{os.urandom(6).hex()}"
        self._write_new(partial, at, data, like)
        try:
            os.rename(partial, name, src_dir_fd=at, dst_dir_fd=at)
        except IsADirectoryError:
            self.remove(path)
            os.rename(partial, name, src_dir_fd=at, dst_dir_fd=at)

    def create(self, path: str, data: bytes, like: os.stat_result | None = None) -> bool:
        """Write a new file in a directory that exists. Return false if there is one already: a lock of a command's git."""
        above, name = split(path)
        try:
            self._write_new(name, self.directory(above), data, like)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError):
            return False
        return True

    def rename(self, path: str, target: str) -> None:
        """Rename a file inside its directory."""
        above, name = split(path)
        at = self.directory(above)
        os.rename(name, split(target)[1], src_dir_fd=at, dst_dir_fd=at)

    def _write_new(self, name: str, at: int, data: bytes, like: os.stat_result | None) -> None:
        with open(os.open(name, NEW_FILE, 0o600, dir_fd=at), "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode) & 0o777 if like is not None else 0o644)
            file.flush()
            if like is not None:
                os.utime(file.fileno(), ns=(like.st_atime_ns, like.st_mtime_ns))

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it. Whatever is in their place and no directory is removed."""
        parts = path.split("/") if path else []
        for number in range(1, len(parts) + 1):
            at = "/".join(parts[:number])
            found = self.status(at)
            if found is not None and stat.S_ISDIR(found.st_mode):
                continue
            above, name = split(at)
            if found is not None:
                os.unlink(name, dir_fd=self.directory(above))
            os.mkdir(name, 0o755, dir_fd=self.directory(above))

    def make_all_accessible(self) -> None:
        """Give this user all rights to the directories of the commands' side, apart from those with objects in them."""
        if os.geteuid() == 0:
            return
        pending = [""]
        while pending:
            at = pending.pop()
            for entry in os.scandir(self.directory(at)):
                path = f"{at}/{entry.name}" if at else entry.name
                if not entry.is_dir(follow_symlinks=False):
                    continue
                mode = entry.stat(follow_symlinks=False).st_mode
                if mode & 0o700 != 0o700:
                    os.close(chmod_directory(entry.name, self.directory(at), stat.S_IMODE(mode) | 0o700))
                if path.count("/") < MAX_DEPTH and at != "objects":
                    pending.append(path)

    def remove(self, path: str) -> None:
        """Remove a file or a whole directory, if it is there."""
        found = self.status(path)
        if found is None:
            return
        if path.count("/") > MAX_DEPTH:
            raise OSError(ENAMETOOLONG, "its directories are nested too deeply")
        above, name = split(path)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=self.directory(above))
            return
        self.make_accessible(path, found)
        for inner in self.names(path):
            self.remove(f"{path}/{inner}")
        self.modes.pop(path, None)
        os.rmdir(name, dir_fd=self.directory(above))

    def files(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the regular files below a directory, or the file itself. Links and special files are left out."""
        found = self.status(path)
        if found is not None and stat.S_ISREG(found.st_mode):
            yield path, found
        if found is None or not stat.S_ISDIR(found.st_mode):
            return
        pending, seen = [path], 0
        while pending:
            at = pending.pop()
            try:
                names = self.names(at)
            except OSError:
                continue
            for name in names:
                inner = f"{at}/{name}" if at else name
                status = self.status(inner)
                seen += 1
                if seen > MAX_NAMES:
                    raise OSError(7, "it has too many files")
                if status is not None and stat.S_ISREG(status.st_mode):
                    yield inner, status
                elif status is not None and stat.S_ISDIR(status.st_mode) and inner.count("/") < MAX_DEPTH:
                    pending.append(inner)

    def directories(self, path: str) -> Iterator[str]:
        """Yield a directory and all below it."""
        pending, seen = [path], 0
        while pending:
            at = pending.pop()
            try:
                with os.scandir(self.directory(at)) as entries:
                    inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue
            yield at
            seen += len(inner)
            if seen > MAX_NAMES:
                raise OSError(7, "it has too many directories")
            if at.count("/") < MAX_DEPTH:
                pending += [f"{at}/{name}" if at else name for name in inner]
