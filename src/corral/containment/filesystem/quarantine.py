"""Moves planted files into quarantine and restores protected links, without following links.

A planted file first gets a random name where it is, which no program reads. Then it is moved out of the project: by a rename, or by a
copy where the quarantine is on another file system. If no directory outside can be used, it stays under its random name.
"""

from __future__ import annotations

import os
import stat
from errno import EFBIG, EXDEV

from corral._lib.fork_lock import ForkSafeLock
from corral._lib.nofollow import DIRECTORY, chmod_directory, make_directory, open_directory
from corral.containment.filesystem import scratch
from corral.containment.filesystem.command_files import QUARANTINE
from corral.containment.filesystem.persistent_scratch import scratch_paths
from corral.guard.path_zones import inside
from corral.model.call import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Self

INSTEAD = "Programs outside the sandbox would run it. Leave it out, or ask the user to create it."
# Limits of the copies to another file system after one command, against a command that fills the user's disk. Whatever exceeds them
# stays under its random name.
MAX_COPIED_BYTES = 256 << 20
MAX_COPIED_ENTRIES = 100_000
MAX_COPIED_DEPTH = 64
_CHUNK_BYTES = 1 << 20
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def move_to_quarantine(path: str, root: str, copies: Copies | None = None) -> Violation:
    """Move a planted path into quarantine, and return the violation that reports it. `copies` limits several calls together."""
    above, _, name = path.rpartition("/")
    aside = f"planted-{os.urandom(8).hex()}"
    try:
        with _DirectoryAbove(above) as source:
            source.rename(name, aside)
            place = _move_out(source.descriptor, aside, name, root, copies or Copies()) or f"{above}/{aside}"
    except FileNotFoundError:
        return Violation("planted", path, "it was gone before corral could move it", INSTEAD)
    except OSError as error:
        from shlex import quote  # noqa: PLC0415  only this message needs it

        detail = f"it could not be moved away ({error.strerror}); no command of this project starts while it is there"
        return Violation("planted", path, detail, f"The user can remove it: rm -rf -- {quote(path)}", remains=True)
    return Violation("planted", path, f"it was moved to {place}", INSTEAD)


