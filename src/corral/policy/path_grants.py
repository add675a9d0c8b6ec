"""Checks paths that the user grants besides the project. A grant that opens credentials, corral or a protected path is a PolicyError."""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral.guard.path_zones import inside, is_note_in_home, protected
from corral.guard.rules.loader import places
from corral.model.errors import PolicyError
from corral.policy import installation, user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from corral.policy.config import Containment, SandboxConfig

BOX_PROFILE = "broker-box"  # the profile of a sandbox for one program of the user's, which the broker runs
_KERNEL_DIRECTORIES = ("/proc", "/dev", "/sys")


def resolve_grants(containment: Containment) -> tuple[list[str], list[str]]:
    """Return the real paths that are granted for reading, and those for writing."""
    return _resolve("read", containment.read), _resolve("write", containment.write)


def _resolve(name: str, paths: Iterable[str]) -> list[str]:
    for path in paths:
        if not os.path.exists(path):
            raise PolicyError(f"containment.{name} names {path!r}, which does not exist")
    return [os.path.realpath(path) for path in paths]


def box_credentials(config: SandboxConfig) -> dict[str, str]:
    """Return the real path of each credential file that the broker's box for one program sees, by the path where it sees it.

    No file and no option can set these, and a sandbox for an agent's commands has another profile.
    """
    paths = config.containment.credentials
    if paths and config.rules.name != BOX_PROFILE:
        raise PolicyError("containment.credentials is only for the broker's box, which runs no command of an agent")
    return {path: os.path.realpath(path) for path in paths}


def home_directory(environ: Mapping[str, str]) -> str:
    """Return the real path of the user's home directory."""
    return os.path.realpath(environ.get("HOME") or installation.DEFAULT_HOME)


def refuse_path(verb: str, path: str, project: str, environ: Mapping[str, str]) -> None:
    """Raise if a grant of a real path would open credentials, corral's own files or a protected path."""
    home = home_directory(environ)
    if verb == "read":
        refuse_read_grant(path, home)
        return
    directories = [user_dirs.user_directory(kind, environ) for kind in ("config", "state", "cache")]
    own = (*installation.installation_paths(), *installation.installation_links(), *directories)
    refuse_write_grant(path, home, project, own)
    if protected(path, ""):
        _refuse("write", path, "which is protected: programs outside the sandbox run it later")


def refuse_read_grant(path: str, home: str) -> None:
    """Raise if a read grant would open credentials, the user's policy and audit log, or the kernel's files."""
    _refuse_secrets("read", path, home)
    for kind in ("config", "state"):
        mine = user_dirs.user_directory(kind, os.environ)
        if inside(path, mine) or (inside(mine, path) and os.path.lexists(mine)):
            _refuse("read", path, f"which would open {mine!r}, the user's policy or audit log")


def refuse_write_grant(path: str, home: str, project: str, own: Iterable[str]) -> None:
    """Raise if a write grant would open credentials, corral's own files, or a directory above the project."""
    if inside(project, path):
        _refuse("write", path, f"which contains the project {project!r}; name a directory beside the project")
    for mine in own:
        if inside(path, mine) or inside(mine, path):
            _refuse("write", path, f"which would open {mine!r}, which belongs to corral")
    for kind in ("config", "state", "cache"):
        mine = user_dirs.user_directory(kind, os.environ)
        if inside(path, mine) or inside(mine, path):
            _refuse("write", path, f"which would open {mine!r}, where corral keeps the user's files")
    _refuse_secrets("write", path, home)


@frozen
class AgentSettings(Record):
    """An agent's settings directories, which it may write, and the paths in them that run programs later outside the sandbox.

    `kept` paths exist and are read-only, `absent` paths are searched for after each command, and each run has its own `session`.
    """

    writable: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    session: tuple[str, ...] = ()


def agent_settings(containment: Containment, home: str) -> AgentSettings:
    """Return the granted settings directories of an agent."""
    found = _resolve("settings", containment.settings)
    kept: list[str] = []
    absent: list[str] = []
    session: list[str] = []
    for path in found:
        from corral.policy.agent_profiles import agent_for_settings  # noqa: PLC0415  few sandboxes hold an agent

        agent = agent_for_settings(path, home)
        if agent is None:
            _refuse("settings", path, "which is not the settings directory of a known agent")
        else:
            sessions = [f"{home}/{name}" for name in agent.session if inside(f"{home}/{name}", path)]
            session += [each for each in sessions if os.path.realpath(each) == each]
            protected = [
                *(f"{path}/{name}" for name in agent.kept),
                *(each for each in sessions if each not in session),
            ]
            present = [each for each in protected if os.path.lexists(each)]
            absent += [each for each in protected if each not in present]
            # A symbolic link and its target are both read-only.
            targets = [real for real in map(os.path.realpath, present) if os.path.exists(real)]
            kept += dict.fromkeys([*present, *targets])
    return AgentSettings(tuple(found), tuple(kept), tuple(absent), tuple(session))


def refuse_protected(path: str, kept: Iterable[str]) -> None:
    """Raise if a write grant is inside a protected path."""
    for each in kept:
        if inside(path, each):
            _refuse(
                "write",
                path,
                f"which is in the protected path {each!r}: programs outside the sandbox run it later",
            )


def _refuse_secrets(name: str, path: str, home: str) -> None:
    for kernel in _KERNEL_DIRECTORIES:
        if path == kernel or (inside(path, kernel) and path != "/dev/shm"):  # noqa: S108  the user may grant it
            _refuse(name, path, "which belongs to the kernel; commands have their own")
    homes = _homes(home)
    if name == "read" and any(
        path != each and inside(path, each) and is_note_in_home(path[len(each) + 1 :]) for each in homes
    ):
        return  # the table below names all that an agent host keeps in the home directory
    for secret in _secrets(homes):
        # Below a home directory the sandbox hides what a wider grant contains, such as ~/.m2/settings.xml in ~/.m2.
        is_hidden = any(path != each and inside(path, each) for each in homes) and not secret.endswith("/corral")
        if inside(path, secret) or (inside(secret, path) and not is_hidden and os.path.lexists(secret)):
            _refuse(name, path, f"which would open {secret!r}: credentials, start-up files or corral's policy")


def _secrets(homes: list[str]) -> Iterator[str]:
    for each in homes:
        for pattern in places()["secret_home"]:
            yield f"{each}/{pattern.removesuffix('/**')}"
    for pattern in places()["secret"]:
        plain = pattern.removesuffix("/**").removesuffix("*")
        if "*" not in plain:
            yield plain


def _homes(home: str) -> list[str]:
    """Return all home directories. Under sudo, credentials are in another one than HOME."""
    try:
        others = os.listdir("/home")
    except OSError:
        others = []
    return list(dict.fromkeys((home, "/root", *(f"/home/{name}" for name in others))))


def _refuse(name: str, path: str, why: str) -> None:
    raise PolicyError(f"containment.{name} names {path!r}, {why}")
