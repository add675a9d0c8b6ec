"""Watches where a package manager connects to, in a sandbox in which the proxy refuses every connection."""

from __future__ import annotations

import os
import tempfile

from corral._lib.network.network_grants import parse_grant
from corral.broker.package_managers.lookup import is_writable, tool_variables, writable_places
from corral.guard.rules.loader import Profile, profile_named
from corral.model.call import Decision
from corral.model.errors import CorralError
from corral.policy.config import Containment, SandboxConfig
from corral.runtime.environment import CREDENTIAL_WORDS
from corral.runtime.run_options import run_options
from corral.runtime.runner import open_runner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.broker.package_managers.lookup import Lookup

NOWHERE = "nothing.invalid:443"  # a name that never resolves, by RFC 2606: the proxy runs, and nothing is granted
_BASES = ("/tmp", "/var/tmp")  # noqa: S108  the probe has a directory of its own there, and not what TMPDIR names
MAX_OBSERVED = 4  # hosts; a tool that tries more is not understood


def observe(lookup: Lookup, *, seconds: float) -> list[str]:
    """Return the destinations that a tool tries to reach, as `host:port`. Empty where commands cannot be contained.

    Nothing leaves the sandbox, and the tool finds no program of the project in it.
    """
    places = writable_places(lookup.config)
    base = next((path for path in _BASES if os.path.isdir(path) and not is_writable(path, places)), "")
    if lookup.config.containment.backend == "none" or not lookup.row["observe"] or not base:
        return []
    argv = [*lookup.program.words, *lookup.row["observe"][1:]]
    with tempfile.TemporaryDirectory(prefix="corral-probe-", dir=base, ignore_cleanup_errors=True) as directory:
        for name, text in lookup.row["writes"].items():
            with open(f"{directory}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        try:
            return _observe(argv, directory, _environment(lookup), lookup.config, seconds)
        except (CorralError, OSError):
            return []


def _environment(lookup: Lookup) -> dict[str, str]:
    """Return the tool's variables without credentials, and the user's PATH without directories that commands can write."""
    kept = {
        name: value
        for name, value in tool_variables(lookup.row, lookup.environ).items()
        # A proxy of the user's is not there. GOPROXY is the registry.
        if (name == "GOPROXY" or "PROXY" not in name.upper())
        and not any(word in name.upper() for word in CREDENTIAL_WORDS)
    }
    return kept | dict(lookup.row["env"]) | {"PATH": lookup.environ["PATH"]}


def _observe(
    argv: Sequence[str], directory: str, variables: Mapping[str, str], config: SandboxConfig, seconds: float
) -> list[str]:
    allowing = profile_named("workspace")
    profile = Profile(
        "probe",
        dict.fromkeys(allowing.effects, Decision.ALLOW),
        dict.fromkeys(allowing.groups, Decision.ALLOW),
        needs_containment=True,
    )
    probe = SandboxConfig(
        project_root=directory,
        profile=profile,
        denylist=(),
        interpreter_block=(),
        timeout_seconds=seconds,
        containment=Containment(backend=config.containment.backend, network=(NOWHERE,)),
    )
    runner = open_runner(probe)
    try:
        result = runner.run(run_options(argv, env=variables))
    finally:
        runner.state.close()
    found = dict.fromkeys(connection.grant for connection in result.connections if connection.outcome == "refused")
    destinations = [destination for text in found if (destination := _destination(text))]
    return destinations if len(destinations) <= MAX_OBSERVED else []


def _destination(text: str) -> str:
    try:
        return parse_grant(text)
    except ValueError:
        return ""
