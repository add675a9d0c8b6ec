"""Files as a command sees them: in the project, scratch and what the owner grants, under the profile's rules, whatever links do meanwhile."""

from __future__ import annotations

import os
import stat
from errno import EACCES, EISDIR

from corral.guard.machine import host_path, resolve_in_sandbox
from corral.guard.path_zones import classify_path, inside
from corral.guard.rules.loader import effects
from corral.model.call import Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.machine import Shown
    from corral.policy.config import SandboxConfig

# The places inside a project that the profile may close, and the effect that it decides on.
_READING = {"env": "read-env"}
_WRITING = {"protected": "write-protected"}


def read_bytes(path: str, config: SandboxConfig, scratch: Shown = ()) -> bytes:
    """Return what a regular file holds. `scratch` is what the commands see of their own, and where it lies."""
    top, below, shown = _place(path, config, scratch, _READING)
    with open(_open_below(host_path(top, shown), below, os.O_RDONLY, path), "rb") as file:
        return file.read()


def write_bytes(path: str, data: bytes, config: SandboxConfig, scratch: Shown = ()) -> None:
    """Replace what a regular file holds; its directory must exist."""
    data = bytes(memoryview(data))  # before the file is touched: what is no bytes must not empty it
    top, below, shown = _place(path, config, scratch, _WRITING)
    project = (config.project_root,) if config.containment.project == "read-write" else ()
    if top not in dict(scratch) and top not in (*project, *map(os.path.realpath, config.containment.write)):
        raise PermissionError(EACCES, "the path is read-only for commands", path)
    with open(_open_below(host_path(top, shown), below, os.O_WRONLY | os.O_CREAT, path), "wb") as file:
        file.truncate(0)
        file.write(data)


def may_be_scratch(path: str, config: SandboxConfig) -> bool:
    """Say whether a path as written may mean what commands have of their own, and not the project or a grant."""
    return path.startswith("/") and not any(inside(os.path.normpath(path), seen) for seen, _ in _granted(config))


def _granted(config: SandboxConfig) -> list[tuple[str, str]]:
    paths = (config.project_root, *config.containment.read, *config.containment.write)
    return [(real, real) for real in map(os.path.realpath, paths)]


def _place(path: str, config: SandboxConfig, scratch: Shown, closed: dict[str, str]) -> tuple[str, str, Shown]:
    """Return the directory that a path lies in as commands see it, the way from there, and where what they see lies."""
    absolute = os.path.join(config.project_root, path)
    if not path.startswith("/") and not inside(os.path.normpath(absolute), config.project_root):
        scratch = ()  # with `..` out of the project and into a /tmp that the project lies in: nobody means that
    # The longest first: a project below the home directory is not the commands' home.
    shown = tuple(sorted((*_granted(config), *scratch), key=lambda pair: -len(pair[0])))
    # Links are followed here, by name; the walk below refuses any, so one that is swapped in meanwhile leads nowhere.
    resolved = resolve_in_sandbox(absolute, shown)
    top = next((seen for seen, _ in shown if inside(resolved, seen)), "")
    if not top or (
        top in dict(scratch) and _is_hidden(resolved if closed is _READING else os.path.dirname(resolved), shown)
    ):
        raise PermissionError(EACCES, "the path leads outside project root", path)
    if resolved == top:
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
    effect = closed.get(classify_path(resolved, config.project_root, ""), "")
    if effect and config.rules.effects[effect] != Decision.ALLOW:
        raise PermissionError(EACCES, effects()[effect]["reason"].format(text=path, detail=""), path)
    return top, resolved[len(top) + 1 :], shown


def _is_hidden(path: str, shown: Shown) -> bool:
    """Say whether the host has something at a path where commands see nothing."""
    return os.path.lexists(path) and not os.path.lexists(host_path(path, shown))


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
