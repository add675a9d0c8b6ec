"""Asks the person at the controlling terminal, if there is one. Anything but a clear answer counts as none.

Standard input is never read: it may be a pipe that an agent fills.
"""

from __future__ import annotations

import os
import stat
import sys
from select import POLLIN, poll
from signal import SIG_IGN, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, getsignal, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self

    from corral._lib.terminal import Terminal

TERMINAL = "/dev/tty"
YES, SHOW = ("y", "yes"), ("s", "show")
NO_ASK = "--no-ask or a hook forbids questions"
ANSWER_SECONDS = 300.0  # a script that waits for ever is worse than a refusal
MAX_ANSWER_BYTES = 4096  # the longest line of a terminal in canonical mode
# Set by coding agents for their commands. A host may give such a command a terminal and let the agent type in it.
AGENT_VARIABLES = (
    "CLAUDECODE", "CODEX_SANDBOX", "CODEX_THREAD_ID", "GEMINI_CLI", "CURSOR_AGENT", "OPENCODE", "COPILOT_CLI", "COPILOT_AGENT",
    "GOOSE_TERMINAL", "AUGMENT_AGENT", "AMP_CURRENT_THREAD_ID", "ANTIGRAVITY_AGENT", "AI_AGENT", "AGENT",
)  # fmt: skip
AGENT_PROGRAMS = frozenset(
    {"cursor-agent", "goose", "amp", "auggie", "crush", "cline", "qwen"}
)  # besides the known hosts
MAX_ANCESTORS = 64
_ENDINGS = (SIGHUP, SIGQUIT, SIGTERM)


class Interrupted(BaseException):
    """Raised when a signal comes while the user is asked."""


def agent_shell_reason(environ: Mapping[str, str]) -> str:
    """Return why this is the shell of a coding agent, or ""."""
    for name in AGENT_VARIABLES:
        if environ.get(name):
            return f"this is the shell of a coding agent ({name} is set)"
    return ""


def why_nobody(environ: Mapping[str, str]) -> str:
    """Return why no person can be asked here, or ""."""
    if why := agent_shell_reason(environ):
        return f"{why}, which could answer itself"
    if is_in_sandbox():
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


def why_not_owner(environ: Mapping[str, str]) -> str:
    """Return why corral cannot be sure that the user sits here, or "". For answers that outlast one command.

    Stdin and stdout must be the controlling terminal, and no agent may be among the processes that started this one.
    """
    if why := why_nobody(environ):
        return why
    if agent := agent_above():
        return f"an agent started this terminal ({agent}); open another one"
    if _has_no_new_privs():
        return "this is inside a sandbox"
    terminal = _controlling_terminal()
    for number, name in ((0, "standard input"), (1, "standard output")):
        try:
            found = os.fstat(number)
        except OSError:
            return f"{name} is closed"
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != terminal:
            return f"{name} is not the terminal"
    return ""


def _has_no_new_privs() -> bool:
    # Every sandbox sets this bit first, even where other layers are missing, and nothing inside can clear it.
    try:
        with open("/proc/self/status", "rb") as file:
            return b"\nNoNewPrivs:\t0\n" not in file.read()
    except OSError:
        return True


def _controlling_terminal() -> int:
    """Return the device number of the controlling terminal, or -1. Field tty_nr of proc(5) has its own encoding."""
    try:
        with open("/proc/self/stat", "rb") as file:
            number = int(file.read().rpartition(b")")[2].split()[4])
    except (OSError, ValueError, IndexError):
        return -1
    return os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)) if number else -1


def agent_above() -> str:
    """Return how a process above this one is recognised as a coding agent, or ""."""
    from corral.guard.rules.loader import hosts  # noqa: PLC0415  only for answers that outlast one command
    from corral.policy.agent_profiles import agent_for_program  # noqa: PLC0415

    process = os.getppid()
    for _ in range(MAX_ANCESTORS):
        if process <= 1:
            return ""
        for name in _program_names(process):
            if name in hosts() or name in AGENT_PROGRAMS or agent_for_program(name) is not None:
                return f"process {process}, {name}"
        # Another user's environment cannot be read, and another user's process is not an agent of this user.
        variables = {each.partition(b"=")[0] for each in _of_process(process, "environ").split(b"\0")}
        for name in AGENT_VARIABLES:
            if name.encode() in variables:
                return f"process {process} has the variable {name}"
        try:
            process = int(_of_process(process, "stat").rpartition(b")")[2].split()[1])
        except (ValueError, IndexError):
            return ""
    return f"more than {MAX_ANCESTORS} processes above it"


