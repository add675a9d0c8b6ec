"""Stores small private files: trust, approvals, pending calls and caches.

A store is one directory below corral's `state` or `cache` directory. It raises PolicyError where another user, or a command in a
sandbox, could write a file of the store.
"""

from __future__ import annotations

import os
from time import time

from corral.model.errors import PolicyError
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK_SECONDS = 5.0  # a change takes less than a millisecond, so a process that holds the lock for longer is stopped
MAX_SWEPT = 256  # files that one sweep examines, against a directory with millions of files
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Store:
    """A private directory of files. `root` is the project whose commands must not be able to write there."""

    __slots__ = ("_environ", "_kind", "_levels", "_root", "path")

    def __init__(self, kind: str, name: str, environ: Mapping[str, str], root: str = "") -> None:
        self._kind, self._environ, self._root = kind, environ, root
        self._levels = [user_dirs.user_directory(kind, environ)]
        for part in filter(None, name.split("/")):
            self._levels.append(f"{self._levels[-1]}/{part}")
        self.path = self._levels[-1]
        if root:
            user_dirs.refuse_inside_project(self.path, root)

    def create(self) -> None:
        """Create the directory if it does not exist."""
        user_dirs.private_directory(self._kind, self._environ, self._root)
        for path in self._levels[1:]:
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                user_dirs.refuse_writable_by_others(path)
            except OSError as error:
                raise PolicyError(f"{path} cannot be created: {error.strerror}") from None

    def exists(self) -> bool:
        """Return whether the directory exists."""
        try:
            for path in self._levels:
                user_dirs.refuse_writable_by_others(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise PolicyError(f"{self.path} cannot be read: {error.strerror}") from None
        return True

    def names(self) -> list[str]:
        """Return the names of all files, among them temporary files of writers that were killed."""
        return os.listdir(self.path)

    def read(self, name: str, max_bytes: int, *, allows_hard_links: bool = True) -> bytes | None:
        """Return the content of a file, or None where there is no such file."""
        path = f"{self.path}/{name}"
        try:
            data, status = user_dirs.read_regular_file(path, max_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PolicyError(f"{path} cannot be read: {error.strerror}") from None
        user_dirs.refuse_status_writable_by_others(path, status)
        if status.st_nlink != 1 and not allows_hard_links:
            raise PolicyError(f"{path} has more than one hard link; remove it")
        if len(data) > max_bytes:
            raise PolicyError(f"{path} is longer than {max_bytes} bytes; remove it")
        return data

    def write(self, name: str, data: bytes, *, sync: bool = False, mode: int = 0o600) -> None:
        """Write a file. Readers see the old content or the new; with `sync` the new content survives a crash of the machine."""
        partial = f"{self.path}/.{name}.{os.getpid()}-{os.urandom(4).hex()}"
        descriptor = os.open(partial, _NEW_FILE, mode)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(descriptor)
            os.replace(partial, f"{self.path}/{name}")
        except BaseException:
            os.unlink(partial)
            raise

    def take(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a file and remove it. Of several processes that take the same file, one gets it."""
        taken = f"{name}.{os.getpid()}"
        try:
            os.rename(f"{self.path}/{name}", f"{self.path}/{taken}")
        except FileNotFoundError:
            return None
        try:
            return self.read(taken, max_bytes)
        finally:
            os.unlink(f"{self.path}/{taken}")

    def remove(self, name: str) -> None:
        """Remove a file, unless another process has removed it."""
        try:
            os.unlink(f"{self.path}/{name}")
        except FileNotFoundError:
            return

    def remove_expired(self, max_age_seconds: float) -> None:
        """Remove files last written longer ago than the given time, or as far in the future: then the clock was set."""
        now = time()
        for name in self.names()[:MAX_SWEPT]:
            path = f"{self.path}/{name}"
            try:
                if abs(now - os.lstat(path).st_mtime) > max_age_seconds:
                    os.unlink(path)
            except OSError:
                # The entry is a directory, or another process has removed it.
                continue

    def remove_oldest(self, max_files: int) -> None:
        """Remove the oldest files until no more than `max_files` are left."""
        files = [entry for entry in os.scandir(self.path) if entry.is_file(follow_symlinks=False)]
        files.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in files[: max(0, len(files) - max_files)]:
            os.unlink(entry.path)

    def lock(self) -> _DirectoryLock:
        """Return a context manager in which no other process changes the store."""
        return _DirectoryLock(self.path)


class _DirectoryLock:
    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        from fcntl import LOCK_EX, LOCK_NB, flock  # noqa: PLC0415  a hook only reads
        from time import monotonic, sleep  # noqa: PLC0415  as above

        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        ends_at = monotonic() + LOCK_SECONDS
        while True:
            try:
                flock(self._descriptor, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                if monotonic() > ends_at:
                    os.close(self._descriptor)
                    raise PolicyError(
                        f"{self._path} is locked by another process, which may be stopped; end or continue it"
                    ) from None
                sleep(0.001)
            else:
                return

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
