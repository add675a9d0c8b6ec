"""Names the socket of a session: in a directory that only this user can enter and that no command sees."""

from __future__ import annotations

import os
import stat

from corral._lib.sha256 import sha256_hex
from corral.model.errors import PolicyError
from corral.policy import user_dirs
from corral.policy.store import Store
from corral.sessions.protocol import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.config import SandboxConfig

SUFFIX = ".socket"
LOCK_SUFFIX = ".lock"
_NAME_DIGITS = 32
PACKAGE = __file__.rsplit("/", 2)[0]
# An installation or an upgrade replaces all of these.
_BUILD_FILES = ("__init__.py", "guard/rules/compiled.bin", "sessions/service.py", "containment/processes/warden.py")
# Variables that decide where corral's files are. In a session all calls have the same.
PLACE_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")


def session_directory(environ: Mapping[str, str], *, make: bool = False) -> str:
    """Return the directory of this user's sockets, or "" where no place for it is private."""
    own = f"/run/user/{os.geteuid()}"
    try:
        if _is_private(own):
            path = f"{own}/corral"
            if make and not os.path.lexists(path):
                os.mkdir(path, 0o700)
        else:
            store = Store("state", "sessions", environ)
            path = store.path
            if make:
                store.create()
        return path if _is_private(path) else ""
    except (OSError, PolicyError):
        return ""


def _is_private(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def is_seen_by_commands(directory: str, config: SandboxConfig) -> bool:
    """Say whether commands under a config could see a directory: then they could reach the sockets in it."""
    shown = (config.project_root, *config.containment.read, *config.containment.write, *config.containment.settings)
    try:
        for path in shown:
            user_dirs.refuse_inside_project(directory, os.path.realpath(path))
    except PolicyError:
        return True
    return False


def socket_path(config: SandboxConfig, session: str, environ: Mapping[str, str], *, make: bool = False) -> str:
    """Return the path of the socket of a session, or "" where it can have none. `session` is the agent's, with its host's name."""
    if config.containment.backend == "none":
        return ""
    directory = session_directory(environ, make=make)
    if not directory or is_seen_by_commands(directory, config):
        return ""
    key = (VERSION, build_id(), config.project_root, session, places(environ))
    name = sha256_hex(repr(key).encode("utf-8", "surrogateescape"))[:_NAME_DIGITS]
    return f"{directory}/{name}{SUFFIX}"


def places(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories where corral's files are, as an environment names them."""
    return tuple(environ.get(name, "") for name in PLACE_VARIABLES)


def build_id() -> tuple[tuple[int, int, int], ...]:
    """Return what identifies this installation of corral. An upgrade changes it."""
    found = []
    for name in _BUILD_FILES:
        try:
            status = os.stat(f"{PACKAGE}/{name}")
        except OSError:
            return ()
        found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def socket_paths(environ: Mapping[str, str]) -> list[str]:
    """Return the sockets of all sessions of this user. Some may be left over from a service that was killed."""
    directory = session_directory(environ)
    if not directory:
        return []
    return sorted(f"{directory}/{name}" for name in os.listdir(directory) if name.endswith(SUFFIX))
