"""Runs a whole coding agent in the sandbox (`corral run -- claude`), with its terminal, its settings and its hosts.

Before the agent starts, corral shows which paths and hosts it can reach. The user grants those that the policy does not.
"""

from __future__ import annotations

import os
import sys

from corral._lib.network import network_grants
from corral._lib.terminal import terminal_of
from corral.apps.cli import run_grants
from corral.apps.cli.call import uses_terminal
from corral.guard.path_zones import inside
from corral.guard.toolchains import is_system
from corral.model.errors import PolicyError
from corral.policy.agent_profiles import AgentProfile, agent_for_program, load_agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.apps.cli.verb import Options
    from corral.policy.config import SandboxConfig

NONE = "none"


def agent_of(options: Options, config: SandboxConfig) -> AgentProfile | None:
    """Return the agent of --agent, or the agent that the program is if the policy grants it or the user is at a terminal."""
    if options.agent == NONE or options.call:
        return None
    if options.agent is not None:
        return load_agent(options.agent)
    if not options.command:
        return None
    agent = agent_for_program(options.command[0])
    if agent is None or _is_granted(agent, options, config) or uses_terminal(options):
        return agent
    return None


def _is_granted(agent: AgentProfile, options: Options, config: SandboxConfig) -> bool:
    """Return whether the user's policy grants the agent its profile.

    An agent detected by its program name counts only if no command could have written that program.
    """
    if agent.name not in config.containment.agents:
        return False
    if options.agent is not None:
        return True
    start = os.path.join(config.project_root, options.cwd or "")
    found = _program_paths(options.command[0], start, os.environ)
    writable = (config.project_root, *map(os.path.realpath, config.containment.write))
    return bool(found) and not any(inside(path, root) for path in found for root in writable)


def _program_paths(program: str, start: str, environ: Mapping[str, str]) -> list[str]:
    """Return the path at which a program is found and the path it links to; empty if it does not exist."""
    path = os.path.join(start, program) if "/" in program else _which(program, environ)
    if not path.startswith("/") or not os.path.exists(path):
        return []
    found = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return [found, os.path.realpath(path)]


def _which(program: str, environ: Mapping[str, str]) -> str:
    from shutil import which  # noqa: PLC0415  most commands on a terminal are no agents

    return which(program, path=environ.get("PATH", "")) or ""


def _home(environ: Mapping[str, str]) -> str:
    return os.path.realpath(environ.get("HOME") or "/nonexistent")


def with_agent(config: SandboxConfig, agent: AgentProfile, program: str, environ: Mapping[str, str]) -> SandboxConfig:
    """Return the config with the grants of the agent's profile."""
    home = _home(environ)
    settings = tuple(f"{home}/{path}" for path in agent.settings if os.path.isdir(f"{home}/{path}"))
    containment = run_grants.with_network(config.containment, agent.network)
    if config.containment.network == "on":
        containment = containment.replace(network="on")
    variables = {name for name in agent.environment if "*" in name or name in environ}
    # The proxy injects these secrets on the way, so the agent must not see them.
    variables -= {name for text in containment.inject for name in network_grants.variables(text)}
    packages = [path for path in _node_modules(program, environ) if path not in containment.read]
    return config.replace(
        containment=containment.replace(
            settings=settings, read=(*containment.read, *packages), publish=(*containment.publish, *agent.publish)
        ),
        env_allowlist={*config.env_allowlist, *variables},
    )


def _node_modules(program: str, environ: Mapping[str, str]) -> list[str]:
    """Return the node_modules directory that a program lies in. Its dependencies lie beside it."""
    found = os.path.realpath(_which(program, environ))
    above, inner, _ = found.partition("/node_modules/")
    return [f"{above}/node_modules"] if inner and not is_system(above) else []


def variables_of(agent: AgentProfile, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the agent's profile sets, with `~/` expanded."""
    home = _home(environ)
    return {name: value.replace("~", home, 1) if value.startswith("~/") else value for name, value in agent.variables}


def make_settings(agent: AgentProfile, environ: Mapping[str, str]) -> None:
    """Create the settings directories of the agent, so that its first run can store its settings."""
    for path in agent.settings:
        try:
            os.makedirs(f"{_home(environ)}/{path}", 0o700, exist_ok=True)
        except OSError as error:
            raise PolicyError(f"cannot create {path} for the settings of {agent.title}: {error.strerror}") from None


def config_with_grants(options: Options, config: SandboxConfig, agent: AgentProfile | None) -> SandboxConfig | None:
    """Return the config with the grants for the options and the agent, or None if the user says no."""
    given = run_grants.destinations(options.network)
    containment = run_grants.with_network(config.containment, given)
    ports = {"local": (*containment.local, *options.local), "publish": (*containment.publish, *options.publish)}
    wanted = config.replace(containment=containment.replace(**ports))
    title = "This run asks for more than the policy grants:"
    instead = "add it to containment.network in your own policy"
    if agent is not None:
        title = f"{agent.title} would reach, besides the project:"
        instead = f'add containment.agents = ["{agent.name}"] to your own policy'
        make_settings(agent, os.environ)
        wanted = with_agent(wanted, agent, options.command[0] if options.command else "", os.environ)
        if options.timeout is None:
            # A person works with the agent, for as long as they like.
            wanted = wanted.replace(timeout_seconds=None)
    more = run_grants.added_grants(config, wanted)
    is_granted = (
        agent is not None and _is_granted(agent, options, config) and not (given or options.local or options.publish)
    )
    if more and not is_granted:
        if not run_grants.ask(title, more, config, may_ask=options.ask, instead=instead):
            return None
    elif agent is not None and not options.json:
        # No question showed the grants, so print them.
        terminal = terminal_of(sys.stderr, os.environ)
        listed = run_grants.added_grants(config.replace(containment=type(config.containment)()), wanted)
        print("\n".join([*run_grants.grant_lines(title, listed, terminal), ""]), file=sys.stderr)
    if agent is not None and agent.note and not options.json:
        print(f"corral: {agent.note}", file=sys.stderr)
    return wanted
