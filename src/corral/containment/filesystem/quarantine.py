"""Where planted files go: the owner's state directory, or the project under names that mean nothing. Links are never followed."""

from __future__ import annotations

import os

from corral.guard.path_zones import inside
from corral.model.call import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
INSTEAD = "It would run outside the sandbox; ask the owner to put it there."


def move_to_quarantine(path: str, root: str) -> Violation:
    """Move what lies at a path into quarantine, and return the violation that says so."""
    try:
        place = _move(path, root)
    except OSError as error:
        return Violation("planted", path, f"it could not be moved away: {error.strerror}; remove it", INSTEAD)
    return Violation("planted", path, f"it was moved to {place}", INSTEAD)


def _move(path: str, root: str) -> str:
    above, _, name = path.rpartition("/")
    source = open_directory_nofollow(above)
    try:
        for base, last in (*_owners_place(name, root), (root, f"{name.lstrip('.')}.planted")):
            try:
                return _move_below(base, source, name, last)
            except OSError:
                # It cannot be written, or is another file system; the project's own is the last to be tried.
                if base == root:
                    raise
        raise PermissionError(13, "no directory for it can be made")
    finally:
        os.close(source)


def _owners_place(name: str, root: str) -> list[tuple[str, str]]:
    # Where the project is the home directory, a command could have made the way there a link.
    written, real = user_state_directory(os.environ)
    return [] if inside(written, root) or inside(real, root) else [(real, name)]


def _move_below(base: str, source: int, name: str, last: str) -> str:
    os.makedirs(base, 0o700, exist_ok=True)
    own = os.urandom(8).hex()
    quarantine = _enter("corral-quarantine", open_directory_nofollow(base))
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
        # A command has taken away the owner's right to write there, or to what it made.
        mode = os.fstat(source).st_mode & 0o7777
        os.fchmod(source, mode | 0o700)
        try:
            _open_up(name, source)
            os.rename(name, last, src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.fchmod(source, mode)


def _open_up(name: str, directory: int) -> None:
    """Give the owner all rights to a directory: to move one changes it."""
    try:
        descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except NotADirectoryError:
        return
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)


def _enter(name: str, at: int) -> int:
    """Open a directory that is made where it is missing; what it lies in is closed."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=at)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=at)
        return os.open(name, _DIRECTORY, dir_fd=at)
    finally:
        os.close(at)


def open_directory_nofollow(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a directory, refusing links on the whole way: a command of another warden may be swapping directories meanwhile."""
    at = os.open("/", _DIRECTORY)
    *above, last = path.strip("/").split("/")
    for part, way in (*((part, os.O_PATH) for part in above), (last, flags)):
        try:
            inner = os.open(part, way | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def user_state_directory(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return where the owner's programs keep what lasts, as it is written and where that is."""
    own = environ.get("XDG_STATE_HOME", "")
    written = own if own.startswith("/") else f"{environ.get('HOME') or '/nonexistent'}/.local/state"
    return os.path.normpath(written), os.path.realpath(written)
