"""The agents that can be run whole in a sandbox: their programs, what of the home directory is their own, whom they talk to.

The only reader of agents/*.toml. What stands there is granted by nobody: a person is asked, or the owner's policy names the agent.
"""

from __future__ import annotations

import os

from corral._lib import network_grants
from corral._lib.records import Record, frozen
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.join(os.path.dirname(__file__), "agents")
_KEYS = ("title", "programs", "settings", "kept", "session", "network", "environment", "publish", "variables", "note")
_LISTS = ("programs", "settings", "kept", "session", "network", "environment", "publish")


@frozen
class AgentProfile(Record):
    """One agent. Paths are relative to the home directory, and those of `kept` to its settings: it runs programs, or tells it what to do.

    So `kept` stays as it is. `session` are directories that it must write and that others of it run from: each run has its own.
    """

    name: str
    title: str
    programs: tuple[str, ...]
    settings: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    session: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    publish: tuple[int, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    note: str = ""


def agent_names() -> list[str]:
    """Return the agents that are known."""
    return sorted(name.removesuffix(".toml") for name in os.listdir(_FOLDER) if name.endswith(".toml"))


def load_agent(name: str) -> AgentProfile:
    """Return an agent; PolicyError where there is none of this name."""
    if name not in agent_names():
        raise PolicyError(f"there is no agent {name!r}; known: {', '.join(agent_names())}")
    import tomllib  # noqa: PLC0415  few runs are of an agent

    with open(f"{_FOLDER}/{name}.toml", "rb") as file:
        return parse_agent(name, tomllib.load(file))


def parse_agent(name: str, data: dict[str, Any]) -> AgentProfile:
    """Return the agent that a file describes; ValueError where it is none."""
    unknown = sorted(set(data) - set(_KEYS))
    if unknown:
        raise ValueError(f"{name}.toml: unknown key {unknown[0]!r}")
    fields: dict[str, Any] = {key: tuple(data.get(key, ())) for key in _LISTS}
    fields["network"] = tuple(network_grants.parse_grant(text) for text in fields["network"])
    for path in (*fields["settings"], *fields["kept"], *fields["session"]):
        if path.startswith(("/", "~")) or ".." in path.split("/") or not path:
            raise ValueError(f"{name}.toml: {path!r} is no path inside the home directory")
    fields["variables"] = tuple(data.get("variables", {}).items())
    return AgentProfile(name=name, title=data["title"], note=data.get("note", ""), **fields)


def agent_for_program(program: str) -> AgentProfile | None:
    """Return the agent that a program is, by its name."""
    base = program.rpartition("/")[2]
    for name in agent_names():
        with open(f"{_FOLDER}/{name}.toml", encoding="utf-8") as file:
            # A plain look first: most programs at a terminal are no agent, and need no parser.
            is_likely = f'"{base}"' in file.read()
        if is_likely and base in (agent := load_agent(name)).programs:
            return agent
    return None


def agent_for_settings(path: str, home: str) -> AgentProfile | None:
    """Return the agent whose settings a path is."""
    return next((a for a in map(load_agent, agent_names()) if path in {f"{home}/{own}" for own in a.settings}), None)
