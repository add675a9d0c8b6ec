"""Drives one command from the host: reads output, writes input, watches the deadlines and builds the result.

The same code serves a poll loop and an event loop. Every command gets exactly one result, also when its warden or the keeper
dies. Any number of threads and coroutines may wait; one of them drives at a time.
"""

from __future__ import annotations

import os
from _thread import RLock
from select import POLLIN, POLLOUT
from time import monotonic

from corral.containment import protocol
from corral.model.errors import ContainmentError
from corral.runtime.capture import STREAM_NAMES, Capture, Captured
from corral.runtime.outcome import (
    build_result,
    limit_violations,
    output_fields,
    parse_outcome,
    silence_ending,
    warden_lost_ending,
)
from corral.runtime.processes import LONGEST_WAIT_SECONDS
from corral.runtime.streams import FLOOD_BYTES, READ_BYTES, Streams
from corral.runtime.waiters import Waiters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from typing import Any

    from corral.model.result import SandboxResult
    from corral.runtime.outcome import Ending
    from corral.runtime.pool import Pool
    from corral.runtime.processes import WardenClient
    from corral.runtime.run_options import RunContext, SentCommand
    from corral.runtime.streams import Chunk

    OnResult = Callable[[SandboxResult], object]

GRACE_SECONDS = 3.0  # for a warden to end its command after a deadline or a kill; then the warden itself is killed
LONGEST_WAIT_WITH_INPUT_SECONDS = 0.05  # so that input queued by another thread is written soon
MAX_MESSAGES = 16  # about one command; a warden sends four, and late ones about its last command
ANSWER_POLLS = 12  # polls without sleeping; together they take less time than one sleep and wake-up
NEVER = float("inf")
_NOTHING_PRINTED = Captured()


