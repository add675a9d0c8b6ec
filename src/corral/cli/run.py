"""`corral run`: one call through the guard, then live in this terminal, or captured into one JSON object."""

from __future__ import annotations

import os
import sys
from signal import SIGINT

from corral.cli.check import call_of, config_of
from corral.errors import ContainmentError
from corral.record import FAILURE_STATUS, denial_text, json_text, process_status, timeout_text
from corral.sandbox import Sandbox
from corral.terminal import terminal_of, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from corral.model import Call
    from corral.result import SandboxResult


def main(options: argparse.Namespace) -> int:
    """Run what the command line names; the exit code is the command's, or says why there is none."""
    config, call = config_of(options), call_of(options)
    try:
        with Sandbox(config=config) as box:
            result = _captured(box, call) if options.json else _live(box, call)
    except ContainmentError as error:
        print(f"corral: {visible(str(error))}", file=sys.stderr)
        if options.profile != "strict":
            print("corral: --profile strict runs without containment, by stricter rules", file=sys.stderr)
        return FAILURE_STATUS
    if options.json:
        print(json_text(result.to_dict()))
    elif result.denied:
        print(denial_text(call, result, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
    elif result.timed_out:
        print(timeout_text(options.timeout), file=sys.stderr)
    return process_status(result)


def _captured(box: Sandbox, call: Call) -> SandboxResult:
    return box.run(call.argv, shell=call.shell, cwd=call.cwd)


def _live(box: Sandbox, call: Call) -> SandboxResult:
    handle = box.start(call.argv, shell=call.shell, cwd=call.cwd, inherit_stdio=True)
    interrupted = False
    while True:
        try:
            return handle.wait()
        except KeyboardInterrupt:
            # The terminal's Ctrl-C reaches only us: the command has a session of its own. The second one means it.
            if interrupted:
                handle.kill()
            else:
                handle.signal(SIGINT)
            interrupted = True
