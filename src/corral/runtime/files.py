"""Reads and writes files with the rights of a command: in the project, in scratch and in granted paths. Safe against link swaps."""

from __future__ import annotations

import os
import stat
from errno import EACCES, EISDIR

from corral.guard.machine import host_path, resolve_in_sandbox
from corral.guard.path_zones import classify_path, inside, is_credential_file
from corral.guard.rules.loader import effects
from corral.model.call import Decision
from corral.policy.installation import DEFAULT_HOME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.machine import Shown
    from corral.policy.config import SandboxConfig

# Zones inside a project that the profile may close, and the effect that decides.
_READING = {"env": "read-env"}
_WRITING = {"protected": "write-protected"}


def read_bytes(path: str, config: SandboxConfig, scratch: Shown = ()) -> bytes:
    """Return the content of a regular file. `scratch` maps the commands' own directories to their places on the host."""
    top, below, shown = _place(path, config, scratch, _READING)
    with open(_open_below(host_path(top, shown), below, os.O_RDONLY, path), "rb") as file:
        return file.read()


def write_bytes(path: str, data: bytes, config: SandboxConfig, scratch: Shown = ()) -> None:
    """Replace the content of a regular file. Its directory must exist."""
    data = bytes(memoryview(data))  # before the file is opened: data of a wrong type must not truncate it
    top, below, shown = _place(path, config, scratch, _WRITING)
    project = (config.project_root,) if config.containment.project == "read-write" else ()
    if top not in dict(scratch) and top not in (*project, *map(os.path.realpath, config.containment.write)):
        raise PermissionError(EACCES, "the path is read-only for commands", path)
    with open(_open_below(host_path(top, shown), below, os.O_WRONLY | os.O_CREAT, path), "wb") as file:
        file.truncate(0)
        file.write(data)


def may_be_scratch(path: str, config: SandboxConfig) -> bool:
    """Return whether a path may lie in the commands' scratch, and not in the project or a granted path."""
    return path.startswith("/") and not any(inside(os.path.normpath(path), seen) for seen, _ in _granted(config))


def _granted(config: SandboxConfig) -> list[tuple[str, str]]:
    paths = (config.project_root, *config.containment.read, *config.containment.write)
    return [(real, real) for real in map(os.path.realpath, paths)]


def _place(path: str, config: SandboxConfig, scratch: Shown, closed: dict[str, str]) -> tuple[str, str, Shown]:
    """Return the granted directory above a path, the rest of the path, and the map from sandbox paths to host paths."""
    absolute = os.path.join(config.project_root, path)
    if not path.startswith("/") and not inside(os.path.normpath(absolute), config.project_root):
        scratch = ()  # `..` out of a project below /tmp must not reach the commands' /tmp
    # Longest first: a project below the home directory is not part of the commands' own home.
    shown = tuple(sorted((*_granted(config), *scratch), key=lambda pair: -len(pair[0])))
    # Links are resolved here. `_open_below` follows none, so a link that is swapped in later is refused.
    resolved = resolve_in_sandbox(absolute, shown)
    top = next((seen for seen, _ in shown if inside(resolved, seen)), "")
    if not top or (
        top in dict(scratch) and _is_hidden(resolved if closed is _READING else os.path.dirname(resolved), shown)
    ):
        raise PermissionError(EACCES, "the path leads outside project root", path)
    if top != config.project_root and top not in dict(scratch) and _is_secret(resolved, config):
        raise PermissionError(
            EACCES, "the path may contain credentials; only a grant that names the file shows it", path
        )
    if resolved == top:
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
    zone = classify_path(resolved, config.project_root, "")
    if closed is _WRITING and top not in dict(scratch):
        from corral.containment.filesystem.runs_later import runs_later  # noqa: PLC0415  reads do not need it

        zone = "protected" if runs_later(resolved, top) else zone
    effect = closed.get(zone, "")
    if effect and config.rules.effects[effect] != Decision.ALLOW:
        raise PermissionError(EACCES, effects()[effect]["reason"].format(text=path, detail=""), path)
    return top, resolved[len(top) + 1 :], shown


def _is_secret(path: str, config: SandboxConfig) -> bool:
    """Return whether the sandbox hides a path in a grant, because of its place or its name."""
    home = os.path.realpath(os.environ.get("HOME") or DEFAULT_HOME)
    read, write = ([*map(os.path.realpath, paths)] for paths in (config.containment.read, config.containment.write))
    is_named = path in read or any(inside(path, each) for each in write)
    by_name = not is_named and is_credential_file(os.path.basename(path))
    return by_name or classify_path(path, config.project_root, home) == "secret"


def _is_hidden(path: str, shown: Shown) -> bool:
    """Return whether a path exists on the host but not in the sandbox."""
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
        # O_NONBLOCK: opening a named pipe would wait for its other end.
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
