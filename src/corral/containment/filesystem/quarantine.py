"""Moves planted files into quarantine and restores protected links, without following links.

Quarantine is in the user's state directory. If that cannot be used, it is in the project, under names that no program runs.
"""

from __future__ import annotations

import os

from corral._lib.fork_lock import ForkSafeLock
from corral._lib.nofollow import DIRECTORY, chmod_directory, make_directory, open_directory
from corral.guard.path_zones import inside
from corral.model.call import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INSTEAD = "Programs outside the sandbox would run it. Leave it out, or ask the user to create it."


def move_to_quarantine(path: str, root: str) -> Violation:
    """Move a planted path into quarantine, and return the violation that reports it."""
    try:
        place = _move(path, root)
    except OSError as error:
        return Violation("planted", path, f"it could not be moved to quarantine: {error.strerror}; remove it", INSTEAD)
    return Violation("planted", path, f"it was moved to {place}", INSTEAD)


def _move(path: str, root: str) -> str:
    above, _, name = path.rpartition("/")
    source = open_directory(above)
    # If the project is the home directory, a command may have made part of the path a link.
    written, real = user_state_directory(os.environ)
    places = [] if inside(written, root) or inside(real, root) else [(real, name)]
    try:
        for base, last in (*places, (root, f"{name.lstrip('.')}.planted")):
            try:
                return _move_below(base, source, name, last)
            except OSError:
                # Not writable, or on another file system. The project is on the right one, and is tried last.
                if base == root:
                    raise
        raise PermissionError(13, "no directory for it can be made")
    finally:
        os.close(source)


def _move_below(base: str, source: int, name: str, last: str) -> str:
    os.makedirs(base, 0o700, exist_ok=True)
    own = os.urandom(8).hex()
    quarantine = _enter("corral-quarantine", open_directory(base))
    try:
        target = _enter(own, os.dup(quarantine))
        try:
            _rename(name, source, last, target)
        except OSError:
            os.rmdir(own, dir_fd=quarantine)
            raise
        finally:
            os.close(target)
    finally:
        os.close(quarantine)
    return f"{base}/corral-quarantine/{own}/{last}"


def _rename(name: str, source: int, last: str, target: int) -> None:
    try:
        os.rename(name, last, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:
        # A command has removed the write permission of the directory, or of the planted directory itself.
        mode = os.fstat(source).st_mode & 0o7777
        os.fchmod(source, mode | 0o700)
        try:
            _make_writable(name, source)
            os.rename(name, last, src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.fchmod(source, mode)


def _make_writable(name: str, above: int) -> None:
    # Moving a directory changes its `..`, which needs write permission to it.
    try:
        os.close(chmod_directory(name, above, 0o700))
    except NotADirectoryError:
        return


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
