"""One command that runs, and the two drivers over it: a poll loop, and an event loop's readers. Never a thread per run.

A handle gives exactly one result, whatever happens to the command, the warden or the keeper.
"""

from __future__ import annotations

import os
from _thread import RLock, allocate_lock
from select import POLLIN, POLLOUT
from time import monotonic, time

from corral.capture import Capture, Captured
from corral.containment import wire
from corral.errors import ContainmentError
from corral.outcome import ending_of, facts_of, lost, silent
from corral.result import SandboxResult
from corral.streams import FLOOD_BYTES, READ_BYTES, Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Mapping
    from typing import Any, Self

    from corral.config import SandboxConfig
    from corral.model import Call, Launch, Verdict
    from corral.outcome import Ending
    from corral.spawn import Pool, Warden
    from corral.streams import Chunk

GRACE_SECONDS = 3.0  # what a warden has to end its command once it must, before it is itself killed
LONGEST_WAIT_SECONDS = 5.0  # so that a kill from another thread is followed up although this one waits
LONGEST_WAIT_WITH_INPUT_SECONDS = 0.05  # so that what another thread left to write is noticed
_NEVER = float("inf")
_NOTHING_PRINTED = Captured()


class Handle:
    """A command that was started. `wait`, `await` or iterate to drive it; in between only its deadlines hold."""

    __slots__ = (
        "_began_at",
        "_capture",
        "_config",
        "_exited",
        "_heard_at",
        "_inherits",
        "_judged",
        "_known",
        "_launch",
        "_lock",
        "_nonce",
        "_patience_ends_at",
        "_pool",
        "_result",
        "_silence_seconds",
        "_silent",
        "_speaking",
        "_started_at",
        "_streams",
        "_warden",
    )

    def __init__(
        self,
        pool: Pool,
        warden: Warden,
        streams: Streams,
        launch: Launch,
        config: SandboxConfig,
        *,
        judged: tuple[Call, Verdict],
        nonce: bytes,
        started_at: float,
        inherits: bool,
    ) -> None:
        self._warden: Warden | None = warden
        self._streams = streams
        self._pool = pool
        self._launch = launch
        self._config = config
        self._judged = judged
        self._nonce = nonce
        self._inherits = inherits
        self._began_at = time()
        self._started_at = self._heard_at = started_at
        self._result: SandboxResult | None = None
        self._known: dict[str, Any] | None = None
        self._capture: Capture | None = None  # made when something is printed
        self._lock = RLock()  # held while driving
        self._speaking = allocate_lock()  # held while a message is sent, and while the warden is given back
        limit = launch.timeout_seconds
        self._patience_ends_at = _NEVER if limit is None else started_at + limit + GRACE_SECONDS
        self._silence_seconds = None if inherits else config.output.silence_seconds
        self._silent = self._exited = False
        warden.streams = streams
        streams.close_lent()
        for descriptor in streams.reading:
            warden.poller.register(descriptor, POLLIN)

    @property
    def result(self) -> SandboxResult | None:
        """What became of the command, or None while it runs."""
        return self._result

    def wait(self, timeout: float | None = None) -> SandboxResult:
        """Drive the command to its end and return its result; TimeoutError when that takes longer, and it runs on."""
        until = _NEVER if timeout is None else monotonic() + timeout
        while self._result is None:
            self._drive(until, None)
            if self._result is None and until != _NEVER and monotonic() >= until:
                raise TimeoutError(f"the command still runs after {timeout} seconds")
        return self._result

    def poll(self) -> SandboxResult | None:
        """Read what is there, and return the result if there is one already."""
        self._drive(0.0, None)
        return self._result

    def kill(self) -> None:
        """End the command and everything it started; `wait` returns soon."""
        self._patience_ends_at = min(self._patience_ends_at, monotonic() + GRACE_SECONDS)
        self._say(wire.KILL)

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group, if the command still runs."""
        self._say(wire.SIGNAL, number)

    def write_stdin(self, data: bytes) -> bool:
        """Give the command more input without waiting until it is read; false when the command takes none."""
        with self._speaking:
            return self._streams.write(data)

    def close_stdin(self) -> None:
        """End the command's input after what was written."""
        with self._speaking:
            self._streams.end_input()

    def close(self) -> None:
        """Kill the command if it still runs, and wait until it is gone."""
        if self._result is None:
            self.kill()
            self.wait()

    def __iter__(self) -> Iterator[Chunk]:
        """Yield what the command prints, as it comes: the stream's name and bytes."""
        while self._result is None:
            chunks: list[Chunk] = []
            self._drive(_NEVER, chunks)
            yield from chunks

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield what the command prints, as it comes: the stream's name and bytes."""
        while self._result is None:
            chunks: list[Chunk] = []
            await self._readiness()
            self._drive(0.0, chunks)
            for chunk in chunks:
                yield chunk

    def __await__(self) -> Generator[Any, None, SandboxResult]:
        return self._wait_in_loop().__await__()

    async def _wait_in_loop(self) -> SandboxResult:
        while self._result is None:
            await self._readiness()
            self._drive(0.0, None)
        return self._result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Nobody can ask for the result any more: hanging up makes the warden end the command.
        if self._warden is not None:
            self._streams.close()
            self._warden.close()

    def _say(self, kind: int, number: int = 0) -> None:
        with self._speaking:
            if self._warden is not None:
                try:
                    self._warden.say(kind, self._nonce, number)
                except OSError:
                    # The warden is gone; whoever drives will see that.
                    return

    def _drive(self, until: float, chunks: list[Chunk] | None) -> None:
        """Handle what is ready, and wait for it no longer than `until`."""
        with self._lock:
            if self._result is not None:
                return
            warden = self._held_warden()
            if warden.inbox[0]:
                # A KeyboardInterrupt fell between taking an outcome and acting on it.
                self._act(warden, chunks)
                return
            streams = self._streams
            writing = streams.stdin if streams.wants_to_write else -1
            if writing >= 0:
                warden.poller.register(writing, POLLOUT)
            try:
                events = warden.poller.poll(self._seconds_to_wait(until) * 1000)
            finally:
                if writing >= 0:
                    warden.poller.unregister(writing)
            if not events:
                self._watch_the_clock(warden, chunks)
                return
            spoken = False
            for descriptor, event in events:
                if descriptor in streams.reading:
                    self._read(warden, descriptor, event, chunks)
                elif descriptor == warden.descriptor:
                    spoken = True
                else:
                    with self._speaking:
                        streams.flush()
            if spoken:
                self._hear(warden, chunks)

    async def _readiness(self) -> None:
        """Wait in the running event loop until there is something to handle."""
        from asyncio import get_running_loop  # noqa: PLC0415  for those who have it loaded already

        loop = get_running_loop()
        ready = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        readers = (self._held_warden().descriptor, *self._streams.reading)
        writing = self._streams.stdin if self._streams.wants_to_write else -1
        timer = loop.call_later(self._seconds_to_wait(_NEVER), wake)
        for descriptor in readers:
            loop.add_reader(descriptor, wake)
        if writing >= 0:
            loop.add_writer(writing, wake)
        try:
            await ready
        finally:
            timer.cancel()
            for descriptor in readers:
                loop.remove_reader(descriptor)
            if writing >= 0:
                loop.remove_writer(writing)

    def _held_warden(self) -> Warden:
        if self._warden is None or self._warden.pidfd < 0:
            raise ContainmentError("this command belongs to the process that started it, of which this one is a fork")
        return self._warden

    def _seconds_to_wait(self, until: float) -> float:
        alarm = min(until, self._patience_ends_at)
        if self._silence_seconds is not None:
            alarm = min(alarm, self._heard_at + self._silence_seconds)
        longest = LONGEST_WAIT_SECONDS if self._streams.stdin < 0 else LONGEST_WAIT_WITH_INPUT_SECONDS
        return max(min(alarm - monotonic(), longest), 0.0)

    def _watch_the_clock(self, warden: Warden, chunks: list[Chunk] | None) -> None:
        now = monotonic()
        silence = self._silence_seconds
        if silence is not None and not self._silent and not self._exited and now >= self._heard_at + silence:
            self._silent = True
            self.kill()
        if now >= self._patience_ends_at:
            self._lose(warden, chunks)

    def _read(self, warden: Warden, descriptor: int, event: int, chunks: list[Chunk] | None) -> None:
        if event & POLLIN:
            if self._capture is None:
                self._capture = Capture(self._config.max_output_bytes, self._config.output.keep)
            if self._streams.read(descriptor, warden.buffer, self._capture, chunks):
                if self._silence_seconds is not None:
                    self._heard_at = monotonic()
                return
        warden.poller.unregister(descriptor)
        self._streams.shut(descriptor)
        if self._exited:
            self._end_the_drain()
        elif not self._streams.reading:
            # Most often the command is about to end: what is known by now need not be put together when it has.
            self._known = self._facts()

    def _end_the_drain(self) -> None:
        # The command is over and nobody can print any more: what still runs need not be waited for.
        if not self._streams.reading and not self._inherits:
            self._say(wire.DRAINED)

    def _hear(self, warden: Warden, chunks: list[Chunk] | None) -> None:
        try:
            size = warden.sock.recv_into(warden.inbox)
        except OSError:
            size = 0
        if size == wire.OUTCOME.size:
            self._act(warden, chunks)
        else:
            self._lose(warden, chunks)

    def _act(self, warden: Warden, chunks: list[Chunk] | None) -> None:
        """Act on what the warden said; a word about another command is none."""
        inbox = warden.inbox
        kind = inbox[0] if inbox[1 : 1 + wire.NONCE_BYTES] == self._nonce else 0
        if kind == wire.ENDED:
            self._drain(warden, chunks)
            self._conclude(warden, ending_of(inbox, self._launch, self._config.limits))
        elif kind == wire.EXITED:
            self._exited = True
            self._end_the_drain()
        inbox[0] = 0

    def _lose(self, warden: Warden, chunks: list[Chunk] | None) -> None:
        """Make a result without the warden, which was killed or does not answer."""
        limit = self._launch.timeout_seconds
        timed_out = limit is not None and monotonic() >= self._started_at + limit
        warden.kill()
        killed = self._pool.sweep(warden)
        self._drain(warden, chunks)
        self._conclude(warden, lost(killed, timed_out=timed_out))

    def _drain(self, warden: Warden, chunks: list[Chunk] | None) -> None:
        # The writers are dead, so what is left fits the pipes; more comes only from one who got a descriptor outside.
        streams = self._streams
        reads_left = 2 * FLOOD_BYTES // READ_BYTES
        while streams.reading and reads_left:
            events = [event for event in warden.poller.poll(0) if event[0] in streams.reading]
            if not events:
                return
            for descriptor, event in events:
                reads_left -= 1
                self._read(warden, descriptor, event, chunks)

    def _facts(self) -> dict[str, Any]:
        """Return the fields of the result that are known once everything is printed."""
        kept = _NOTHING_PRINTED if self._capture is None else self._capture.finish()
        facts = facts_of(*self._judged, self._launch.cwd, self._nonce, self._began_at)
        facts["stdout"], facts["stdout_bytes"] = kept.stdout, kept.stdout_bytes
        facts["stderr"], facts["stderr_bytes"] = kept.stderr, kept.stderr_bytes
        facts["truncated"] = kept.truncated
        return facts

    def _conclude(self, warden: Warden, ending: Ending) -> None:
        if self._silent:
            ending = silent(ending, self._silence_seconds or 0.0)
        facts = self._known or self._facts()
        violations = ending.violations
        if self._pool.inspect is not None:
            known = {violation.kind for violation in violations}
            found = self._pool.inspect(facts["stderr"], self._launch.cwd, warden.missing_layers)
            violations += tuple([violation for violation in found if violation.kind not in known])
        if ending.message:
            said = ending.message.encode("utf-8", "surrogateescape")
            facts["stderr"] += said
            facts["stderr_bytes"] += len(said)
        self._result = SandboxResult(
            exit_code=ending.exit_code,
            timed_out=ending.timed_out,
            duration_ms=(monotonic() - self._started_at) * 1000,
            signal=ending.signal,
            backend=warden.backend,
            enforcement=warden.enforcement,
            missing_layers=warden.missing_layers,
            violations=violations,
            usage=ending.usage,
            killed=ending.killed,
            **facts,
        )
        for descriptor in self._streams.reading:
            warden.poller.unregister(descriptor)
        with self._speaking:
            self._warden = None
            self._streams.close()
        warden.streams = None
        if ending.reusable:
            warden.inbox[0] = 0
            self._pool.release(warden)
        else:
            warden.close()