def _program_names(process: int) -> list[str]:
    """Return the names that a process may have: of its thread, its executable, and the script that it runs."""
    words = [os.fsdecode(word) for word in _of_process(process, "cmdline").split(b"\0")[:2]]
    try:
        words.append(os.readlink(f"/proc/{process}/exe"))
    except OSError:
        words.append("")
    names = [word.rpartition("/")[2].removesuffix(".js") for word in words]
    return list(filter(None, [os.fsdecode(_of_process(process, "comm").strip()), *names]))


def _of_process(process: int, name: str) -> bytes:
    try:
        with open(f"/proc/{process}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def is_in_sandbox() -> bool:
    """Return whether this process runs inside a sandbox, or cannot find out."""
    try:
        with open("/proc/self/status", "rb") as file:
            state = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
    except OSError:
        return True
    return state.get(b"NoNewPrivs") == b"1" and state.get(b"Seccomp") == b"2"


def without_middle(lines: list[str], most: int, terminal: Terminal) -> tuple[list[str], bool]:
    """Return at most `most` lines and whether these are all; 0 means no limit. Both ends stay: danger is often put last."""
    if not most or len(lines) <= most:
        return lines, True
    omitted = f"{terminal.sign('cut')} {len(lines) - most} lines are not shown here"
    return [*lines[: most // 2], f"  {terminal.paint('ask', omitted)}", *lines[-(most // 2) :]], False


class TerminalPrompt:
    """The controlling terminal while the user is asked: in canonical mode, and only lines typed after the question count."""

    def __init__(self) -> None:
        self._descriptor = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self._settings: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._received: list[int] = []
        self._is_asking = False
        self.has_timed_out = False

    def isatty(self) -> bool:
        """Return whether this is a terminal, like a stream."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return the terminal's descriptor."""
        return self._descriptor

    @property
    def encoding(self) -> str:
        """The terminal's encoding, which the environment tells."""
        return sys.stderr.encoding or "ascii"

    def __enter__(self) -> Self:
        import termios  # noqa: PLC0415  most calls are not asked about

        for number in (SIGINT, SIGTSTP, *_ENDINGS):
            if getsignal(number) is not SIG_IGN:
                self._handlers[number] = signal(number, self._interrupt)
        self._settings = termios.tcgetattr(self._descriptor)
        own = [*self._settings]
        own[0] |= termios.ICRNL
        own[1] |= termios.OPOST
        own[3] |= termios.ICANON | termios.ECHO | termios.ISIG
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, own)
        self._is_asking = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Restore the terminal and the handlers. Ctrl-C and Ctrl-Z only end the question; SIGTERM and the like end corral."""
        self._is_asking = False
        import termios  # noqa: PLC0415

        if kind is Interrupted:
            self.write("\n")
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._settings)
        os.close(self._descriptor)
        for number, handler in self._handlers.items():
            signal(number, handler)
        for number in self._received:
            if number in _ENDINGS:
                raise SystemExit(128 + number)
        return kind is Interrupted

    def _interrupt(self, number: int, _: object) -> None:
        self._received.append(number)
        if self._is_asking:
            # An exception, because Python restarts the read after a handler that returns.
            raise Interrupted(number)

    def write(self, text: str) -> None:
        """Write text that must already be printable."""
        data = memoryview(text.encode(self.encoding, "backslashreplace"))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def ask(self, question: str, seconds: float | None = None) -> str:
        """Write the question and return the next line in lower case. Returns "" on end of file, and when the time is over."""
        import termios  # noqa: PLC0415

        # Keys that were pressed before the question are no answer to it.
        termios.tcflush(self._descriptor, termios.TCIFLUSH)
        self.write(question)
        poller = poll()
        poller.register(self._descriptor, POLLIN)
        self.has_timed_out = not poller.poll((ANSWER_SECONDS if seconds is None else seconds) * 1000)
        line = b"" if self.has_timed_out else os.read(self._descriptor, MAX_ANSWER_BYTES)
        if not line.endswith(b"\n"):
            self.write("\n")
            return ""
        return line.decode("utf-8", "replace").strip().lower()
