"""Background processes that outlive their call. Their number and stored output are bounded, and they end with their session."""

from __future__ import annotations

import os
from contextlib import contextmanager
from signal import SIGTERM
from time import monotonic

import anyio
import anyio.to_thread

from corral.model.errors import CorralError
from corral.runtime.capture import Stream, split_at_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.integrations.mcp.server_state import Project
    from corral.model.result import SandboxResult
    from corral.runtime.handle import Handle
    from corral.transactions.transaction import Transaction

MAX_RUNNING = 16  # commands at a time, in all sessions, in the background or not
MAX_KNOWN = 64  # including ended ones, whose output can still be read
BUFFER_BYTES = 1 << 20  # of each process, the last ones printed
READ_BYTES = 32 * 1024  # in one answer
RUNS_IN_TRANSACTION = "It runs in a transaction: the project stays as it is, and when the process has ended, its changes wait for the user."
IDLE_SECONDS = 30 * 60.0  # over HTTP, where no connection closes: a process that no call has named for so long is ended


class JobError(CorralError):
    """The request cannot be carried out on a background process; the message says why."""


class OutputBuffer:
    """The last bytes that a process printed. An offset counts from the first byte that it ever printed."""

    def __init__(self, size: int = BUFFER_BYTES) -> None:
        self._stream = Stream(0, size)
        self._event: anyio.Event | None = None  # set when there is more output, or will be none

    @property
    def total(self) -> int:
        """Return how many bytes were printed."""
        return self._stream.total

    def feed(self, data: bytes) -> None:
        """Add output."""
        self._stream.feed(data)
        self.wake()

    def wake(self) -> None:
        """Wake everything that waits for more output."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def more(self) -> None:
        """Wait until there is more output, or will be none."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    def last_line(self) -> str:
        """Return the last line that is not empty."""
        lines = self._stream.tail()[-READ_BYTES:].split(b"\n")
        return next((line.decode("utf-8", "replace") for line in reversed(lines) if line.strip()), "")

    def read(self, since: int, *, is_over: bool) -> tuple[str, int, int]:
        """Return text with its begin and end offset. An incomplete UTF-8 character at the end is left for the next read."""
        kept = self._stream.tail()
        first = self.total - len(kept)
        begin = min(max(since, first), self.total)
        data = kept[begin - first : begin - first + READ_BYTES]
        if not (is_over and begin + len(data) == self.total):
            data = data[: len(data) - split_at_end(data)]
        return data.decode("utf-8", "replace"), begin, begin + len(data)


class Job:
    """A background process."""

    def __init__(
        self,
        handle: Handle,
        output: OutputBuffer,
        project: Project,
        session: str,
        transaction: Transaction | None = None,
    ) -> None:
        self.id = os.urandom(8).hex()
        self.hint = "" if transaction is None else RUNS_IN_TRANSACTION
        self.handle = handle
        self.output = output
        self.project = project
        self.session = session
        self.used_at = monotonic()
        self._transaction = transaction
        self._lock = anyio.Lock()

    @property
    def result(self) -> SandboxResult | None:
        """Return the result, or None while the process runs."""
        return self.handle.result

    @property
    def is_running(self) -> bool:
        """True until the process has ended and the changes of its transaction are kept."""
        return self.result is None or self._transaction is not None

    async def settle(self) -> None:
        """If the process has ended, keep the changes of its transaction for the user's review."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                if self._transaction is None or self.result is None:
                    return
                ended, self._transaction = self._transaction, None
                try:
                    self.hint = await anyio.to_thread.run_sync(self.project.leave_waiting, ended)
                except CorralError as error:
                    ended.discard()
                    self.hint = (
                        f"It ran in a transaction. Run `corral history` to see whether its changes wait: {error}"
                    )

    async def more_than(self, offset: int) -> None:
        """Wait until there is output after an offset, or the process has ended."""
        while self.result is None and self.output.total <= offset:
            await self.output.more()


class Jobs:
    """The background processes of a server."""

    def __init__(self) -> None:
        self._known: dict[str, Job] = {}
        self._reserved = 0  # places of calls that start or run a command

    @contextmanager
    def place(self) -> Iterator[None]:
        """Reserve a place for a command inside the block; raise JobError if too many run. A job that was added has its own."""
        # Reserved before anything is awaited: calls that come at once would all find the same place free.
        if self._reserved + sum(job.is_running for job in self._known.values()) >= MAX_RUNNING:
            raise JobError(
                f"{MAX_RUNNING} commands are running already; wait until one ends, or stop a process with stop_process"
            )
        self._reserved += 1
        try:
            yield
        finally:
            self._reserved -= 1

    def is_used(self, project: Project) -> bool:
        """Return whether a process of a project runs."""
        return any(job.project is project and job.is_running for job in self._known.values())

    def add(self, job: Job) -> None:
        """Add a started process, and forget the oldest ended ones if there are too many."""
        for known in list(self._known.values()):
            if len(self._known) >= MAX_KNOWN and not known.is_running:
                del self._known[known.id]
        self._known[job.id] = job

    def find(self, process_id: str, session: str) -> Job:
        """Return the process of a session with this id; raise JobError if the session has none."""
        job = self._known.get(process_id)
        if job is None or job.session != session:
            raise JobError("no such process: start_process returns the id, and a process ends with its session")
        job.used_at = monotonic()
        return job

    async def stop(self, job: Job, grace_seconds: float) -> None:
        """Send SIGTERM to a process, and after the grace time kill it with everything it started."""
        if job.result is None and grace_seconds > 0:
            job.handle.signal(SIGTERM)
            with anyio.move_on_after(grace_seconds):
                await job.handle
        if job.result is None:
            job.handle.kill()
            await job.handle
        await job.settle()

    async def end(
        self, *, session: str | None = None, project: Project | None = None, idle_seconds: float = 0.0
    ) -> None:
        """Kill and forget the processes of a session or a project, or all, that were not used for `idle_seconds`."""
        used_before = monotonic() - idle_seconds
        for job in list(self._known.values()):
            is_meant = session in (None, job.session) and (project is None or job.project is project)
            if is_meant and job.used_at <= used_before:
                await self.stop(job, 0.0)
                self._known.pop(job.id, None)
