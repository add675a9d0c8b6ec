"""The person at the controlling terminal: whether there is one, and what they answer. Whatever is not a clear word is no answer.

Standard input is never read: it may be a pipe that an agent fills.
"""

from __future__ import annotations

import os
from select import POLLIN, poll
from signal import SIG_IGN, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, getsignal, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self

TERMINAL = "/dev/tty"
ANSWER_SECONDS = 300.0  # nobody is there; and a script that waits for ever is worse than a refusal
MAX_ANSWER_BYTES = 4096  # a line of a terminal is no longer
# What coding agents set for the commands that they run. A host may give those a terminal, and its agent the keys.
AGENT_VARIABLES = (
    "CLAUDECODE", "CODEX_SANDBOX", "CODEX_THREAD_ID", "GEMINI_CLI", "CURSOR_AGENT", "OPENCODE", "COPILOT_CLI", "COPILOT_AGENT",
    "GOOSE_TERMINAL", "AUGMENT_AGENT", "AMP_CURRENT_THREAD_ID", "ANTIGRAVITY_AGENT", "AI_AGENT", "AGENT",
)  # fmt: skip
_ENDINGS = (SIGHUP, SIGQUIT, SIGTERM)


class Interrupted(BaseException):
    """A signal came while somebody was asked."""


def agent_shell_reason(environ: Mapping[str, str]) -> str:
    """Return why this is not the owner's shell, or nothing."""
    for name in AGENT_VARIABLES:
        if environ.get(name):
            return f"this is the shell of a coding agent ({name} is set)"
    return ""


def why_nobody(environ: Mapping[str, str]) -> str:
    """Return why no person can be asked here, or nothing."""
    if why := agent_shell_reason(environ):
        return f"{why}, which could answer itself"
    if _is_in_sandbox():
        return "this is inside a sandbox"
    try:
        descriptor = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return "there is no terminal"
    try:
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return "corral is in the background of the terminal"
    except OSError:
        return "there is no terminal"
    finally:
        os.close(descriptor)
    return ""


def inside_sandbox_reason() -> str:
    """Return that this is inside a sandbox, or nothing."""
    return "this is inside a sandbox" if _is_in_sandbox() else ""


def _is_in_sandbox() -> bool:
    try:
        with open("/proc/self/status", "rb") as file:
            state = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
    except OSError:
        return True
    return state.get(b"NoNewPrivs") == b"1" and state.get(b"Seccomp") == b"2"


class TerminalPrompt:
    """The terminal while it is asked: a whole line, typed after the question, with keys that mean what they always mean."""

    def __init__(self) -> None:
        self.descriptor = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self._settings: list[Any] = []
        self._before: dict[int, Any] = {}
        self._came: list[int] = []
        self._is_asking = False

    def isatty(self) -> bool:
        """Whether it is a terminal, as a stream says it."""
        return os.isatty(self.descriptor)

    def fileno(self) -> int:
        """The terminal's descriptor."""
        return self.descriptor

    @property
    def encoding(self) -> str:
        """What the terminal shows, as far as the environment tells."""
        import sys  # noqa: PLC0415

        return sys.stderr.encoding or "ascii"

    def __enter__(self) -> Self:
        import termios  # noqa: PLC0415  only where somebody is asked

        for number in (SIGINT, SIGTSTP, *_ENDINGS):
            if getsignal(number) is not SIG_IGN:
                self._before[number] = signal(number, self._interrupt)
        self._settings = termios.tcgetattr(self.descriptor)
        own = [*self._settings]
        own[0] |= termios.ICRNL
        own[1] |= termios.OPOST
        own[3] |= termios.ICANON | termios.ECHO | termios.ISIG
        termios.tcsetattr(self.descriptor, termios.TCSADRAIN, own)
        self._is_asking = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Put everything back. An interrupt is no answer, and goes no further; SIGTERM and the like end us."""
        self._is_asking = False
        import termios  # noqa: PLC0415

        if kind is Interrupted:
            self.tell("\n")
        termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._settings)
        os.close(self.descriptor)
        for number, handler in self._before.items():
            signal(number, handler)
        for number in self._came:
            if number in _ENDINGS:
                raise SystemExit(128 + number)
        return kind is Interrupted

    def _interrupt(self, number: int, _: object) -> None:
        self._came.append(number)
        if self._is_asking:
            # Raised: noted alone, the read would only be begun again.
            raise Interrupted(number)

    def tell(self, text: str) -> None:
        """Show a text that cannot drive the terminal."""
        data = memoryview(text.encode(self.encoding, "backslashreplace"))
        while data:
            data = data[os.write(self.descriptor, data) :]

    def answer(self, question: str) -> str:
        """Return the next line in lower case; nothing for end of file, or where nobody answers."""
        import termios  # noqa: PLC0415

        # Keys that were hit before the question are no answer to it.
        termios.tcflush(self.descriptor, termios.TCIFLUSH)
        self.tell(question)
        line = self._line()
        if not line.endswith(b"\n"):
            self.tell("\n")
            return ""
        return line.decode("utf-8", "replace").strip().lower()

    def _line(self) -> bytes:
        waiting = poll()
        waiting.register(self.descriptor, POLLIN)
        return os.read(self.descriptor, MAX_ANSWER_BYTES) if waiting.poll(ANSWER_SECONDS * 1000) else b""
