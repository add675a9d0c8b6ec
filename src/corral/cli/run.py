"""`corral run`: one call through the guard, then live here, on a terminal of its own or with our streams, or captured."""

from __future__ import annotations

import os
import sys
from signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal, signal

from corral.audit import Log
from corral.cli import console
from corral.cli.check import call_of, config_of
from corral.errors import AuditError, CorralError
from corral.places import inside
from corral.record import denial_text, json_text, process_status, timeout_text, violation_text
from corral.sandbox import Sandbox
from corral.terminal import terminal_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from corral.model import Call
    from corral.result import SandboxResult

TOLD = "/tmp/.corral-directory"  # noqa: S108  the command's own


def main(options: argparse.Namespace) -> int:
    """Run what the command line names; the exit code is the command's, or says why there is none."""
    config, call = config_of(options), call_of(options)
    if options.directory_file is not None:
        config = config.replace(output=config.output.replace(directory_file=f"{TOLD}-{os.urandom(8).hex()}"))
    record = Record(Log(config, call=options.call), required=config.audit.required)
    record.check()
    with Sandbox(config=config, on_result=record.result) as box:
        on_terminal = not options.json and console.is_wanted(options.tty)
        try:
            result = console.drive(box, call) if on_terminal else _drive(box, call, live=not options.json)
        except AuditError:
            raise
        except CorralError as error:
            record.failure(call, error)
            raise
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


class Record:
    """The owner's log of a run. Where it cannot be written nothing runs, unless the policy accepts that: then it is said."""

    def __init__(self, log: Log, *, required: bool) -> None:
        self._log = log
        self._required = required

    def check(self) -> None:
        """Look whether the line could be written, before there is a result to lose."""
        self._try(self._log.check)

    def result(self, result: SandboxResult) -> None:
        """Write what became of the call."""
        self._try(self._log.result, result)

    def failure(self, call: Call, error: CorralError) -> None:
        """Write that corral itself failed."""
        self._try(self._log.failure, call, error)

    def _try(self, write: Callable[..., None], *about: object) -> None:
        try:
            write(*about)
        except AuditError as error:
            if self._required:
                raise AuditError(f"{error}; or set audit.required = false in the policy to run without") from None
            print(f"corral: {error}; the policy accepts that", file=sys.stderr)


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
    noted: list[int] = []
    for number in (SIGINT, SIGTERM, SIGHUP):
        if getsignal(number) is not SIG_IGN:
            # Noted, not raised: an exception in the middle of the handle's work would lose the result.
            signal(number, lambda number, _: noted.append(number))
    interrupts = 0
    with box.start(call.argv, shell=call.shell, cwd=call.cwd, inherit_stdin=not live, inherit_stdio=live) as handle:
        while True:
            try:
                return handle.wait(console.NOTICE_SECONDS)
            except TimeoutError:
                while noted:
                    came = noted.pop(0)
                    if came != SIGINT:
                        sys.exit(128 + came)
                    interrupts += 1
                    handle.signal(SIGINT)
                if interrupts > 1:
                    handle.kill()  # the second one means it