class _DirectoryAbove:
    """The directory above a planted path, opened without following links.

    A command may have removed permissions from it, or from a directory above it. It has them until it is closed.
    """

    def __init__(self, path: str) -> None:
        self._modes: list[tuple[int, int]] = []  # descriptors of changed directories, and the modes that they had
        self.descriptor = os.open("/", _PATH)
        try:
            for part in path.strip("/").split("/"):
                inner = self._open(part)
                os.close(self.descriptor)
                self.descriptor = inner
        except BaseException:
            self.__exit__()
            raise

    def _open(self, name: str) -> int:
        try:
            return os.open(name, _PATH | os.O_DIRECTORY, dir_fd=self.descriptor)
        except PermissionError:
            self._allow()
            return os.open(name, _PATH | os.O_DIRECTORY, dir_fd=self.descriptor)

    def rename(self, name: str, new: str) -> None:
        """Rename an entry."""
        try:
            os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except PermissionError:
            self._allow()
            os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def _allow(self) -> None:
        self._modes.append((os.dup(self.descriptor), _give_rights(self.descriptor)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        for descriptor, mode in reversed(self._modes):
            os.chmod(f"/proc/self/fd/{descriptor}", mode)
            os.close(descriptor)


def _give_rights(descriptor: int) -> int:
    """Give the user all rights to an open file, and return the mode that it had."""
    mode = os.fstat(descriptor).st_mode & 0o7777
    # Not fchmod(), which does not accept an O_PATH descriptor.
    os.chmod(f"/proc/self/fd/{descriptor}", mode | 0o700)
    return mode


def _move_out(source: int, name: str, last: str, root: str, copies: Copies) -> str:
    """Move an entry out of the project. Return its new path, or "" if it stays."""
    for base in _places(root):
        own = os.urandom(8).hex()
        try:
            os.makedirs(base, 0o700, exist_ok=True)
            quarantine = _enter(QUARANTINE, open_directory(base))
        except OSError:
            continue
        try:
            target = _enter(own, os.dup(quarantine))
            try:
                _transfer(source, name, target, last, copies)
                return f"{base}/{QUARANTINE}/{own}/{last}"
            except OSError:
                _remove(own, quarantine)
            finally:
                os.close(target)
        except OSError:
            # The disk is full, or corral may not write there.
            continue
        finally:
            os.close(quarantine)
    return ""


def _places(root: str) -> Iterator[str]:
    """Yield the directories outside the project that can hold the quarantine."""
    # If the project is the home directory, a command may have made part of the path a link.
    written, real = user_state_directory(os.environ)
    if not inside(written, root) and not inside(real, root):
        yield real
    for path in scratch_paths(root, (root,), os.environ, make=True, kind="quarantine"):
        yield os.path.dirname(path)


def _transfer(source: int, name: str, target: int, last: str, copies: Copies) -> None:
    """Rename an entry into another directory. If that is on another file system, copy the entry and remove it."""
    try:
        os.rename(name, last, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:
        # Moving a directory changes its `..`, which needs write permission to it.
        os.close(chmod_directory(name, source, 0o700))
        os.rename(name, last, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno != EXDEV:
            raise
        copies.copy(source, name, target, last, MAX_COPIED_DEPTH)
        _remove(name, source)


class Copies:
    """Copies trees to another file system, up to the limits. Devices, pipes and sockets are left out."""

    def __init__(self) -> None:
        self._bytes_left = MAX_COPIED_BYTES
        self._entries_left = MAX_COPIED_ENTRIES

    def copy(self, source: int, name: str, target: int, last: str, depth: int) -> None:
        """Copy an entry. `depth` is the number of directories that may still lie inside each other."""
        self._entries_left -= 1
        if self._entries_left < 0 or depth < 0:
            raise OSError(EFBIG, os.strerror(EFBIG))
        opened = os.open(name, _PATH, dir_fd=source)
        try:
            mode = os.fstat(opened).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink("", dir_fd=opened), last, dir_fd=target)
            elif stat.S_ISDIR(mode):
                _give_rights(opened)
                os.mkdir(last, 0o700, dir_fd=target)
                self._copy_entries(opened, os.open(last, DIRECTORY, dir_fd=target), depth - 1)
            elif stat.S_ISREG(mode):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._copy_bytes(_open_to_read(opened), os.open(last, flags, 0o600, dir_fd=target))
        finally:
            os.close(opened)

    def _copy_entries(self, opened: int, target: int, depth: int) -> None:
        try:
            source = os.open(f"/proc/self/fd/{opened}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with os.scandir(source) as entries:
                    for entry in entries:
                        self.copy(source, entry.name, target, entry.name, depth)
            finally:
                os.close(source)
        finally:
            os.close(target)

    def _copy_bytes(self, source: int, target: int) -> None:
        try:
            free = os.fstatvfs(target)
            if os.fstat(source).st_size > min(self._bytes_left, free.f_bavail * free.f_frsize // 2):
                raise OSError(EFBIG, os.strerror(EFBIG))
            with open(source, "rb", closefd=False) as read, open(target, "wb", closefd=False) as written:
                while data := read.read(_CHUNK_BYTES):
                    self._bytes_left -= len(data)
                    if self._bytes_left < 0:
                        raise OSError(EFBIG, os.strerror(EFBIG))
                    written.write(data)
        finally:
            os.close(source)
            os.close(target)


def _open_to_read(opened: int) -> int:
    path, flags = f"/proc/self/fd/{opened}", os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except PermissionError:
        # The mode is set back: the file may have other names, which are the user's.
        mode = _give_rights(opened)
        try:
            return os.open(path, flags)
        finally:
            os.chmod(path, mode)


def _remove(name: str, above: int) -> None:
    try:
        os.unlink(name, dir_fd=above)
    except IsADirectoryError:
        os.close(chmod_directory(name, above, 0o700))
        # If another command still writes in it, the rest stays under its random name.
        scratch.remove(f"/proc/self/fd/{above}/{name}")


def _enter(name: str, at: int) -> int:
    """Open a directory in the open directory `at`, and close `at`. The directory is made if it is missing."""
    try:
        make_directory(name, at)
        return os.open(name, DIRECTORY, dir_fd=at)
    finally:
        os.close(at)


def user_state_directory(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the user's state directory, as the environment names it and with links resolved."""
    own = environ.get("XDG_STATE_HOME", "")
    written = own if own.startswith("/") else f"{environ.get('HOME') or '/nonexistent'}/.local/state"
    return os.path.normpath(written), os.path.realpath(written)


class ProtectedLinks:
    """The protected links of one sandbox, with their targets before the first command.

    They are restored after each command of a backend that cannot mount over a link.
    """

    def __init__(self, paths: Iterable[str], root: str) -> None:
        self._targets = {path: os.readlink(path) for path in paths if os.path.islink(path)}
        self._root = root
        self._lock = ForkSafeLock()

    def look(self) -> tuple[Violation, ...]:
        """Restore the links that were changed, and return a violation for each."""
        with self._lock:
            changed = [path for path, target in self._targets.items() if _target(path) != target]
            return tuple(self._restore(path) for path in changed)

    def _restore(self, path: str) -> Violation:
        directory, _, name = path.rpartition("/")
        moved = ""
        if os.path.lexists(path):
            violation = move_to_quarantine(path, self._root)
            if os.path.lexists(path):
                return violation
            moved = f"; {violation.detail}"
        try:
            above = open_directory(directory)
            try:
                os.symlink(self._targets[path], name, dir_fd=above)
            finally:
                os.close(above)
        except OSError as error:
            return Violation("planted", path, f"the link could not be restored: {error.strerror}{moved}", INSTEAD)
        return Violation("planted", path, f"the link was restored{moved}", INSTEAD)


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
