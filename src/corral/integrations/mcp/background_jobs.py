"""Processes that run on after their call: bounded in number and in what is kept of their output, and gone when their session is."""

from __future__ import annotations

import os
from signal import SIGTERM
from time import monotonic

import anyio
import anyio.to_thread

from corral.model.errors import CorralError
from corral.runtime.capture import Stream, split_at_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.integrations.mcp.server_state import Project
    from corral.model.result import SandboxResult
    from corral.runtime.handle import Handle
    from corral.transactions.transaction import Transaction

MAX_RUNNING = 16  # at a time, of all sessions
MAX_KNOWN = 64  # those that have ended included, whose output can still be read
LOG_BYTES = 1 << 20  # kept of each; the last ones printed
READ_BYTES = 32 * 1024  # in one answer
RUNS_IN_TRANSACTION = (
    "It runs in a transaction: the project stays as it is, and what it changes waits for the owner when it has ended."
)
IDLE_SECONDS = 30 * 60.0  # over HTTP, where nobody hangs up: not asked after for so long, a process is ended


class JobError(CorralError):
    """What was asked for cannot be done with a background process; the message says why."""


class OutputBuffer:
    """The last bytes that a process printed, each known by its place in all that it printed."""

    def __init__(self, size: int = LOG_BYTES) -> None:
        self._stream = Stream(0, size)
        self._bell: anyio.Event | None = None  # for those who wait for more

    @property
    def total(self) -> int:
        """How much was printed."""
        return self._stream.total

    def feed(self, data: bytes) -> None:
        """Take what was printed next."""
        self._stream.feed(data)
        self.ring()

    def ring(self) -> None:
        """Wake all who wait: there is more, or there will be no more."""
        if self._bell is not None:
            self._bell.set()
            self._bell = None

    async def more(self) -> None:
        """Wait until there is more, or will be no more."""
        if self._bell is None:
            self._bell = anyio.Event()
        await self._bell.wait()

    def last_line(self) -> str:
        """Return the last line that is not empty, as far as it is there."""
        lines = self._stream.tail()[-READ_BYTES:].split(b"\n")
        return next((line.decode("utf-8", "replace") for line in reversed(lines) if line.strip()), "")

    def read(self, since: int, *, is_over: bool) -> tuple[str, int, int]:
        """Return a text, where it begins and where it ends; a character of which more is to come is left for later."""
        kept = self._stream.tail()
        first = self.total - len(kept)
        begin = min(max(since, first), self.total)
        data = kept[begin - first : begin - first + READ_BYTES]
        end = begin + len(data)
        if not (is_over and end == self.total):
            data = data[: len(data) - split_at_end(data)]
        return data.decode("utf-8", "replace"), begin, begin + len(data)


class Job:
    """One process in the background."""

    def __init__(
        self, handle: Handle, log: OutputBuffer, place: Project, session: str, transaction: Transaction | None = None
    ) -> None:
        self.id = os.urandom(8).hex()
        self.hint = "" if transaction is None else RUNS_IN_TRANSACTION
        self._transaction = transaction
        self._turn = anyio.Lock()
        self.handle = handle
        self.log = log
        self.place = place
        self.session = session
        self.touched_at = monotonic()

    async def settle(self) -> None:
        """Leave what its transaction has changed for the owner, once it has ended."""
        with anyio.CancelScope(shield=True):
            async with self._turn:
                if self._transaction is None or self.result is None:
                    return
                ended, self._transaction = self._transaction, None
                try:
                    self.hint = await anyio.to_thread.run_sync(self.place.leave_waiting, ended)
                except CorralError as error:
                    ended.discard()
                    self.hint = f"It ran in a transaction; corral history says whether its changes wait: {error}"

    async def news(self, since: int) -> None:
        """Wait until something was printed after an offset, or the process has ended."""
        while self.result is None and self.log.total <= since:
            await self.log.more()

    @property
    def result(self) -> SandboxResult | None:
        """What became of it, or None while it runs."""
        return self.handle.result


class Jobs:
    """All processes in the background."""

    def __init__(self) -> None:
        self._known: dict[str, Job] = {}

    def make_room(self) -> None:
        """Forget the oldest that has ended where there are too many; JobError where too many run."""
        if sum(job.result is None for job in self._known.values()) >= MAX_RUNNING:
            raise JobError(f"{MAX_RUNNING} processes run already; stop one with stop_process first")
        for job in list(self._known.values()):
            if len(self._known) >= MAX_KNOWN and job.result is not None:
                del self._known[job.id]

    def add(self, job: Job) -> None:
        """Keep a process that was started."""
        self._known[job.id] = job

    def find(self, process_id: str) -> Job:
        """Return a process by its id."""
        job = self._known.get(process_id)
        if job is None:
            raise JobError("there is no such process; start_process gives the id of one, and its session ends it")
        job.touched_at = monotonic()
        return job

    async def stop(self, job: Job, grace_seconds: float) -> None:
        """Ask a process to end, and end it with all it started when it has not."""
        if job.result is None and grace_seconds > 0:
            job.handle.signal(SIGTERM)
            with anyio.move_on_after(grace_seconds):
                await job.handle
        if job.result is None:
            job.handle.kill()
            await job.handle
        await job.settle()

    async def end(self, *, session: str | None = None, place: Project | None = None, idle_seconds: float = 0.0) -> None:
        """End the processes of a session or a place, or all, that nobody has asked after for so long."""
        asked_before = monotonic() - idle_seconds
        for job in list(self._known.values()):
            is_meant = (session is None or job.session == session) and (place is None or job.place is place)
            if is_meant and job.touched_at <= asked_before:
                await self.stop(job, 0.0)
                self._known.pop(job.id, None)
