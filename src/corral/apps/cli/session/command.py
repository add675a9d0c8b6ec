"""One call that runs in a session for a client: started, waited for, logged, and reported as `corral run` reports it."""

from __future__ import annotations

import os
from time import time

from corral._lib.records import Record, frozen
from corral._lib.terminal import Terminal, terminal_of
from corral.apps.cli.run_log import violation_lines
from corral.apps.cli.session.environment import client_environment, current_environment
from corral.apps.cli.shell_state import ShellState, prepare_shell_file
from corral.model.errors import CorralError
from corral.model.render_grant import allow_line
from corral.model.render_result import FAILURE_STATUS, denial_text, exit_status, timeout_text
from corral.runtime.run_options import RunOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.apps.cli.questions.held_connections import HeldConnections
    from corral.apps.cli.run_log import RunLog
    from corral.model.call import Call
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig
    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox


@frozen
class JudgedCall(Record):
    """A call that may run in the session, and what its client and the log get."""

    call: Call
    config: SandboxConfig
    log: RunLog
    warnings: list[str]  # about the log, for the client
    held: HeldConnections
    keeps: str = ""  # the state that the host's shell keeps, as in a pending call
    exported: tuple[str, ...] = ()  # variables that earlier commands have exported to the host's shell


class _ClientStream:
    """The stderr of a client, to ask what its terminal shows."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor


class ClientCommand:
    """A command that a client waits for."""

    def __init__(self, box: Sandbox, judged: JudgedCall, ended: Callable[[ClientCommand], object]) -> None:
        self.id = ""
        self.box = box
        self._judged, self._ended = judged, ended
        self._environ = current_environment()
        self._started_at = time()
        self._handle: Handle | None = None
        self._state: ShellState | None = None
        self._state_file = ""
        self._error: CorralError | OSError | None = None
        self._terminal = Terminal()
        self._width = 0

    def start(self, streams: list[int], pending: str = "") -> None:
        """Start the command with the client's streams. An error becomes its result: the call must not run a second time."""
        stderr = _ClientStream(streams[2])
        self._terminal = terminal_of(stderr, os.environ)
        self._width = self._terminal.columns if stderr.isatty() else 0
        judged, own = self._judged, self.box.config.output
        try:
            self.box._state.allow_exported(judged.exported)
            if judged.keeps:
                prepare_shell_file(pending)
                self._state_file = f"{pending}.state"
                self._state = ShellState(self.box, judged.call, exports=judged.keeps == "exports")
            limit = judged.config.timeout_seconds
            options = RunOptions(judged.call, None, limit, inherit_stdio=True, stdio=tuple(streams))
            self._handle = self.box._runner.start(options)
        except (CorralError, OSError) as error:
            self._error = error
        finally:
            self.box.use_output(own)

    def signal(self, number: int) -> None:
        """Send a signal to the command."""
        if self._handle is not None:
            self._handle.signal(number)

    def kill(self) -> None:
        """Kill the command and all that it started."""
        if self._handle is not None:
            self._handle.kill()

    def facts(self) -> dict[str, object]:
        """Return what `corral ps` shows."""
        own = {"id": self.id, "started_at": self._started_at, "background": False, "running": True}
        return {**own, **call_facts(self._judged.call)}

    def wait(self) -> tuple[int, bytes, bytes]:
        """Wait for the end, log the result, and return the exit status and the text for the client."""
        try:
            result = None if self._handle is None else self._handle.wait()
            with client_environment(self._environ):
                status, text = self._failed() if result is None else self._finish(result)
        except CorralError as error:
            status, text = FAILURE_STATUS, f"corral: {error}\n"
        finally:
            self._ended(self)
        return status, b"", text.encode("utf-8", "replace")

    def _failed(self) -> tuple[int, str]:
        if isinstance(self._error, CorralError):
            self._judged.log.failure(self._judged.call, self._error)
        return FAILURE_STATUS, f"corral: {self._error}\n"

    def _finish(self, result: SandboxResult) -> tuple[int, str]:
        judged = self._judged
        judged.log.result(result)
        if self._state is not None and not result.denied:
            self._state.write(self._state_file, os.environ)
        refused_later = judged.held.save_refusal(result)
        lines = judged.warnings
        if result.denied:
            lines.append(denial_text(judged.call, result, self._terminal))
        elif result.timed_out:
            lines.append(timeout_text(judged.config.timeout_seconds))
        elif result.stderr:
            lines.append(result.stderr.decode("utf-8", "replace").removesuffix("\n"))
        lines += violation_lines(result, self._width)
        if refused_later:
            lines.append(f"corral: {allow_line(refused_later)}")
        return exit_status(result), "".join(f"{line}\n" for line in lines)


def call_facts(call: Call) -> dict[str, object]:
    """Return a call as `corral ps` shows it."""
    argv = call.argv
    words = [argv] if isinstance(argv, str) else list(argv)
    return {"shell" if call.shell else "argv": words[0] if call.shell else words, "cwd": call.cwd or ""}
