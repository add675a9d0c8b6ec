"""`corral run`: one call through the guard, then live here, on a terminal of its own or with our streams, or captured."""

from __future__ import annotations

import os
import sys
from signal import SIG_IGN, SIGINT, getsignal, signal

from corral.cli import console
from corral.cli.check import call_of, config_of
from corral.places import inside
from corral.record import denial_text, json_text, process_status, timeout_text, violation_text
from corral.sandbox import Sandbox
from corral.terminal import terminal_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from corral.model import Call
    from corral.result import SandboxResult

TOLD = "/tmp/.corral-directory"  # noqa: S108  the command's own


def main(options: argparse.Namespace) -> int:
    """Run what the command line names; the exit code is the command's, or says why there is none."""
    config, call = config_of(options), call_of(options)
    if options.directory_file is not None:
        config = config.replace(output=config.output.replace(directory_file=f"{TOLD}-{os.urandom(8).hex()}"))
    with Sandbox(config=config) as box:
        on_terminal = not options.json and console.is_wanted(options.tty)
        result = console.drive(box, call) if on_terminal else _drive(box, call, live=not options.json)
        if options.directory_file is not None:
            _tell_directory(box, options.directory_file)
    if options.json:
        print(json_text(result.to_dict()))
    elif result.denied:
        print(denial_text(call, result, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
    elif result.timed_out:
        print(timeout_text(options.timeout), file=sys.stderr)
    else:
        # Empty where it was shown already; why it could not be started where it could not.
        sys.stderr.buffer.write(result.stderr)
    if not options.json:
        for violation in result.violations:
            print(violation_text(violation), file=sys.stderr)
    return process_status(result)


def _tell_directory(box: Sandbox, file: str) -> None:
    """Leave in a file of ours which directory the command ended in, if it did and that is in the project."""
    try:
        told = os.fsdecode(box.read_bytes(str(box.config.output.directory_file)).removesuffix(b"\n"))
    except OSError:
        # It did not come to its end.
        return
    if os.path.isabs(told) and os.path.isdir(told) and inside(os.path.realpath(told), box.config.project_root):
        os.makedirs(os.path.dirname(os.path.abspath(file)), 0o700, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as ours:
            ours.write(os.fsencode(told))


def _drive(box: Sandbox, call: Call, *, live: bool) -> SandboxResult:
    """Run to the end. The terminal's Ctrl-C reaches only us, since the command has its own session: it is handed on."""
    interrupts: list[int] = []
    if getsignal(SIGINT) is not SIG_IGN:
        # Counted, not raised: an exception in the middle of the handle's work would lose the result.
        signal(SIGINT, lambda number, _: interrupts.append(number))
    handle = box.start(call.argv, shell=call.shell, cwd=call.cwd, inherit_stdin=not live, inherit_stdio=live)
    handed_on = 0
    while True:
        try:
            return handle.wait(console.NOTICE_SECONDS)
        except TimeoutError:
            if handed_on < len(interrupts):
                handed_on += 1
                handle.signal(SIGINT)
            if handed_on > 1:
                handle.kill()  # the second one means it
