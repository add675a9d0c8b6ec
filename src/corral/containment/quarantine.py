"""Where planted files go: the owner's state directory, or the project under names that mean nothing. Links are never followed."""

from __future__ import annotations

import os

from corral.model import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
INSTEAD = "It would run outside the sandbox; ask the owner to put it there."


def move_away(path: str, root: str) -> Violation:
    """Move what lies at a path into quarantine, and return the violation that says so."""
    try:
        place = _move(path, root)
    except OSError as error:
        return Violation("planted", path, f"it could not be moved away: {error.strerror}; remove it", INSTEAD)
    return Violation("planted", path, f"it was moved to {place}", INSTEAD)


def _move(path: str, root: str) -> str:
    above, _, name = path.rpartition("/")
    source = open_directory(above)
    try:
        for base, last in ((state_directory(os.environ), name), (root, f"{name.lstrip('.')}.planted")):
            place = f"{base}/corral-quarantine/{os.urandom(8).hex()}"
            try:
                os.makedirs(place, 0o700)
                target = open_directory(place)
            except OSError:
                continue
            try:
                os.rename(name, last, src_dir_fd=source, dst_dir_fd=target)
            except OSError:
                # Another file system; the project's own is the last to be tried.
                os.rmdir(place)
                if base == root:
                    raise
                continue
            finally:
                os.close(target)
            return f"{place}/{last}"
        raise PermissionError(13, "no directory for it can be made")
    finally:
        os.close(source)


def open_directory(path: str) -> int:
    """Open a directory, refusing links on the whole way: a command of another warden may be swapping directories meanwhile."""
    at = os.open("/", _DIRECTORY)
    for part in path.strip("/").split("/"):
        try:
            inner = os.open(part, _DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def state_directory(environ: Mapping[str, str]) -> str:
    """Return where the owner's programs keep what lasts."""
    own = environ.get("XDG_STATE_HOME", "")
    return os.path.realpath(own if own.startswith("/") else f"{environ.get('HOME') or '/nonexistent'}/.local/state")
