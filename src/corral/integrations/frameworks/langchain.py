"""LangChain: an execution policy for `ShellToolMiddleware` that contains the shell and judges each command written to it.

A refused command never reaches the shell. The shell prints the reason and returns 126 instead, and the session goes on.
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
from corral.integrations.frameworks._commands import open_box
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE

try:
    from langchain.agents.middleware._execution import BaseExecutionPolicy  # no public module exports it
except ImportError as error:
    raise missing_extra("langchain", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox

REFUSED = "printf '%s\\n' {reason} >&2; (exit {code})\n"
# The middleware writes this line after each command, to learn its exit code.
MARKER = re.compile(r"printf '__LC_SHELL_DONE__[0-9a-f]{32} %s\\n' \$\?\n")


@dataclass
class CorralExecutionPolicy(BaseExecutionPolicy):
    """Starts the middleware's shell in a sandbox over its workspace."""

    make_box: Callable[[str], Sandbox] | None = None  # opens the sandbox of a workspace, instead of the user's policy

    def spawn(self, *, workspace: Any, env: Mapping[str, str], command: Sequence[str]) -> Any:
        """Start a shell that runs until it is killed. Raises PermissionError if the sandbox refuses it."""
        root = os.fspath(workspace)
        box = self.make_box(root) if self.make_box else open_box(root, timeout_seconds=None)
        return ShellProcess(box, list(command), dict(env))


class ShellProcess:
    """A shell in its own sandbox, with the part of the Popen interface that the middleware uses."""

    def __init__(self, box: Sandbox, command: list[str], env: dict[str, str]) -> None:
        self._box = box
        self.stdout, self.stderr = Lines(), Lines()
        self._handle = box.start(command, env=env, open_stdin=True, on_output=self._receive)
        refused = self._handle.result
        if refused is not None and (refused.denied or not refused.ok):
            box.close()
            raise PermissionError(refused.reason or refused.stderr_text.strip())
        self.stdin = JudgedInput(box, self._handle)
        self._waiter = Thread(target=self._wait_for_exit, daemon=True)
        self._waiter.start()

    @property
    def pid(self) -> int:
        """The pid of this process. The middleware never kills its own process group, so it calls `kill` instead."""
        return os.getpid()

    @property
    def returncode(self) -> int | None:
        result = self._handle.result
        return None if result is None else result.exit_code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the shell to exit. Returns None after the timeout, and raises nothing."""
        self._waiter.join(timeout)
        return self.returncode

    def kill(self) -> None:
        self._handle.kill()
        self._waiter.join()

    terminate = kill

    def _receive(self, stream: str, data: bytes) -> None:
        (self.stdout if stream == "stdout" else self.stderr).feed(data)

    def _wait_for_exit(self) -> None:
        try:
            self._handle.wait()
        finally:
            self.stdout.end()
            self.stderr.end()
            self._box.close()


class JudgedInput:
    """The shell's stdin. Each write is judged as one command."""

    def __init__(self, box: Sandbox, handle: Handle) -> None:
        self._box = box
        self._handle = handle

    def write(self, text: str) -> int:
        """Send a command to the shell, or a command that prints the refusal."""
        if text.strip() and not MARKER.fullmatch(text):
            verdict = self._box.check(text, shell=True)
            if not verdict.allowed:
                reason = shell_quote(f"corral refused this. {verdict.reason}")
                return self._send(REFUSED.format(reason=reason, code=NOT_EXECUTABLE_EXIT_CODE))
        return self._send(text)

    def flush(self) -> None:
        """Do nothing: `write` does not buffer."""

    def close(self) -> None:
        self._handle.close_stdin()

    def _send(self, text: str) -> int:
        if not self._handle.write_stdin(text.encode()):
            raise BrokenPipeError("the shell has ended")
        return len(text)


class Lines:
    """A stream that receives bytes and returns lines of text."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._lines: SimpleQueue[str] = SimpleQueue()

    def feed(self, data: bytes) -> None:
        """Append output of the shell."""
        *whole, self._partial = (self._partial + self._decoder.decode(data)).split("\n")
        for line in whole:
            self._lines.put(f"{line}\n")

    def end(self) -> None:
        """Mark the end of the stream."""
        last = self._partial + self._decoder.decode(b"", True)
        if last:
            self._lines.put(last)
        self._lines.put("")

    def readline(self) -> str:
        """Wait for the next line. Returns an empty string at the end."""
        return self._lines.get()
