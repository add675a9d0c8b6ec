"""What the owner may grant besides the project. A grant that would open what is protected, corral itself or credentials is an error."""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral.guard.path_zones import inside
from corral.guard.rules.loader import places
from corral.model.errors import PolicyError
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral.policy.config import Containment

_KERNELS = ("/proc", "/dev", "/sys")


def resolve_grants(containment: Containment) -> tuple[list[str], list[str]]:
    """Return the paths to read and those to write, through every link."""
    return _resolve("read", containment.read), _resolve("write", containment.write)


def _resolve(name: str, paths: Iterable[str]) -> list[str]:
    for path in paths:
        if not os.path.exists(path):
            raise PolicyError(f"containment.{name} names {path!r}, which does not exist")
    return [os.path.realpath(path) for path in paths]


def refuse_read_grant(path: str, home: str) -> None:
    """Raise if a grant to read would show credentials, the owner's log, or the kernel's own files."""
    _refuse_secrets("read", path, home)
    for kind in ("config", "state"):
        mine = user_dirs.user_directory(kind, os.environ)
        if inside(path, mine) or (inside(mine, path) and os.path.lexists(mine)):
            _refuse("read", path, f"where {mine!r} is, which holds the owner's policy and log")


def refuse_write_grant(path: str, home: str, project: str, own: Iterable[str]) -> None:
    """Raise if a grant to write would open credentials, corral itself or what the project lies in."""
    if inside(project, path):
        _refuse("write", path, f"which holds the project {project!r}; name what is beside it")
    for mine in own:
        if inside(path, mine) or inside(mine, path):
            _refuse("write", path, f"where {mine!r} is, which corral itself runs from")
    for kind in ("config", "state", "cache"):
        mine = user_dirs.user_directory(kind, os.environ)
        if inside(path, mine) or inside(mine, path):
            _refuse("write", path, f"where {mine!r} is, which holds what corral keeps for the owner")
    _refuse_secrets("write", path, home)


@frozen
class AgentSettings(Record):
    """An agent's own settings, which it may write, and what in them would run programs later outside.

    What is there of that stays as it is, what is not is looked for after each command, and what each run must write is its own.
    """

    writable: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    session: tuple[str, ...] = ()


def agent_settings(containment: Containment, home: str) -> AgentSettings:
    """Look at the settings that are granted."""
    found = _resolve("settings", containment.settings)
    kept: list[str] = []
    absent: list[str] = []
    session: list[str] = []
    for path in found:
        from corral.policy.agent_profiles import agent_for_settings  # noqa: PLC0415  few sandboxes hold an agent

        agent = agent_for_settings(path, home)
        if agent is None:
            _refuse("settings", path, "which is no directory of settings of an agent that is known")
        else:
            own = [f"{home}/{name}" for name in agent.session if inside(f"{home}/{name}", path)]
            session += [each for each in own if os.path.realpath(each) == each]
            names = [*(f"{path}/{name}" for name in agent.kept), *(each for each in own if each not in session)]
            there = [each for each in names if os.path.lexists(each)]
            absent += [each for each in names if each not in there]
            # A link stays as it is, and so does what it leads to.
            kept += dict.fromkeys([*there, *(real for real in map(os.path.realpath, there) if os.path.exists(real))])
    return AgentSettings(tuple(found), tuple(kept), tuple(absent), tuple(session))


def refuse_protected(path: str, kept: Iterable[str]) -> None:
    """Raise if a grant to write lies in what is protected."""
    for protected in kept:
        if inside(path, protected):
            _refuse("write", path, f"which is protected, as all of {protected!r}: it runs later outside the sandbox")


def _refuse_secrets(name: str, path: str, home: str) -> None:
    for kernels in _KERNELS:
        if path == kernels or (inside(path, kernels) and path != "/dev/shm"):  # noqa: S108  the host's, by the owner's word
            _refuse(name, path, "which is the kernel's; commands have their own")
    for secret in _secrets(home):
        if inside(path, secret) or (inside(secret, path) and os.path.lexists(secret)):
            _refuse(name, path, f"which would open {secret!r}: credentials, start-up files or corral's policy")


def _secrets(home: str) -> Iterator[str]:
    for each in _homes(home):
        for pattern in places()["secret_home"]:
            yield f"{each}/{pattern.removesuffix('/**')}"
    for pattern in places()["secret"]:
        plain = pattern.removesuffix("/**").removesuffix("*")
        if "*" not in plain:
            yield plain


def _homes(home: str) -> list[str]:
    """Return the home directories: the owner's may be another than the one where credentials lie, as under sudo."""
    try:
        others = os.listdir("/home")
    except OSError:
        others = []
    return list(dict.fromkeys((home, "/root", *(f"/home/{name}" for name in others))))


def _refuse(name: str, path: str, why: str) -> None:
    raise PolicyError(f"containment.{name} names {path!r}, {why}")
