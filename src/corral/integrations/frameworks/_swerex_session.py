"""A SWE-ReX session: one bash on a terminal. corral judges each command before bash reads it. All methods block."""

from __future__ import annotations

import re
import secrets
from threading import Condition, Thread
from time import monotonic

from corral.integrations.extras import missing_extra
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE

try:
    from swerex.exceptions import BashIncorrectSyntaxError, CommandTimeoutError, SessionNotInitializedError
    from swerex.runtime.abstract import BashObservation
except ImportError as error:
    raise missing_extra("swerex", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from corral.sandbox import Sandbox

# Control characters that programs do not print.
PROMPT = "\x1d"
MARK = "\x1e"
START_SECONDS = 30.0
MAX_UNREAD = 10 * 1024 * 1024  # characters; older ones are dropped
INTERRUPT, SUSPEND = b"\x03", b"\x1a"
OWN_MARKS = re.compile(f"{MARK}[^{MARK}]*{MARK}")  # printed by a command line that continued after an interrupt
CONTROL = re.compile(r"\x1b[@-_][0-?]*[ -/]*[@-~]")


class BashSession:
    """A bash that reads each command from `text_file`, because a terminal line holds at most 4096 bytes."""

    def __init__(self, box: Sandbox, text_file: str) -> None:
        self._box = box
        self._text_file = text_file
        self._unread = ""
        self._has_exited = False
        self._is_in_program = False
        self._changed = Condition()
        argv = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
        self._handle = box.start(argv, pty=True, on_output=self._receive)
        Thread(target=self._wait_for_exit, daemon=True).start()
        # Octal escapes, so that the terminal's echo of this line does not match the answer.
        nonce = secrets.token_hex(8)
        self._type(f"stty -echo; PS1=$'\\035'; PS2=; printf '\\036%s\\036' {nonce}")
        self._expect([f"{MARK}{nonce}{MARK}"], START_SECONDS)
        self._expect([PROMPT], START_SECONDS)

    def run(self, command: str, timeout_seconds: float | None, expect: Sequence[str] = ()) -> BashObservation:
        """Run a command in the shell, which keeps its state between commands."""
        self._refuse_syntax(command)
        if command.strip() and not self._box.check(command, shell=True).allowed:
            return self._refused(command)
        self._box.write_bytes(self._text_file, command.encode())
        nonce = secrets.token_hex(8)
        self._type(f"eval \"$(<{self._text_file})\"; printf '\\036%s:%s\\036' {nonce} $?")
        ended = f"{MARK}{nonce}:"
        output, matched = self._expect([*expect, ended], timeout_seconds)
        if matched != ended:
            return BashObservation(output=_plain(output), expect_string=matched)
        code, _ = self._expect([MARK], START_SECONDS)
        job_notices, _ = self._expect([PROMPT], START_SECONDS)
        return BashObservation(output=_plain(output + job_notices), exit_code=int(code), expect_string=PROMPT)

    def converse(self, action: Any) -> BashObservation:
        """Type a line into the terminal and wait for an expected text. corral judges a line that the shell itself reads."""
        if not self._is_in_program and not self._box.check(action.command, shell=True).allowed:
            return self._refused(action.command)
        self._type(action.command)
        self._is_in_program = True
        output, matched = self._expect([*action.expect, PROMPT], action.timeout)
        self._is_in_program = matched != PROMPT
        if action.is_interactive_quit:
            self._type("stty -echo")  # the program may have turned echo on
            self._expect([PROMPT], START_SECONDS)
        else:
            output = _plain(output).lstrip().removeprefix(action.command).strip()
        return BashObservation(output=_plain(output), exit_code=0, expect_string=matched)

    def interrupt(self, action: Any) -> BashObservation:
        """Interrupt the running command, and kill it if it ignores the interrupt."""
        wanted = [*action.expect, PROMPT]
        for _ in range(action.n_retry):
            self._handle.write_stdin(INTERRUPT)
            try:
                output, matched = self._expect(wanted, action.timeout)
            except CommandTimeoutError:
                continue
            return BashObservation(output=_plain(output).strip(), exit_code=0, expect_string=matched)
        self._handle.write_stdin(SUSPEND)
        output, _ = self._expect(wanted, START_SECONDS)
        self._type("kill -9 %1")
        killed, matched = self._expect(wanted, START_SECONDS)
        return BashObservation(output=_plain(output + killed).strip(), exit_code=0, expect_string=matched)

    def close(self) -> None:
        """Kill the shell and all its processes."""
        self._handle.kill()
        with self._changed:
            self._changed.wait_for(lambda: self._has_exited, START_SECONDS)

    def _refused(self, command: str) -> BashObservation:
        message = f"corral refused this. {self._box.check(command, shell=True).reason}\n"
        return BashObservation(output=message, exit_code=NOT_EXECUTABLE_EXIT_CODE, failure_reason="denied")

    def _refuse_syntax(self, command: str) -> None:
        checked = self._box.run(["bash", "-n"], stdin=command.encode())
        if not checked.ok and not checked.denied:
            streams = {"bash_stdout": checked.stdout_text, "bash_stderr": checked.stderr_text}
            raise BashIncorrectSyntaxError(f"bash cannot parse {command!r}: {checked.stderr_text}", extra_info=streams)

    def _type(self, line: str) -> None:
        if not self._handle.write_stdin(f"{line}\n".encode()):
            raise SessionNotInitializedError("the shell of this session has exited")

    def _expect(self, wanted: list[str], timeout_seconds: float | None) -> tuple[str, str]:
        """Consume the output up to the first of the wanted texts. Returns the output before it, and that text."""
        until = None if timeout_seconds is None else monotonic() + timeout_seconds
        with self._changed:
            while True:
                places = [(self._unread.find(text), text) for text in wanted]
                found = min(((at, text) for at, text in places if at >= 0), default=None)
                if found is not None:
                    at, text = found
                    before, self._unread = self._unread[:at], self._unread[at + len(text) :]
                    return before, text
                if self._has_exited:
                    last_output = _plain(self._unread)[-500:]
                    raise SessionNotInitializedError(f"the shell of this session has exited: {last_output}")
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    raise CommandTimeoutError(f"timeout after {timeout_seconds} seconds")
                self._changed.wait(left)

    def _receive(self, _stream: str, data: bytes) -> None:
        with self._changed:
            self._unread = (self._unread + data.decode("utf-8", "backslashreplace"))[-MAX_UNREAD:]
            self._changed.notify_all()

    def _wait_for_exit(self) -> None:
        try:
            self._handle.wait()
        finally:
            with self._changed:
                self._has_exited = True
                self._changed.notify_all()


def _plain(text: str) -> str:
    return OWN_MARKS.sub("", CONTROL.sub("", text)).replace("\r\n", "\n").replace(PROMPT, "")
