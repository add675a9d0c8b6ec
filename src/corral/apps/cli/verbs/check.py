"""`corral check`: prints the guard's verdict on one call, or on one call per line of stdin. Runs nothing."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.arguments import call_arguments, call_usage, check_call
from corral.apps.cli.call import call_of, config_of, kernel_warning, machine_of
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.audit.audit_log import Log
from corral.guard.evaluate import vet
from corral.model.errors import AuditError
from corral.model.render_result import CHECK_STATUS, json_text, verdict_text

VERB = Verb(
    "run",
    "Show whether a command would be allowed. Runs nothing.",
    examples="""\
corral check -- rm -rf build
corral check --profile strict --shell 'cat notes.txt | head -3'
corral check --json -- git push --force
corral check --jsonl < calls.jsonl
""",
    notes="""\
With --jsonl, each line of stdin is {"id": "1", "argv": ["ls"]} or {"id": "1", "shell": "ls | wc -l"}, with an optional
"cwd". corral answers each line at once and in order with one line {"id", "decision", "findings"}. A line that it
cannot read gets "deny" and an "error". The exit code is then 0.
""",
    exit_codes="0 allow, 3 ask, 126 deny, 125 corral itself failed",
    usage=(*call_usage("check"), "check [--profile NAME] [--root DIR] --jsonl"),
    command_after="",
    arguments=(*call_arguments(), argument("--jsonl", "Judge one call per line of stdin.")),
)


def check_arguments(options: Options, extra: list[str]) -> None:
    """Require one command, or lines on stdin."""
    if not options.jsonl:
        check_call(options, extra)
    elif options.command is not None or options.shell is not None:
        raise UsageError("give only one of: -- CMD, --shell STRING, --jsonl")
    elif extra:
        raise UsageError(f"pass the calls on stdin: corral check --jsonl < {printable(extra[0])}")
    elif options.cwd is not None or options.json:
        raise UsageError("--jsonl takes no --cwd and no --json: each line has its own cwd, and the answers are JSON")


def main(options: Options) -> int:
    """Judge the call and return the exit code of its verdict, or answer the lines of stdin and return 0."""
    config = config_of(options)
    if options.jsonl:
        from corral.apps.cli.jsonl import answer  # noqa: PLC0415  one call does not need it

        answer(sys.stdin.buffer, sys.stdout.buffer, config)
        return 0
    call = call_of(options)
    machine = machine_of(config)
    verdict = vet(call, config, machine)
    try:
        Log(config, event="check").verdict(call, verdict)
    except AuditError as error:
        # Nothing runs because of this answer, so a log that cannot be written is only reported.
        print(f"corral: {printable(str(error))}", file=sys.stderr)
    if options.json:
        print(json_text(verdict.to_dict()))
    else:
        print(verdict_text(call, verdict, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
        if warning := kernel_warning(call, config, machine):
            print(f"corral: {printable(warning)}", file=sys.stderr)
    return CHECK_STATUS[verdict.decision]