class Driver:
    """The streams, the deadlines and the warden of one running command."""

    def __init__(
        self,
        pool: Pool,
        context: RunContext,
        warden: WardenClient,
        streams: Streams,
        sent: SentCommand,
        *,
        on_result: OnResult | None = None,
    ) -> None:
        self._streams = streams
        self._warden: WardenClient | None = warden
        self._pool = pool
        self._context = context
        self._sent = sent
        self._last_output_at = sent.started_at
        self.result: SandboxResult | None = None
        self._facts_after_eof: dict[str, Any] | None = None
        self._capture: Capture | None = None  # created by the first read
        self._whole_output = _NOTHING_PRINTED  # output that came inside the warden's answer
        on_output = sent.options.on_output
        self._waiters = None if on_output is None else Waiters(on_output)
        self._printed: list[Chunk] | None = None if on_output is None else []  # not yet given to the waiters
        self._on_result = on_result
        self.relayed = -1  # a descriptor of the host whose data becomes the command's input
        self._driving = RLock()  # reentrant: a thread that was interrupted while driving must still know that it drives
        # Held while a message is sent to the warden and while the warden is released. Reentrant: a signal handler may send a
        # message in the middle of another one.
        self._control = RLock()
        limit = sent.launch.timeout_seconds
        self._patience_ends_at = NEVER if limit is None else sent.started_at + limit + GRACE_SECONDS
        reads_nothing = sent.options.inherit_stdio or bool(sent.options.descriptors)
        self._silence_seconds = None if reads_nothing else context.config.output.silence_seconds
        self._silent = self._exited = self._expects_pipes = False
        self._messages = 0
        warden.streams = streams
        streams.close_lent()
        for descriptor in streams.reading:
            warden.poller.register(descriptor, POLLIN)

    def __del__(self) -> None:
        # Nothing can ask for the result any more. Closing the connection makes the warden kill the command.
        # An interrupt inside the constructor leaves an object without this attribute.
        warden: WardenClient | None = getattr(self, "_warden", None)
        if warden is not None:
            self._streams.close()
            warden.close()

    @property
    def warden(self) -> WardenClient | None:
        """The warden that runs the command, or None after its end."""
        return self._warden

    def send(self, kind: int, number: int = 0) -> None:
        """Send a control message about the command to its warden. Does nothing after the command has ended."""
        if self._warden is None or self._warden.pidfd < 0:
            # After fork() the child may have inherited this lock in the locked state.
            return
        with self._control:
            if self._warden is not None:
                try:
                    self._warden.say(kind, self._sent.nonce, number)
                except OSError:
                    # The warden is dead or does not read; the thread that drives notices that.
                    return

    def kill(self) -> None:
        """Have the warden kill the command; kill the warden when it has not done so in time."""
        self._patience_ends_at = min(self._patience_ends_at, monotonic() + GRACE_SECONDS)
        self.send(protocol.KILL)

    def drop_callback(self) -> None:
        """Deliver no more output to `on_output`."""
        if self._waiters is not None:
            self._waiters.on_output = None

    def when_done(self, callback: OnResult) -> bool:
        """Register a callback for the result. Returns false when the command has ended already."""
        with self._control:
            # The warden is released under this lock, and the callbacks run only after that.
            if self._warden is None:
                return False
            self._on_result = callback if self._on_result is None else _call_both(self._on_result, callback)
            return True

    def write(self, data: bytes) -> bool:
        """Queue input for the command. Returns false when the command takes none."""
        self.check_process()
        with self._control:
            return self._streams.write(data)

    def end_input(self) -> None:
        """Close the command's input after the queued data."""
        self.check_process()
        with self._control:
            self._streams.end_input()

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the command's terminal, if it has one."""
        self.check_process()
        with self._control:
            self._streams.resize(rows, columns)

    def _require_waiters(self) -> Waiters:
        self.check_process()
        with self._control:
            if self._waiters is None:
                self._waiters = Waiters()
            return self._waiters

    def subscribe(self) -> deque[Chunk]:
        """Return a queue that receives all output from now on."""
        queue = self._require_waiters().subscribe()
        if self._printed is None:
            self._printed = []
        return queue

    def is_driving(self) -> bool:
        """Return whether the calling thread drives this command."""
        return bool(self._driving._is_owned())  # type: ignore[attr-defined]  # threading.Condition uses it too

    def drive(self, until: float) -> None:
        """Handle events until the result is known or `until` has passed. When another thread drives, wait for it instead."""
        if self.is_driving():
            raise RuntimeError("this thread is waiting for the command already; a callback cannot wait for it again")
        self.check_process()
        try:
            if not self._driving.acquire(False):
                seconds = min(until - monotonic(), LONGEST_WAIT_SECONDS)
                if seconds > 0:
                    self._require_waiters().wait_for(self._driving, seconds)
            else:
                while self.result is None:
                    self._turn(self._live_warden(), until)
                    # Other waiters must see the state after every turn.
                    if until != NEVER or self._waiters is not None:
                        break
        finally:
            if self.is_driving():
                self._driving.release()
                if self._waiters is not None:
                    self._waiters.wake()

    def _turn(self, warden: WardenClient, until: float) -> None:
        """Wait for one batch of events and handle it."""
        if self._streams.arrived:
            # A KeyboardInterrupt came between receiving these pipes and using them.
            self._receive_pipes(warden)
            return
        if warden.inbox[0]:
            # The message was received by `dispatch`, or a KeyboardInterrupt came before it was handled.
            self._handle_message(warden)
            return
        streams = self._streams
        seconds = self._seconds_to_wait(until)
        if seconds == LONGEST_WAIT_SECONDS and not (streams.reading or self._expects_pipes or streams.stdin >= 0):
            # Only the warden's answer can arrive, so a blocking read replaces poll().
            self._receive(warden)
            return
        input_events = {streams.stdin: POLLOUT} if streams.stdin >= 0 and streams.wants_to_write else {}
        if self.relayed >= 0 and streams.takes_input:
            input_events[self.relayed] = POLLIN
        for descriptor, event in input_events.items():
            warden.poller.register(descriptor, event)
        try:
            events = warden.poller.poll(seconds * 1000)
        finally:
            for descriptor in input_events:
                warden.poller.unregister(descriptor)
        if not events:
            self._check_deadlines(warden)
            return
        has_message = False
        for descriptor, event in events:
            if descriptor in streams.reading:
                self._read(warden, descriptor, event)
            elif descriptor == warden.descriptor:
                has_message = True
            elif input_events.get(descriptor) == POLLIN:
                self._relay_input()
            else:
                with self._control:
                    streams.flush()
        if has_message:
            self._receive(warden)
        elif self._facts_after_eof is not None and not self._exited:
            # Both streams are at EOF, so the answer usually follows at once. Sleeping until it comes takes longer.
            any(warden.poller.poll(0) for _ in range(ANSWER_POLLS))
        if self._printed:
            self._publish()
        if not seconds and self.result is None:
            # A warden that is taken over could send output for ever, so a deadline also holds while there is some.
            self._check_deadlines(warden)

    def _publish(self) -> None:
        printed, self._printed = self._printed, []
        if printed and self._waiters is not None:
            self._waiters.deliver(printed)

    def _relay_input(self) -> None:
        try:
            data = os.read(self.relayed, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # The terminal was closed.
            data = b""
        with self._control:
            if data:
                self._streams.write(data)
            else:
                self.relayed = -1
                self._streams.end_input()

    async def wait_ready(self) -> None:
        """Wait in the running event loop until there is something to handle."""
        from asyncio import get_running_loop  # noqa: PLC0415  a program without an event loop does not load asyncio

        in_loop = self._require_waiters().waiters_in_loop(get_running_loop())
        wakeups, seconds = in_loop.wakeups, LONGEST_WAIT_SECONDS
        # When another thread drives, it wakes this loop.
        if self._driving.acquire(False):
            try:
                if self.result is not None or self._live_warden().inbox[0]:
                    return
                streams = self._streams
                relayed = (self.relayed,) if self.relayed >= 0 and streams.takes_input else ()
                in_loop.watch(
                    (self._live_warden().descriptor, *streams.reading, *relayed),
                    (streams.stdin,) if streams.wants_to_write else (),
                )
                seconds = self._seconds_to_wait(NEVER)
            finally:
                self._driving.release()
                # Another thread may just have found the lock taken.
                self._require_waiters().wake()
        await in_loop.wait(seconds, wakeups)

    def _live_warden(self) -> WardenClient:
        self.check_process()
        assert self._warden is not None  # noqa: S101  there is no result yet
        return self._warden

    def check_process(self) -> None:
        """Raise ContainmentError in a fork of the process that started the command."""
        # In this order: the thread that concludes sets the result before it releases the warden.
        warden = self._warden
        if (warden is None or warden.pidfd < 0) and self.result is None:
            raise ContainmentError("this command belongs to the process that started it, of which this one is a fork")

    def _seconds_to_wait(self, until: float) -> float:
        deadline = min(until, self._patience_ends_at)
        if self._silence_seconds is not None and not self._exited and not self._silent:
            deadline = min(deadline, self._last_output_at + self._silence_seconds)
        longest = LONGEST_WAIT_SECONDS if self._streams.stdin < 0 else LONGEST_WAIT_WITH_INPUT_SECONDS
        return max(min(deadline - monotonic(), longest), 0.0)

    def _check_deadlines(self, warden: WardenClient) -> None:
        now = monotonic()
        silence = self._silence_seconds
        if silence is not None and not self._silent and not self._exited and now >= self._last_output_at + silence:
            self._silent = True
            self.kill()
        if now >= self._patience_ends_at:
            self._conclude_without_warden(warden)

    def _read(self, warden: WardenClient, descriptor: int, event: int) -> None:
        if event & POLLIN:
            if self._capture is None:
                self._capture = self._context.new_capture()
            if self._streams.read(descriptor, warden.buffer, self._capture, self._printed):
                if self._silence_seconds is not None:
                    self._last_output_at = monotonic()
                return
        warden.poller.unregister(descriptor)
        self._streams.close_reading(descriptor)
        if self._exited:
            self._report_drained()
        elif not self._streams.reading:
            # The command is usually about to exit. Building these fields now saves time after it has.
            self._facts_after_eof = self._facts()

    def _report_drained(self) -> None:
        # The command has exited and all its output was read, so the warden need not wait for processes that still run.
        if not (self._streams.reading or self._sent.options.inherit_stdio or self._expects_pipes):
            self.send(protocol.DRAINED)

    def _receive(self, warden: WardenClient) -> None:
        if self._expects_pipes:
            self._receive_pipes(warden)
            return
        try:
            size = warden.sock.recv_into(warden.inbox)
        except BlockingIOError:
            self._check_deadlines(warden)
            return
        except OSError:
            size = 0
        self._handle_if_valid(warden, size)

    def _handle_if_valid(self, warden: WardenClient, size: int) -> None:
        """Handle the message in the inbox. A warden that sends anything else, or too much, is killed."""
        self._messages += 1
        is_outcome = size >= protocol.OUTCOME.size and size == protocol.answer_bytes(warden.inbox)
        is_valid = is_outcome or (size == protocol.CONTROL.size and warden.inbox[0] == protocol.OUTPUT)
        if is_valid and self._messages <= MAX_MESSAGES:
            self._handle_message(warden)
        else:
            self._conclude_without_warden(warden)

    def _receive_pipes(self, warden: WardenClient) -> None:
        """Receive the command's output pipes, which the warden has read until now."""
        warden.free_reserved()
        message, ends = self._streams.receive_ends(warden.sock)
        if ends and message == protocol.CONTROL.pack(protocol.OUTPUT, self._sent.nonce, 0):
            self._expects_pipes = False
            for end in ends:
                warden.poller.register(end, POLLIN)
            self._streams.read_from(ends)
            return
        self._streams.drop_ends()
        # The command may have exited before its warden could send the pipes.
        is_outcome = not ends and len(message) > protocol.CONTROL.size
        warden.inbox[: len(message)] = message
        self._handle_if_valid(warden, len(message) if is_outcome else 0)

    def _take_printed(self, inbox: bytearray) -> None:
        """Take the output from the warden's answer."""
        stdout, stderr = printed = protocol.printed(inbox)
        if max(len(stdout), len(stderr)) <= self._context.config.max_output_bytes:
            self._whole_output = Captured(stdout, stderr, False, len(stdout), len(stderr))
        else:
            capture = self._context.new_capture()
            for stream, data in enumerate(printed):
                capture.feed(stream, data)
            self._capture = capture
        # A KeyboardInterrupt can restart this block; replacing the list keeps output from being delivered twice.
        if self._printed is not None:
            self._printed = [chunk for chunk in zip(STREAM_NAMES, printed, strict=True) if chunk[1]]
        protocol.clear_printed(inbox)

    def _handle_message(self, warden: WardenClient) -> None:
        """Handle one message from the warden. Messages that carry another command's nonce are ignored."""
        inbox = warden.inbox
        kind = inbox[0] if inbox[1 : 1 + protocol.NONCE_BYTES] == self._sent.nonce else 0
        if kind == protocol.ENDED:
            if self._streams.reading:
                self._drain(warden)
            elif protocol.answer_bytes(inbox) > protocol.OUTCOME.size:
                self._take_printed(inbox)
            try:
                ending = parse_outcome(inbox, self._sent.launch, self._context.config.limits)
            except protocol.ProtocolError:
                self._conclude_without_warden(warden)
                return
            self._conclude(warden, ending)
            # The warden is back in the pool: its inbox may already hold the answer to another thread's command.
            return
        if kind == protocol.EXITED and not self._exited:
            self._exited = True
            self._report_drained()
        elif kind == protocol.OUTPUT:
            # The warden sends this message again, with the pipes attached. recv_into() above cannot receive descriptors.
            self._expects_pipes = True
        inbox[0] = 0

    def _conclude_without_warden(self, warden: WardenClient) -> None:
        """Build the result of a command whose warden died, stopped answering or sent an invalid message."""
        limit = self._sent.launch.timeout_seconds
        timed_out = limit is not None and monotonic() >= self._sent.started_at + limit
        warden.kill()
        killed, hits = self._pool.sweep(warden)
        self._drain(warden)
        self._conclude(
            warden, warden_lost_ending(killed, limit_violations(hits, self._context.config.limits), timed_out=timed_out)
        )

    def _drain(self, warden: WardenClient) -> None:
        # All writers are dead, so the remaining output fits in the pipe buffers. More can only come from a process outside
        # the sandbox that received the descriptor; the read limit bounds that.
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
        kept = self._whole_output if self._capture is None else self._capture.finish()
        return output_fields(self._sent, kept)

    def _conclude(self, warden: WardenClient, ending: Ending) -> None:
        """Build the result, release the warden and call `on_result`."""
        if self._printed:
            # Before the result is set: an iteration stops as soon as it sees one.
            self._publish()
        if self._silent:
            ending = silence_ending(ending, self._silence_seconds or 0.0)
        facts = self._facts_after_eof or self._facts()
        on_terminal = self._streams.terminal >= 0
        self.result = build_result(self._sent, self._context, warden, ending, facts, on_terminal=on_terminal)
        for descriptor in self._streams.reading:
            try:
                warden.poller.unregister(descriptor)
            except KeyError:
                # A KeyboardInterrupt came between unregistering and closing it.
                continue
        with self._control:
            self._warden = None
            self._streams.close()
        warden.streams = None
        if ending.reusable:
            warden.inbox[0] = 0
            self._pool.release(warden)
        else:
            warden.close()
        self._pool.settle()
        if self._on_result is not None:
            self._on_result(self.result)


def _call_both(first: OnResult, second: OnResult) -> OnResult:
    def call(result: SandboxResult) -> None:
        try:
            first(result)
        finally:
            second(result)

    return call
