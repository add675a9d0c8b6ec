"""Runs a program in a new pseudo-terminal."""

import fcntl
import os
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

from observe import DEADLINE_SECONDS

from corral.apps.cli.questions.terminal_prompt import AGENT_VARIABLES


class Screen:
    """A pseudo-terminal with a program running in it."""

    def __init__(
        self, command: list[str], cwd: Path, rows: int = 24, columns: int = 80, environ: dict[str, str] | None = None
    ) -> None:
        self.outer, self.inner = os.openpty()
        self.seen = b""
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.inner)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.outer)
                os.login_tty(self.inner)
                os.chdir(cwd)
                unwanted = ("COLUMNS", "LINES", "NO_COLOR", *AGENT_VARIABLES)
                env = {name: value for name, value in os.environ.items() if name not in unwanted}
                os.execvpe(command[0], command, env | {"TERM": "xterm", "PS1": "outer> "} | (environ or {}))
            finally:
                os._exit(99)

    def type(self, keys: bytes) -> None:
        os.write(self.outer, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: bytes) -> bytes:
        """Read until a text appears, and return everything up to it."""
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < give_up_at, f"{text!r} never came, but {self.seen!r}"
            self.read(0.1)
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def read(self, seconds: float) -> None:
        if select.select([self.outer], [], [], seconds)[0]:
            self.seen += os.read(self.outer, 65536)

    def status(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while True:
            self.read(0.01)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                self.read(0)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < give_up_at, f"it never ended; {self.seen!r}"

    def settings(self) -> list[object]:
        return termios.tcgetattr(self.inner)

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.inner)[3] & termios.ICANON

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.outer)
        os.close(self.inner)


# The first process keeps the terminal's session; the program is the child of a child that has ended.
_ORPHAN = """if True:
    import os, signal, sys, time
    if os.fork():
        signal.signal(signal.SIGINT, lambda *_: None)
        while True:
            signal.pause()
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    os.execvp(sys.argv[1], sys.argv[1:])
"""


class OrphanScreen(Screen):
    """A pseudo-terminal whose program has no parent among the developer's processes, one of which may be a coding agent."""

    def __init__(self, command: list[str], cwd: Path, columns: int = 80, environ: dict[str, str] | None = None) -> None:
        shell = ["sh", "-c", 'trap : INT; "$@"; echo "[exit $?]"', "sh"]
        super().__init__([sys.executable, "-c", _ORPHAN, *shell, *command], cwd, columns=columns, environ=environ)

    def status(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        before = self.until(b"[exit ")
        code = int(self.until(b"]")[:-1])
        self.seen = before + self.seen
        return code
