"""What happens while one command runs, in a poll loop or in an event loop: read, write, watch the clock, make the result.

Exactly one result, whatever happens to the command, the warden or the keeper. One drives at a time, whoever waits.
"""

from __future__ import annotations

import os
from _thread import RLock
from select import POLLIN, POLLOUT
from time import monotonic

from corral.containment import protocol
from corral.model.errors import ContainmentError
from corral.model.result import SandboxResult
from corral.runtime.capture import STREAM_NAMES, Capture, Captured
from corral.runtime.outcome import broken, call_fields, ending_of, lost, merges_errors, silent
from corral.runtime.processes import LONGEST_WAIT_SECONDS
from corral.runtime.streams import FLOOD_BYTES, READ_BYTES, Streams
from corral.runtime.waiters import Waiters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from typing import Any

    from corral.model.call import Call, Launch, Verdict
    from corral.policy.config import SandboxConfig
    from corral.runtime.outcome import Ending
    from corral.runtime.pool import Pool
    from corral.runtime.processes import WardenClient
    from corral.runtime.streams import Chunk
    from corral.runtime.waiters import OnOutput

    OnResult = Callable[[SandboxResult], object]

GRACE_SECONDS = 3.0  # what a warden has to end its command once it must, before it is itself killed
LONGEST_WAIT_WITH_INPUT_SECONDS = 0.05  # so that what another thread left to write is noticed
ANSWER_POLLS = 12  # that take less than to sleep and be woken
NEVER = float("inf")
_NOTHING_PRINTED = Captured()


