"""`corral run -- claude`: a whole agent in the sandbox, with its terminal, its own settings and its hosts. All it starts is inside too.

What it may reach is shown before it starts; what the policy does not grant already, a person at the terminal does, or nobody.
"""

from __future__ import annotations

import os
import sys

from corral._lib import network_grants
from corral._lib.terminal import terminal_of
from corral.apps.cli import run_grants, terminal_session
from corral.containment.filesystem.toolchains import is_system
from corral.guard.path_zones import inside
from corral.model.errors import PolicyError
from corral.policy.agent_profiles import agent_for_program, load_agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from corral.policy.agent_profiles import AgentProfile
    from corral.policy.config import SandboxConfig

NONE = "none"


def agent_of(options: argparse.Namespace, config: SandboxConfig) -> AgentProfile | None:
    """Return the agent that a command line starts: the one it names, else by the program, where somebody sits or the owner said so."""
    if options.agent == NONE or options.call or options.grant:
        return None
    if options.agent is not None:
        return load_agent(options.agent)
    if not options.command:
        return None
    agent = agent_for_program(options.command[0])
    if agent is None or _is_named(agent, options, config):
        return agent
    return agent if not options.json and terminal_session.is_wanted(options.tty) else None


def _is_named(agent: AgentProfile, options: argparse.Namespace, config: SandboxConfig) -> bool:
    """Say whether the owner's policy lets this agent have what it needs; by the program's name only where no command wrote the program."""
    if agent.name not in config.containment.agents:
        return False
    if options.agent is not None:
        return True
    start = os.path.join(config.project_root, options.cwd or "")
    found = _found(options.command[0], start, os.environ)
    writable = (config.project_root, *map(os.path.realpath, config.containment.write))
    return bool(found) and not any(inside(path, root) for path in found for root in writable)


def _found(program: str, start: str, environ: Mapping[str, str]) -> list[str]:
    """Return the program that a word names, by the way that leads to it and by itself; nothing where it is not there."""
    from shutil import which  # noqa: PLC0415  for an agent alone

    path = os.path.join(start, program) if "/" in program else which(program, path=environ.get("PATH", "")) or ""
    if not path.startswith("/") or not os.path.exists(path):
        return []
    way = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return [way, os.path.realpath(path)]


def with_agent(config: SandboxConfig, agent: AgentProfile, program: str, environ: Mapping[str, str]) -> SandboxConfig:
    """Return a config that holds an agent with what is its own."""
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    settings = tuple(f"{home}/{path}" for path in agent.settings if os.path.isdir(f"{home}/{path}"))
    containment = run_grants.with_network(config.containment, agent.network)
    if config.containment.network == "on":
        containment = containment.replace(network="on")
    given = {name for name in agent.environment if "*" not in name and name in environ}
    given |= {name for name in agent.environment if "*" in name}
    # What the proxy adds on the way is not to be known inside.
    given -= {name for text in containment.inject for name in network_grants.variables(text)}
    packages = [path for path in _packages(program, environ) if path not in containment.read]
    return config.replace(
        containment=containment.replace(
            settings=settings,
            read=(*containment.read, *packages),
            publish=(*containment.publish, *agent.publish),
        ),
        env_allowlist={*config.env_allowlist, *given},
    )


def _packages(program: str, environ: Mapping[str, str]) -> list[str]:
    """Return the directory of packages that a program of npm's lies in: what it needs of others lies beside it."""
    from shutil import which  # noqa: PLC0415  for an agent alone

    found = os.path.realpath(which(program, path=environ.get("PATH", "")) or "")
    above, inner, _ = found.partition("/node_modules/")
    return [f"{above}/node_modules"] if inner and not is_system(above) else []


def variables_of(agent: AgentProfile, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an agent gets, by which it finds what is its own."""
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    return {name: value.replace("~", home, 1) if value.startswith("~/") else value for name, value in agent.variables}


def make_settings(agent: AgentProfile, environ: Mapping[str, str]) -> None:
    """Make the directories of an agent that has none yet: what it keeps there is to be there the next time."""
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    for path in agent.settings:
        try:
            os.makedirs(f"{home}/{path}", 0o700, exist_ok=True)
        except OSError as error:
            raise PolicyError(f"the settings of {agent.title} cannot be made: {error.strerror}: {path}") from None


def config_with_grants(
    options: argparse.Namespace, config: SandboxConfig, agent: AgentProfile | None
) -> SandboxConfig | None:
    """Return the config with what was asked for and granted; None where the person said no."""
    given = run_grants.destinations(options.network)
    containment = run_grants.with_network(config.containment, given)
    wanted = config.replace(containment=containment.replace(publish=(*containment.publish, *options.publish)))
    if agent is not None:
        make_settings(agent, os.environ)
        wanted = with_agent(wanted, agent, options.command[0] if options.command else "", os.environ)
        if not options.timeout_is_given:
            # Somebody works with it.
            wanted = wanted.replace(timeout_seconds=None)
    more = run_grants.added_grants(config, wanted)
    is_named = agent is not None and _is_named(agent, options, config)
    title = (
        "What is asked for beyond the policy:" if agent is None else f"{agent.title} would reach, besides the project:"
    )
    if more and not (is_named and not given and not options.publish):
        instead = "add it to containment.network in the owner's policy"
        if agent is not None:
            instead = f'add containment.agents = ["{agent.name}"] to the owner\'s policy'
        if not run_grants.ask(title, more, config, may_ask=options.ask, instead=instead):
            return None
    elif agent is not None and not options.json:
        # Said, where it was not asked.
        terminal = terminal_of(sys.stderr, os.environ)
        listed = run_grants.added_grants(config.replace(containment=type(config.containment)()), wanted)
        print("\n".join([*run_grants.shown(title, listed, terminal), ""]), file=sys.stderr)
    if agent is not None and agent.note and not options.json:
        print(f"corral: {agent.note}", file=sys.stderr)
    return wanted
