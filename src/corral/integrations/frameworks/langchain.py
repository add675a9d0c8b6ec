"""LangChain: an execution policy for `ShellToolMiddleware`, whose shell is contained as a whole and whose commands are judged as they come.

A refused command never reaches the shell: it prints the reason and ends with 126 instead, and the session goes on.
"""

from __future__ import annotations

import os
import re
from codecs import getincrementaldecoder
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

from corral._lib.quoting import shell_quote
from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._common import open_box
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE

try:
    from langchain.agents.middleware._execution import BaseExecutionPolicy  # it is exported nowhere else
except ImportError as error:
    raise missing_extra("langchain", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox

REFUSED = "printf '%s\\n' {reason} >&2; (exit {code})\n"
MARKER = re.compile(
    r"printf '__LC_SHELL_DONE__[0-9a-f]{32} %s\\n' \$\?\n"
)  # what the middleware asks for after each command


@dataclass
class CorralExecutionPolicy(BaseExecutionPolicy):
    """Starts the middleware's shell in a sandbox over its workspace."""

    make_box: Callable[[str], Sandbox] | None = None  # from the workspace's directory, in place of the owner's policy

    def spawn(self, *, workspace: Any, env: Mapping[str, str], command: Sequence[str]) -> Any:
        """Start a shell that lives until it is ended; PermissionError where it may not be started."""
        root = os.fspath(workspace)
        box = self.make_box(root) if self.make_box else open_box(root, timeout_seconds=None)
        return ShellProcess(box, list(command), dict(env))


class ShellProcess:
    """A shell in a sandbox of its own, with what the middleware uses of a Popen."""

    def __init__(self, box: Sandbox, command: list[str], env: dict[str, str]) -> None:
        self._box = box
        self.stdout, self.stderr = Lines(), Lines()
        self._handle = box.start(command, env=env, open_stdin=True, on_output=self._heard)
        refused = self._handle.result
        if refused is not None and (refused.denied or not refused.ok):
            box.close()
            raise PermissionError(refused.reason or refused.stderr_text.strip())
        self.stdin = JudgedInput(box, self._handle)
        self._driver = Thread(target=self._drive, daemon=True)
        self._driver.start()

    @property
    def pid(self) -> int:
        """This process's own: whoever would kill the shell's group by number is led to `kill`, which ends all of it."""
        return os.getpid()

    @property
    def returncode(self) -> int | None:
        """How the shell ended, or None while it runs."""
        result = self._handle.result
        return None if result is None else result.exit_code

    def poll(self) -> int | None:
        """Return how the shell ended, or None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; None, and not an exception, where that takes longer."""
        self._driver.join(timeout)
        return self.returncode

    def kill(self) -> None:
        """End the shell and everything it started."""
        self._handle.kill()
        self._driver.join()

    terminate = kill

    def _heard(self, stream: str, data: bytes) -> None:
        (self.stdout if stream == "stdout" else self.stderr).feed(data)

    def _drive(self) -> None:
        try:
            self._handle.wait()
        finally:
            self.stdout.end()
            self.stderr.end()
            self._box.close()


class JudgedInput:
    """The shell's input: what is written at once is one command, and is judged as one."""

    def __init__(self, box: Sandbox, handle: Handle) -> None:
        self._box = box
        self._handle = handle

    def write(self, text: str) -> int:
        """Hand a command to the shell, or what stands for its refusal."""
        if text.strip() and not MARKER.fullmatch(text):
            verdict = self._box.check(text, shell=True)
            if not verdict.allowed:
                reason = shell_quote(f"corral refused this. {verdict.reason}")
                return self._send(REFUSED.format(reason=reason, code=NOT_EXECUTABLE_EXIT_CODE))
        return self._send(text)

    def flush(self) -> None:
        """Do nothing: what is written is on its way."""

    def close(self) -> None:
        """End the shell's input."""
        self._handle.close_stdin()

    def _send(self, text: str) -> int:
        if not self._handle.write_stdin(text.encode()):
            raise BrokenPipeError("the shell has ended")
        return len(text)


class Lines:
    """A stream that is fed bytes and read in lines of text."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self._lines: SimpleQueue[str] = SimpleQueue()

    def feed(self, data: bytes) -> None:
        """Take what was printed."""
        *whole, self._begun = (self._begun + self._decoder.decode(data)).split("\n")
        for line in whole:
            self._lines.put(f"{line}\n")

    def end(self) -> None:
        """Say that nothing follows."""
        last = self._begun + self._decoder.decode(b"", True)
        if last:
            self._lines.put(last)
        self._lines.put("")

    def readline(self) -> str:
        """Return the next line as soon as there is one; nothing at the end."""
        return self._lines.get()
