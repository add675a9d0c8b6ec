"""Files as a command sees them: inside the owner's directories, under the profile's rules, whatever links do meanwhile."""

from __future__ import annotations

import os
import stat
from errno import EACCES, EISDIR

from corral.model import Decision
from corral.places import place_of
from corral.rulebook import effects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.config import SandboxConfig

# The places inside a project that the profile may close, and the effect that it decides on.
_READING = {"env": "read-env"}
_WRITING = {"protected": "write-protected"}


def read_bytes(path: str, config: SandboxConfig) -> bytes:
    """Return what a regular file holds."""
    roots = (config.project_root, *config.containment.read, *config.containment.write)
    with open(_open(path, roots, config, _READING, os.O_RDONLY), "rb") as file:
        return file.read()


def write_bytes(path: str, data: bytes, config: SandboxConfig) -> None:
    """Replace what a regular file holds; its directory must exist."""
    data = bytes(memoryview(data))  # before the file is touched: what is no bytes must not empty it
    project = (config.project_root,) if config.containment.project == "read-write" else ()
    roots = (*project, *config.containment.write)
    with open(_open(path, roots, config, _WRITING, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate(0)
        file.write(data)


def _open(path: str, roots: tuple[str, ...], config: SandboxConfig, closed: dict[str, str], flags: int) -> int:
    # Links are followed here, by name; the walk below refuses any, so one that is swapped in meanwhile leads nowhere.
    resolved = os.path.realpath(os.path.join(config.project_root, path))
    for root in roots:
        top = os.path.realpath(root).rstrip("/")
        if resolved.startswith(top + "/"):
            break
    else:
        raise PermissionError(EACCES, "the path leads outside project root", path)
    effect = closed.get(place_of(resolved, config.project_root, ""), "")
    if effect and config.rules.effects[effect] != Decision.ALLOW:
        raise PermissionError(EACCES, effects()[effect]["reason"].format(text=path, detail=""), path)
    return _open_below(top, resolved[len(top) + 1 :], flags, path)


def _open_below(top: str, below: str, flags: int, path: str) -> int:
    walk = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    *directories, name = below.split("/")
    at = os.open(top, walk)
    try:
        for directory in directories:
            inner = os.open(directory, walk, dir_fd=at)
            os.close(at)
            at = inner
        # O_NONBLOCK: a named pipe would wait for its other end.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666, dir_fd=at)
    finally:
        os.close(at)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
    raise PermissionError(EACCES, "the path is not a regular file", path)
