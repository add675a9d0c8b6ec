"""Reads agents/*.toml: the programs, settings directories and network destinations of agents that can run in a sandbox.

A profile grants nothing by itself: corral asks the user, or the user's policy names the agent.
"""

from __future__ import annotations

import os

from corral._lib.network import network_grants
from corral._lib.records import Record, frozen
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.join(os.path.dirname(__file__), "agents")
_LISTS = ("programs", "settings", "kept", "session", "network", "environment", "publish")


@frozen
class AgentProfile(Record):
    """An agent. Paths are relative to the home directory, those of `kept` to the settings directories.

    `kept` are files that make the agent run programs or give it instructions, so they stay read-only. `session` are directories
    that the agent writes and runs programs from; each run gets a directory of its own.
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
    """Return the names of all known agents."""
    return sorted(name.removesuffix(".toml") for name in os.listdir(_FOLDER) if name.endswith(".toml"))


def load_agent(name: str) -> AgentProfile:
    """Return an agent by name. Raise PolicyError for an unknown name."""
    if name not in agent_names():
        raise PolicyError(f"there is no agent {name!r}; known: {', '.join(agent_names())}")
    import tomllib  # noqa: PLC0415  most commands are no agent

    with open(f"{_FOLDER}/{name}.toml", "rb") as file:
        return parse_agent(name, tomllib.load(file))


def parse_agent(name: str, data: dict[str, Any]) -> AgentProfile:
    """Return the agent that a file describes. Raise ValueError where the file is invalid."""
    unknown = sorted(set(data) - {"title", "variables", "note", *_LISTS})
    if unknown:
        raise ValueError(f"{name}.toml: unknown key {unknown[0]!r}")
    fields: dict[str, Any] = {key: tuple(data.get(key, ())) for key in _LISTS}
    fields["network"] = tuple(network_grants.parse_grant(text) for text in fields["network"])
    for path in (*fields["settings"], *fields["kept"], *fields["session"]):
        if path.startswith(("/", "~")) or ".." in path.split("/") or not path:
            raise ValueError(f"{name}.toml: {path!r} is not a relative path inside the home directory")
    fields["variables"] = tuple(data.get("variables", {}).items())
    return AgentProfile(name=name, title=data["title"], note=data.get("note", ""), **fields)


def agent_for_program(program: str) -> AgentProfile | None:
    """Return the agent that a program belongs to, by the program's name."""
    base = program.rpartition("/")[2]
    for name in agent_names():
        with open(f"{_FOLDER}/{name}.toml", encoding="utf-8") as file:
            # Most programs belong to no agent; searching the text first avoids the TOML parser.
            is_likely = f'"{base}"' in file.read()
        if is_likely and base in (agent := load_agent(name)).programs:
            return agent
    return None


def agent_for_settings(path: str, home: str) -> AgentProfile | None:
    """Return the agent that has this settings directory."""
    agents = map(load_agent, agent_names())
    return next((agent for agent in agents if path in {f"{home}/{name}" for name in agent.settings}), None)