class Driver:
    """The inside of a handle: streams, clock and warden of one command."""

    __slots__ = (
        "_audience",
        "_began_at",
        "_capture",
        "_config",
        "_driving",
        "_exited",
        "_expects_output",
        "_heard_at",
        "_inherits",
        "_judged",
        "_known",
        "_launch",
        "_nonce",
        "_on_result",
        "_patience_ends_at",
        "_pool",
        "_printed",
        "_relayed",
        "_result",
        "_silence_seconds",
        "_silent",
        "_speaking",
        "_started_at",
        "_streams",
        "_warden",
        "_whole",
    )

    def __init__(
        self,
        pool: Pool,
        warden: WardenClient,
        streams: Streams,
        launch: Launch,
        config: SandboxConfig,
        *,
        judged: tuple[Call, Verdict],
        nonce: bytes,
        began_at: float,
        started_at: float,
        inherits: bool,
        on_output: OnOutput | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        self._streams = streams
        self._warden: WardenClient | None = warden
        self._pool = pool
        self._launch = launch
        self._config = config
        self._judged = judged
        self._nonce = nonce
        self._inherits = inherits
        self._began_at = began_at
        self._started_at = self._heard_at = started_at
        self._result: SandboxResult | None = None
        self._known: dict[str, Any] | None = None
        self._capture: Capture | None = None  # made when something is read
        self._whole = _NOTHING_PRINTED  # what came with the answer
        self._audience = None if on_output is None else Waiters(on_output)
        self._printed: list[Chunk] | None = None if on_output is None else []  # not yet told to those who listen
        self._on_result = on_result
        self._relayed = -1
        self._driving = RLock()  # a thread that drives knows that it does, although an interrupt came in between
        # By a signal handler too, in the middle of the same thread's words.
        self._speaking = RLock()  # held while a message is sent, and while the warden is given back
        limit = launch.timeout_seconds
        self._patience_ends_at = NEVER if limit is None else started_at + limit + GRACE_SECONDS
        self._silence_seconds = None if inherits else config.output.silence_seconds
        self._silent = self._exited = self._expects_output = False
        warden.streams = streams
        streams.close_lent()
        for descriptor in streams.reading:
            warden.poller.register(descriptor, POLLIN)

    def __del__(self) -> None:
        # Nobody can ask for the result any more: hanging up makes the warden end the command.
        # A handle that an interrupt kept from being made has no warden.
        warden: WardenClient | None = getattr(self, "_warden", None)
        if warden is not None:
            self._streams.close()
            warden.close()

    def _say(self, kind: int, number: int = 0) -> None:
        if self._warden is None or self._warden.pidfd < 0:
            # In a fork of the host, the lock may be held for ever.
            return
        with self._speaking:
            if self._warden is not None:
                try:
                    self._warden.say(kind, self._nonce, number)
                except OSError:
                    # The warden is gone; whoever drives will see that.
                    return

    def _end(self) -> None:
        self._patience_ends_at = min(self._patience_ends_at, monotonic() + GRACE_SECONDS)
        self._say(protocol.KILL)

    def _dismiss(self) -> None:
        if self._audience is not None:
            self._audience.on_output = None

    def _hearers(self) -> Waiters:
        self._check_owner()
        with self._speaking:
            if self._audience is None:
                self._audience = Waiters()
            return self._audience

    def _subscribe(self) -> deque[Chunk]:
        queue = self._hearers().subscribe()
        if self._printed is None:
            self._printed = []
        return queue

    def _is_driving(self) -> bool:
        return bool(self._driving._is_owned())  # type: ignore[attr-defined]  # what threading.Condition uses

    def _drive(self, until: float) -> None:
        """Handle what is ready, waiting for it no longer than `until`; or wait for another who does."""
        if self._is_driving():
            raise RuntimeError("this thread is waiting for the command already; a callback cannot do so once more")
        self._check_owner()
        try:
            if not self._driving.acquire(False):
                self._follow(until)
            else:
                while self._result is None:
                    self._turn(self._held_warden(), until)
                    # Who follows or listens is told after each turn.
                    if until != NEVER or self._audience is not None:
                        break
        finally:
            if self._is_driving():
                self._driving.release()
                if self._audience is not None:
                    self._audience.ring()

    def _follow(self, until: float) -> None:
        seconds = min(until - monotonic(), LONGEST_WAIT_SECONDS)
        if seconds > 0:
            self._hearers().wait_for(self._driving, seconds)

    def _turn(self, warden: WardenClient, until: float) -> None:
        if self._streams.arrived:
            # Received, and a KeyboardInterrupt fell before it was acted on.
            self._take_output(warden)
            return
        if warden.inbox[0]:
            # Taken before, by who started the command, or a KeyboardInterrupt fell between taking it and acting on it.
            self._act(warden)
            return
        streams = self._streams
        seconds = self._seconds_to_wait(until)
        if seconds == LONGEST_WAIT_SECONDS and not (streams.reading or self._expects_output or streams.stdin >= 0):
            # Nothing but the answer can come.
            self._hear(warden)
            return
        of_input = {streams.stdin: POLLOUT} if streams.stdin >= 0 and streams.wants_to_write else {}
        if self._relayed >= 0 and streams.takes_input:
            of_input[self._relayed] = POLLIN
        for descriptor, event in of_input.items():
            warden.poller.register(descriptor, event)
        try:
            events = warden.poller.poll(seconds * 1000)
        finally:
            for descriptor in of_input:
                warden.poller.unregister(descriptor)
        if not events:
            self._watch_the_clock(warden)
            return
        spoken = False
        for descriptor, event in events:
            if descriptor in streams.reading:
                self._read(warden, descriptor, event)
            elif descriptor == warden.descriptor:
                spoken = True
            elif of_input.get(descriptor) == POLLIN:
                self._pass_on()
            else:
                with self._speaking:
                    streams.flush()
        if spoken:
            self._hear(warden)
        elif self._known is not None and not self._exited:
            # All is printed, so most often the answer is on its way: to sleep until it comes takes longer.
            any(warden.poller.poll(0) for _ in range(ANSWER_POLLS))
        if self._printed:
            self._publish()

    def _publish(self) -> None:
        printed, self._printed = self._printed, []
        if printed and self._audience is not None:
            self._audience.tell(printed)

    def _pass_on(self) -> None:
        try:
            data = os.read(self._relayed, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # A terminal that is gone.
            data = b""
        with self._speaking:
            if data:
                self._streams.write(data)
            else:
                self._relayed = -1
                self._streams.end_input()

    async def _readiness(self) -> None:
        """Wait in the running event loop until there is something to handle."""
        from asyncio import get_running_loop  # noqa: PLC0415  for those who have it loaded already

        self._check_owner()
        crowd = self._hearers().waiters_in_loop(get_running_loop())
        called, seconds = crowd.called, LONGEST_WAIT_SECONDS
        # Where a thread drives, it calls when it has.
        if self._driving.acquire(False):
            try:
                if self._result is not None or self._held_warden().inbox[0]:
                    return
                streams = self._streams
                relayed = (self._relayed,) if self._relayed >= 0 and streams.takes_input else ()
                crowd.watch(
                    (self._held_warden().descriptor, *streams.reading, *relayed),
                    (streams.stdin,) if streams.wants_to_write else (),
                )
                seconds = self._seconds_to_wait(NEVER)
            finally:
                self._driving.release()
                # For a thread that has just found it held.
                self._hearers().ring()
        await crowd.wait(seconds, called)

    def _held_warden(self) -> WardenClient:
        self._check_owner()
        assert self._warden is not None  # noqa: S101  there is no result yet
        return self._warden

    def _check_owner(self) -> None:
        # In this order: a thread that concludes sets the result before it gives the warden back.
        warden = self._warden
        if (warden is None or warden.pidfd < 0) and self._result is None:
            raise ContainmentError("this command belongs to the process that started it, of which this one is a fork")

    def _seconds_to_wait(self, until: float) -> float:
        alarm = min(until, self._patience_ends_at)
        if self._silence_seconds is not None and not self._exited and not self._silent:
            alarm = min(alarm, self._heard_at + self._silence_seconds)
        longest = LONGEST_WAIT_SECONDS if self._streams.stdin < 0 else LONGEST_WAIT_WITH_INPUT_SECONDS
        return max(min(alarm - monotonic(), longest), 0.0)

    def _watch_the_clock(self, warden: WardenClient) -> None:
        now = monotonic()
        silence = self._silence_seconds
        if silence is not None and not self._silent and not self._exited and now >= self._heard_at + silence:
            self._silent = True
            self._end()
        if now >= self._patience_ends_at:
            self._lose(warden)

    def _read(self, warden: WardenClient, descriptor: int, event: int) -> None:
        if event & POLLIN:
            if self._capture is None:
                self._capture = self._new_capture()
            if self._streams.read(descriptor, warden.buffer, self._capture, self._printed):
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

    def _new_capture(self) -> Capture:
        if self._pool.spill is not None:
            return self._pool.spill()
        return Capture(self._config.max_output_bytes, self._config.output.keep)

    def _end_the_drain(self) -> None:
        # The command is over and nobody can print any more: what still runs need not be waited for.
        if not (self._streams.reading or self._inherits or self._expects_output):
            self._say(protocol.DRAINED)

    def _hear(self, warden: WardenClient) -> None:
        if self._expects_output:
            self._take_output(warden)
            return
        try:
            size = warden.sock.recv_into(warden.inbox)
        except BlockingIOError:
            self._watch_the_clock(warden)
            return
        except OSError:
            size = 0
        self._believe(warden, size)

    def _believe(self, warden: WardenClient, size: int) -> None:
        """Act on what has the form of a message; who says something else is not listened to any more."""
        is_outcome = size >= protocol.OUTCOME.size and size == protocol.answer_bytes(warden.inbox)
        if is_outcome or (size == protocol.CONTROL.size and warden.inbox[0] == protocol.OUTPUT):
            self._act(warden)
        else:
            self._lose(warden)

    def _take_output(self, warden: WardenClient) -> None:
        """Read from now on what the command prints, which its warden has held so far."""
        warden.use_room()
        message, ends = self._streams.receive_ends(warden.sock)
        if ends and message == protocol.CONTROL.pack(protocol.OUTPUT, self._nonce, 0):
            self._expects_output = False
            for end in ends:
                warden.poller.register(end, POLLIN)
            self._streams.read_from(ends)
            return
        self._streams.drop_ends()
        # It has exited or ended meanwhile, and nothing could be handed over yet.
        is_outcome = not ends and len(message) > protocol.CONTROL.size
        warden.inbox[: len(message)] = message
        self._believe(warden, len(message) if is_outcome else 0)

    def _feed_printed(self, inbox: bytearray) -> None:
        """Take what was printed from an answer."""
        stdout, stderr = printed = protocol.printed(inbox)
        if max(len(stdout), len(stderr)) <= self._config.max_output_bytes:
            # All of it is kept.
            self._whole = Captured(stdout, stderr, False, len(stdout), len(stderr))
        else:
            capture = self._new_capture()
            for stream, data in enumerate(printed):
                capture.feed(stream, data)
            self._capture = capture
        # However often an interrupt has this done again, it is told once.
        if self._printed is not None:
            self._printed = [chunk for chunk in zip(STREAM_NAMES, printed, strict=True) if chunk[1]]
        protocol.clear_printed(inbox)

    def _act(self, warden: WardenClient) -> None:
        """Act on what the warden said; a word about another command is none."""
        inbox = warden.inbox
        kind = inbox[0] if inbox[1 : 1 + protocol.NONCE_BYTES] == self._nonce else 0
        if kind == protocol.ENDED:
            if self._streams.reading:
                self._drain(warden)
            elif protocol.answer_bytes(inbox) > protocol.OUTCOME.size:
                self._feed_printed(inbox)
            self._conclude(warden, ending_of(inbox, self._launch, self._config.limits))
            # Given back by now: what is in it may be the answer to another thread's command.
            return
        if kind == protocol.EXITED:
            self._exited = True
            self._end_the_drain()
        elif kind == protocol.OUTPUT:
            # The same comes once more, with what a buffer has no place for.
            self._expects_output = True
        inbox[0] = 0

    def _lose(self, warden: WardenClient) -> None:
        """Make a result without the warden, which was killed or does not answer."""
        limit = self._launch.timeout_seconds
        timed_out = limit is not None and monotonic() >= self._started_at + limit
        warden.kill()
        killed, hits = self._pool.sweep(warden)
        self._drain(warden)
        self._conclude(warden, lost(killed, broken(hits, self._config.limits), timed_out=timed_out))

    def _drain(self, warden: WardenClient) -> None:
        # The writers are dead, so what is left fits the pipes; more comes only from one who got a descriptor outside.
        streams = self._streams
        reads_left = 2 * FLOOD_BYTES // READ_BYTES
        while streams.reading and reads_left:
            events = [event for event in warden.poller.poll(0) if event[0] in streams.reading]
            if not events:
                return
            for descriptor, event in events:
                reads_left -= 1
                self._read(warden, descriptor, event)

    def _facts(self) -> dict[str, Any]:
        """Return the fields of the result that are known once everything is printed."""
        kept = self._whole if self._capture is None else self._capture.finish()
        facts = call_fields(*self._judged, self._launch.cwd, self._nonce, self._began_at)
        facts["stdout"], facts["stdout_bytes"] = kept.stdout, kept.stdout_bytes
        facts["stderr"], facts["stderr_bytes"] = kept.stderr, kept.stderr_bytes
        facts["truncated"], facts["full_output_path"] = kept.truncated, kept.path
        return facts

    def _conclude(self, warden: WardenClient, ending: Ending) -> None:
        if self._printed:
            # Before the result is to be seen: who iterates ends with it.
            self._publish()
        if self._silent:
            ending = silent(ending, self._silence_seconds or 0.0)
        facts = self._known or self._facts()
        violations = ending.violations
        if self._pool.inspect is not None:
            told = facts["stderr"]
            # On a terminal errors stand among the rest, and where the shell puts them there.
            if self._streams.terminal >= 0 or (not told and facts["stdout"] and merges_errors(self._judged[0])):
                told = facts["stdout"]
            found = self._pool.inspect(
                told,
                self._launch.cwd,
                warden.missing_layers,
                signal=ending.signal,
                began_at=self._began_at,
                warden=warden.pid,
            )
            if found:
                known = {violation.kind for violation in violations}
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
            connections=() if self._pool.reached is None else self._pool.reached(self._began_at),
            usage=ending.usage,
            killed=ending.killed,
            transaction=self._pool.transaction,
            network=self._config.containment.reach,
            **facts,
        )
        for descriptor in self._streams.reading:
            try:
                warden.poller.unregister(descriptor)
            except KeyError:
                # An interrupt fell between this and its closing.
                continue
        with self._speaking:
            self._warden = None
            self._streams.close()
        warden.streams = None
        if ending.reusable:
            warden.inbox[0] = 0
            self._pool.release(warden)
        else:
            warden.close()
        if self._on_result is not None:
            self._on_result(self._result)
