"""A process of a session that was started to stay: no client waits for it, and its output is kept, bounded."""

from __future__ import annotations

from _thread import start_new_thread
from time import time

from corral.apps.cli.session.command import call_facts
from corral.apps.cli.session.environment import client_environment, current_environment
from corral.model.errors import CorralError
from corral.model.render_result import exit_status
from corral.runtime.run_options import RunOptions
from corral.sessions.output_log import OutputLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from corral.apps.cli.session.command import JudgedCall
    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox

    class Session(Protocol):
        """Keeps the processes of a session."""

        def ended(self, process: KeptProcess) -> None: ...
        def moved(self, process: KeptProcess, box: Sandbox) -> None: ...


class KeptProcess:
    """A process that ends by itself, by `corral stop`, or with its session."""

    def __init__(self, box: Sandbox, judged: JudgedCall, session: Session) -> None:
        self.id = ""
        self.box = box
        self.output = OutputLog()
        self.is_running = True
        self._judged, self._session = judged, session
        self._next: tuple[Sandbox, str] | None = None  # the sandbox in which it starts again, and why
        self._is_stopped = False
        self._environ = current_environment()
        self._started_at = time()
        self._status: int | None = None
        self._handle: Handle | None = None

    def start(self) -> None:
        """Start the process, and read its output in a thread of its own."""
        options = RunOptions(self._judged.call, on_output=lambda _, data: self.output.append(data), open_stdin=True)
        try:
            self._handle = self.box._runner.start(options)
            start_new_thread(self._watch, ())
        except (CorralError, OSError, RuntimeError) as error:
            self._end(125, f"corral: {error}\n")

    def _watch(self) -> None:
        assert self._handle is not None  # noqa: S101  started before
        result = self._handle.wait()
        text = ""
        try:
            with client_environment(self._environ):
                self._judged.log.result(result)
        except CorralError as error:
            text = f"corral: {error}\n"
        if self._next is not None and not self._is_stopped:
            (box, why), self._next = self._next, None
            self.output.append(f"corral: ended, and starts again: {why}\n{text}".encode())
            self._session.moved(self, box)
            with client_environment(self._environ):
                self.start()
            return
        if not self.output.has_any:
            text += result.stderr.decode("utf-8", "replace")  # the reason if it could not start
        self._end(exit_status(result), text)

    def _end(self, status: int, text: str) -> None:
        if text:
            self.output.append(text.encode("utf-8", "replace"))
        self._status = status
        self.is_running = False
        self.output.close()
        self._session.ended(self)

    def write(self, data: bytes) -> bool:
        """Send input. Returns false when the process takes none."""
        return self._handle is not None and self._handle.write_stdin(data)

    def kill(self) -> None:
        """Kill the process and all that it started."""
        self._is_stopped = True
        if self._handle is not None:
            self._handle.kill()

    def move(self, box: Sandbox, why: str) -> None:
        """End the process, and start it again in another sandbox. Its output says why."""
        self._next = box, why
        if self._handle is not None:
            self._handle.kill()

    def facts(self) -> dict[str, object]:
        """Return what `corral ps` shows."""
        own = {"id": self.id, "started_at": self._started_at, "background": True, "running": self.is_running}
        return {**own, "exit_code": self._status, **call_facts(self._judged.call)}
