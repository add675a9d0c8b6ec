"""`corral check`: the guard's answer to one call, or to one call per line of stdin. Runs nothing."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable, terminal_of
from corral.audit.audit_log import Log
from corral.containment.filesystem.persistent_scratch import project_tmp
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.call import Call
from corral.model.errors import AuditError, PolicyError
from corral.model.render_result import CHECK_STATUS, json_text, verdict_text
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from corral.policy.config import SandboxConfig


def main(options: argparse.Namespace) -> int:
    """Judge what the command line names; the exit code is the decision, or 0 for a batch."""
    config = config_of(options)
    if options.jsonl:
        from corral.apps.cli.jsonl import answer  # noqa: PLC0415  one call does not need it

        answer(sys.stdin.buffer, sys.stdout.buffer, config)
        return 0
    call = call_of(options)
    verdict = vet(call, config, machine_of(config))
    try:
        Log(config, event="check").verdict(call, verdict)
    except AuditError as error:
        # Nothing runs on this answer alone.
        print(f"corral: {printable(str(error))}", file=sys.stderr)
    if options.json:
        print(json_text(verdict.to_dict()))
    else:
        print(verdict_text(call, verdict, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
    return CHECK_STATUS[verdict.decision]


def config_of(options: argparse.Namespace) -> SandboxConfig:
    """Return the project's policy; what the command line asks for holds where no file has spoken, or tightens it."""
    policy = load(options.root, os.environ, profile=options.profile)
    config = policy.config
    said = {setting.key for setting in policy.settings if setting.in_force}
    containment = config.containment
    backend = getattr(options, "backend", "auto")
    if backend not in ("auto", containment.backend):
        if "containment.backend" in said:
            raise PolicyError(
                f"the policy says containment.backend = {containment.backend!r}; an option does not change it"
            )
        containment = containment.replace(backend=backend)
    if "containment.scratch" not in said:
        # What one command writes to /tmp the next one reads, though each has a process of its own.
        containment = containment.replace(scratch="project")
    return config.replace(containment=containment, timeout_seconds=_timeout(options, config, said))


def _timeout(options: argparse.Namespace, config: SandboxConfig, said: set[str]) -> float | None:
    given: float | None = options.timeout
    if "timeout_seconds" not in said:
        return given
    if not options.timeout_is_given or config.timeout_seconds is None:
        return given if options.timeout_is_given else config.timeout_seconds
    return min(given or config.timeout_seconds, config.timeout_seconds)


def machine_of(config: SandboxConfig) -> Machine:
    """Return the machine as the commands of the project see it."""
    return Machine.of(config, project_tmp(config, os.environ))


def call_of(options: argparse.Namespace) -> Call:
    """Return the call that the command line names."""
    if options.shell is not None:
        return Call(options.shell, shell=True, cwd=options.cwd)  # noqa: S604  a record, run by nobody here
    return Call(options.command, cwd=options.cwd)