class Finished(Handle):
    """The handle of a call that was not started: it has its result already."""

    __slots__ = ()

    def __init__(self, result: SandboxResult) -> None:
        self._result = result
        self._warden = None
        self._lock = RLock()
        self._speaking = allocate_lock()
        self._streams = Streams()
        self._patience_ends_at = _NEVER


def start(
    pool: Pool,
    launch: Launch,
    config: SandboxConfig,
    call: Call,
    verdict: Verdict,
    *,
    open_stdin: bool = False,
    inherit_stdin: bool = False,
    inherit_stdio: bool = False,
) -> Handle:
    """Hand a command to a warden."""
    # Before the clock starts: a deadline is the command's, not ours.
    pool.prepare()
    nonce = os.urandom(wire.NONCE_BYTES)
    started_at = monotonic()
    deadline = 0.0 if launch.timeout_seconds is None else started_at + launch.timeout_seconds
    streams = Streams()
    try:
        if inherit_stdio:
            streams.lend_own()
        else:
            streams.open_output()
            if launch.stdin is not None:
                streams.give_input(launch.stdin)
            elif inherit_stdin:
                streams.lend_input()
            elif open_stdin:
                streams.open_input()
        warden = pool.dispatch(_request(launch, config, nonce, deadline, streams), streams.lent)
    except OSError as error:
        streams.close()
        raise ContainmentError(f"the command could not be handed to a warden: {error}") from error
    except BaseException:
        streams.close()
        raise
    try:
        return Handle(
            pool,
            warden,
            streams,
            launch,
            config,
            judged=(call, verdict),
            nonce=nonce,
            started_at=started_at,
            inherits=inherit_stdio,
        )
    except BaseException:
        streams.close()
        warden.close()
        raise


def _request(launch: Launch, config: SandboxConfig, nonce: bytes, deadline: float, streams: Streams) -> bytes:
    flags = wire.HAS_STDIN if len(streams.lent) > 2 else 0
    environment = _environment_block(launch.env)
    body = wire.request_body(launch.executable, launch.cwd, launch.argv, environment)
    if len(body) > wire.MAX_PACKET_BYTES:
        streams.lent.append(wire.sealed("request", body))
        flags |= wire.HAS_BODY
        body = b""
    drain = config.output.drain_seconds or 0.0
    return wire.REQUEST.pack(wire.RUN, nonce, deadline, drain, flags, len(environment), 0, 0) + body


_last_block: tuple[Mapping[str, str], bytes] = ({}, b"")


def _environment_block(env: Mapping[str, str]) -> bytes:
    global _last_block  # noqa: PLW0603  one assignment, so threads see the old pair or the new
    seen, block = _last_block
    if env is not seen:
        block = wire.environment_block(env)
        _last_block = (env, block)
    return block
