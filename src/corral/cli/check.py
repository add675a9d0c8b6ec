"""`corral check`: the guard's answer to one call, or to one call per line of stdin. Runs nothing."""

from __future__ import annotations

import os
import sys

from corral.audit import Log
from corral.config import Containment, SandboxConfig
from corral.containment.lasting import temporary
from corral.errors import AuditError
from corral.machine import Machine
from corral.model import Call
from corral.record import CHECK_STATUS, json_text, verdict_text
from corral.terminal import terminal_of, visible
from corral.vet import vet

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Judge what the command line names; the exit code is the decision, or 0 for a batch."""
    config = config_of(options)
    if options.jsonl:
        from corral.cli.batch import answer  # noqa: PLC0415  one call does not need it

        answer(sys.stdin.buffer, sys.stdout.buffer, config)
        return 0
    call = call_of(options)
    verdict = vet(call, config, machine_of(config))
    try:
        Log(config, event="check").verdict(call, verdict)
    except AuditError as error:
        # Nothing runs on this answer alone.
        print(f"corral: {visible(str(error))}", file=sys.stderr)
    if options.json:
        print(json_text(verdict.to_dict()))
    else:
        print(verdict_text(call, verdict, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
    return CHECK_STATUS[verdict.decision]


def config_of(options: argparse.Namespace) -> SandboxConfig:
    """Return the policy that the command line asks for."""
    return SandboxConfig(
        project_root=options.root,
        profile=options.profile,
        timeout_seconds=options.timeout,
        # What one command writes to /tmp the next one reads, though each has a process of its own.
        containment=Containment(backend=getattr(options, "backend", "auto"), scratch="project"),
    )


def machine_of(config: SandboxConfig) -> Machine:
    """Return the machine as the commands of the project see it."""
    return Machine.of(config, temporary(config, os.environ))


def call_of(options: argparse.Namespace) -> Call:
    """Return the call that the command line names."""
    if options.shell is not None:
        return Call(options.shell, shell=True, cwd=options.cwd)  # noqa: S604  a record, run by nobody here
    return Call(options.command, cwd=options.cwd)
