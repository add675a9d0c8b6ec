"""Builds what several verbs need from the command line: the policy in force, the machine, and the call to judge or run."""

from __future__ import annotations

import os

from corral.containment.filesystem.persistent_scratch import project_tmp
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.rules.loader import profile_named
from corral.model.call import Call, Decision
from corral.model.errors import PolicyError
from corral.policy.config import DEFAULT_TIMEOUT_SECONDS, SandboxConfig
from corral.policy.loader import load

# Ends of rule ids: the kernel stops these effects, whatever a rule or an effect of the policy says.
_HELD_BY_KERNEL = (
    "-network",
    "-network-elsewhere",
    "-install",
    "-fetch",
    "-outside",
    "-private",
    "-secret",
    "-protected",
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.apps.cli.verb import Options


def config_of(options: Options) -> SandboxConfig:
    """Return the project's config. An option applies where no policy file sets its key, or tightens that key."""
    policy = load(options.root, os.environ, profile=options.profile)
    config = policy.config
    set_by_policy = {setting.key for setting in policy.settings if setting.in_force}
    containment = config.containment
    backend = getattr(options, "backend", "auto")
    if backend not in ("auto", containment.backend):
        if "containment.backend" in set_by_policy:
            raise PolicyError(
                f"the policy sets containment.backend = {containment.backend!r}, which --backend cannot change"
            )
        containment = containment.replace(backend=backend)
    if "containment.scratch" not in set_by_policy:
        # Each `corral run` is a process of its own; the next one must still find the files that this one left in /tmp.
        containment = containment.replace(scratch="project")
    timeout = _timeout(options, config.timeout_seconds, is_set="timeout_seconds" in set_by_policy)
    return config.replace(containment=containment, timeout_seconds=timeout)


def _timeout(options: Options, limit: float | None, *, is_set: bool) -> float | None:
    if options.timeout is not None:
        given: float | None = options.timeout or None
        return min(given or limit, limit) if is_set and limit is not None else given
    if is_set:
        return limit
    # At a terminal the user ends the command.
    return None if uses_terminal(options) else DEFAULT_TIMEOUT_SECONDS


def uses_terminal(options: Options) -> bool:
    """Return whether the command gets a pseudo-terminal: as the user chose, else where all streams are corral's terminal."""
    if "tty" not in options or options.json:
        return False
    if options.tty is not None:
        return bool(options.tty)
    return all(map(os.isatty, (0, 1, 2))) and is_in_foreground()


def is_in_foreground() -> bool:
    """Return whether this process may use the terminal on its stdin."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False  # stdin is not the controlling terminal of this session


def machine_of(config: SandboxConfig) -> Machine:
    """Return the machine as the commands of the project see it."""
    return Machine.of(config, project_tmp(config, os.environ))


def kernel_warning(call: Call, config: SandboxConfig, machine: Machine) -> str:
    """Return why the sandbox will stop a call that a rule or an effect of the policy allows, or "" if it will not."""
    built_in = profile_named(config.rules.name)
    if not built_in.needs_containment or config.rules == built_in or not vet(call, config, machine).allowed:
        return ""
    found = vet(call, config.replace(profile=built_in.name, posture="locked"), machine).findings
    held = [each.reason for each in found if each.decision != Decision.ALLOW and each.rule.endswith(_HELD_BY_KERNEL)]
    if not held:
        return ""
    return (
        f"the policy allows this, but the sandbox will stop it: {held[0]} "
        "A rule opens nothing. To open it, use [[grant]] or containment in your policy file, or run corral allow when it was refused."
    )


def call_of(options: Options) -> Call:
    """Return the call that the command line names."""
    if options.shell is not None:
        return Call(options.shell, shell=True, cwd=options.cwd)  # noqa: S604  a record; nothing runs here
    return Call(options.command, cwd=options.cwd)
