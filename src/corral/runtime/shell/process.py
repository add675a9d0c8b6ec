"""Runs one bash that lasts: one thread reads its output and its answers, any thread gives it one text at a time."""

from __future__ import annotations

import fcntl
import os
import re
from _signal import SIGINT, SIGKILL, pidfd_send_signal  # type: ignore[import-not-found]  # as in the keeper
from _struct import unpack
from select import POLLIN, POLLOUT, poll
from termios import FIONREAD
from threading import Condition, Thread
from time import monotonic

from corral._lib.records import Record, frozen
from corral.containment import protocol
from corral.containment.kernel import process_tree
from corral.model.errors import ContainmentError
from corral.runtime.capture import STDERR, STDOUT, STREAM_NAMES, Capture, Captured
from corral.runtime.shell import channel
from corral.runtime.streams import READ_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.model.result import SandboxResult
    from corral.runtime.handle import Handle
    from corral.runtime.processes import WardenClient
    from corral.runtime.waiters import OnOutput

    Start = Callable[[tuple[int, ...]], Handle]

START_SECONDS = 30.0  # for bash to answer the first time; a loaded machine may take seconds
INTERRUPT_SECONDS = 1.0  # for a call to end after SIGINT; then everything it has started gets SIGKILL
PASS_SECONDS = 0.1  # between two passes of that: a loop in the shell may start the next command
FORCE_SECONDS = 2.0  # for all passes; then the shell itself is killed
END_SECONDS = 10.0  # for a killed shell to be gone
LOOK_SECONDS = 0.02  # between two looks whether the shell's warden has reported its end
# With job control off, an interactive bash still tries to repair its terminal after a job was killed by a signal.
_ABOUT_TERMINAL = re.compile(rb"bash: \[\d+: \d+ \(\d+\)\] tcsetattr: [^\n]*\n")


@frozen
class Ended(Record):
    """The end of one text."""

    exit_code: int | None  # None if the text was not run to its end
    output: Captured
    is_late: bool = False  # its time limit, or the limit of silence, had passed
    was_interrupted: bool = False
    killed: int = 0  # processes of the text that did not end by themselves
    shell: SandboxResult | None = None  # the result of the shell, if that has ended too


class _Text:
    """A text that runs."""

    def __init__(self, nonce: str, *, is_live: bool) -> None:
        self.nonce = nonce
        self.is_live = is_live
        self.status: str | None = None
        self.output: Captured | None = None
        self.chunks: list[tuple[str, bytes]] = []  # not yet given to `on_output`
        self.last_output_at = monotonic()
        self.is_interrupted = False


class ShellProcess:
    """One bash. When it has ended, make another one."""

    def __init__(self, start: Start, new_capture: Callable[[], Capture]) -> None:
        self._new_capture = new_capture
        self._capture = new_capture()
        self._changed = Condition()
        self._text: _Text | None = None
        self.result: SandboxResult | None = None  # once bash has ended
        self._channel = channel.Channel()
        self._wake_reader, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._streams: dict[int, int] = {}
        lent: list[int] = []
        try:
            for stream in (STDOUT, STDERR):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                self._streams[reader] = stream
                lent.append(writer)
            lent.append(protocol.sealed("script", channel.SCRIPT))
            self._handle = start((*lent, self._channel.theirs.fileno()))
        except BaseException:
            self._close()
            raise
        finally:
            protocol.close_all(lent)
            self._channel.close_theirs()
        Thread(target=self._serve, name="corral-shell", daemon=True).start()
        ready = self._send(lambda nonce: channel.record_of(":", nonce), START_SECONDS)
        if ready.exit_code is None and not self.has_ended:
            self.end()
            raise ContainmentError(f"the shell was not ready after {START_SECONDS:g} seconds")

    @property
    def has_ended(self) -> bool:
        """True if bash is gone."""
        return self.result is not None

    def directory(self) -> str | None:
        """Return bash's working directory as the kernel knows it: bash could be made to say another one."""
        try:
            # A removed directory keeps its name, with a mark of the kernel's.
            return os.readlink(f"/proc/{self._channel.pid}/cwd").removesuffix(" (deleted)")
        except OSError:
            return None

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the user and system time of bash and of the processes that it has waited for."""
        try:
            with open(f"/proc/{self._channel.pid}/stat", "rb", buffering=0) as file:
                # From the state on: the program's name can contain any character.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return 0.0, 0.0
        user, system, of_children, system_of_children = map(int, fields[11:15])
        ticks = os.sysconf("SC_CLK_TCK")
        return (user + of_children) / ticks, (system + system_of_children) / ticks

    def has_jobs(self) -> bool:
        """Return whether anything but bash runs."""
        return bool(set(self._processes()) - {self._channel.pid})

    def run(
        self,
        text: str,
        last_exit_code: int,
        *,
        seconds: float | None,
        silence_seconds: float | None,
        on_output: OnOutput | None,
    ) -> Ended:
        """Run a text to its end. After `seconds`, everything that it has started ends."""
        return self._send(
            lambda nonce: channel.record_of(text, nonce, last_exit_code), seconds, silence_seconds, on_output
        )

    def interrupt(self) -> bool:
        """End the text that runs now, with everything that it has started. Returns whether one runs."""
        with self._changed:
            if self._text is None:
                return False
            self._text.is_interrupted = True
            self._changed.notify_all()
            return True

    @property
    def warden(self) -> WardenClient | None:
        """The warden that runs bash, or None after its end."""
        return self._handle.warden

    def kill(self) -> None:
        """Kill bash and everything that it has started, without waiting."""
        self._handle.kill()

    def end(self) -> None:
        """Kill bash and everything that it has started, and wait until they are gone."""
        self._handle.kill()
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended, END_SECONDS)

    def _send(
        self,
        records: Callable[[str], bytes],
        seconds: float | None,
        silence_seconds: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Ended:
        text = _Text(os.urandom(protocol.NONCE_BYTES).hex(), is_live=on_output is not None)
        before = set(self._processes())
        until = None if seconds is None else monotonic() + seconds
        is_late, killed = False, 0
        with self._changed:
            self._text = text
            if not self.has_ended:
                self._channel.send(records(text.nonce))
                self._wake()
        try:
            is_late = self._await(text, until, silence_seconds, on_output)
        finally:
            # Also after a KeyboardInterrupt, and after an exception of the caller's.
            if not self._is_over(text):
                killed = self._stop(text, before)
            with self._changed:
                self._text = None
        if on_output is not None:
            self._deliver(text, on_output)
        status, output = text.status, text.output
        if output is None:
            output = self._take_output()
        code = int(status) if status is not None and status.isdigit() else None
        return Ended(code, output, is_late, text.is_interrupted and not is_late, killed, self.result)

    def _await(
        self, text: _Text, until: float | None, silence_seconds: float | None, on_output: OnOutput | None
    ) -> bool:
        """Wait until a text is over or is interrupted. Returns whether its time was over first."""
        while True:
            with self._changed:
                if self._is_over(text) or text.is_interrupted:
                    return False
                ends = [] if until is None else [until]
                if silence_seconds is not None:
                    ends.append(text.last_output_at + silence_seconds)
                left = min(ends) - monotonic() if ends else None
                if left is not None and left <= 0:
                    return True
                if not text.chunks or on_output is None:
                    self._changed.wait(left)
            if on_output is not None:
                self._deliver(text, on_output)

    def _deliver(self, text: _Text, on_output: OnOutput) -> None:
        with self._changed:
            chunks, text.chunks = text.chunks, []
        for name, data in chunks:
            on_output(name, data)

    def _is_over(self, text: _Text) -> bool:
        return text.output is not None or self.has_ended

    def _stop(self, text: _Text, before: set[int]) -> int:
        """End a text with everything that it has started; if that does not help, end the shell. Returns how many were killed."""
        killed: set[int] = set()
        interrupted = self._signal_text(before, SIGINT)
        again_at = monotonic() + INTERRUPT_SECONDS / 2
        force_at = again_at + INTERRUPT_SECONDS / 2
        give_up_at = force_at + FORCE_SECONDS
        while monotonic() < give_up_at:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_over(text), PASS_SECONDS):
                    break
            if monotonic() >= force_at:
                killed |= self._signal_text(before, SIGKILL)
                continue
            if monotonic() >= again_at:
                # A child of bash that was no program yet may have lost the first.
                interrupted, again_at = set(), force_at
            if self._started_by_text({*before, *interrupted}):
                # bash started it when its own interrupt was on the way. bash goes on after a child that no interrupt ended.
                interrupted |= self._signal_text({*before, *interrupted}, SIGINT)
        if not self._is_over(text):
            self.end()
        # What has ignored SIGINT and let bash go on.
        return len(killed | self._signal_text(before, SIGKILL, with_bash=False))

    def _signal_text(self, before: set[int], number: int, *, with_bash: bool = True) -> set[int]:
        """Signal what a text has started, and interrupt bash. Returns the processes that were signalled."""
        pids = self._started_by_text(before)
        reached = set()
        signals = [(pid, number) for pid in pids]
        if with_bash:
            # bash goes on with the next command if one was interrupted and bash was not. One that was killed does not count
            # as interrupted, so then bash gets its interrupt after that.
            signals.insert(0 if number == SIGINT else len(signals), (self._channel.pid, SIGINT))
        for pid, what in signals:
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                # The pid may have been given to another process before it was opened, and not after that.
                if pid in self._processes() and not process_tree.is_dead(pid):
                    pidfd_send_signal(pidfd, what)
                    reached.add(pid)
            except OSError:
                continue
            finally:
                os.close(pidfd)
        return reached - {self._channel.pid}

    def _started_by_text(self, before: set[int]) -> list[int]:
        return [pid for pid in self._processes() if pid not in before and pid != self._channel.pid]

    def _processes(self) -> list[int]:
        warden = self._handle.warden
        return [] if warden is None else process_tree.descendants(warden.pid)

    def _wake(self) -> None:
        """Wake the thread. The caller holds the lock, so the descriptor is open."""
        try:
            os.write(self._waker, b"\0")
        except OSError:
            # The pipe is full, so the thread wakes up anyway.
            return

    def _serve(self) -> None:
        """Read output and answers until bash has ended."""
        poller = poll()
        control = self._channel.sock.fileno()
        reports = -1 if self._handle.warden is None else self._handle.warden.descriptor
        for descriptor in (*self._streams, self._wake_reader, control, reports):
            if descriptor >= 0:
                poller.register(descriptor, POLLIN)
        listens = True
        buffer = bytearray(READ_BYTES)
        try:
            while not (self._handle.result is not None and not self._streams):
                if listens:
                    poller.modify(control, POLLIN | POLLOUT if self._channel.wants_to_send else POLLIN)
                events = poller.poll(None if listens else LOOK_SECONDS * 1000)
                for descriptor, event in events:
                    if descriptor in self._streams:
                        if not self._read(descriptor, buffer):
                            poller.unregister(descriptor)
                    elif descriptor == self._wake_reader:
                        os.read(self._wake_reader, READ_BYTES)
                    elif descriptor == reports:
                        # bash has ended. Its end of the socket may still be open: a trap can start a process that has it.
                        poller.unregister(reports)
                        if listens:
                            poller.unregister(control)
                        listens = False
                    elif event & POLLOUT:
                        with self._changed:
                            self._channel.flush()
                    elif not self._take_answers():
                        poller.unregister(control)
                        listens = False
                if not listens:
                    self._handle.poll()
                    if self._handle.result is not None and not events:
                        # Every writer is dead, or outside the sandbox.
                        break
        finally:
            if self._handle.result is None:
                self._handle.close()
            with self._changed:
                self.result = self._handle.result
                self._close()
                self._changed.notify_all()

    def _read(self, descriptor: int, buffer: bytearray, most: int = READ_BYTES) -> int:
        """Read once from a stream into the capture. Returns 0 at its end, where the descriptor is closed."""
        size = os.readv(descriptor, (memoryview(buffer)[:most],))
        if not size:
            del self._streams[descriptor]
            os.close(descriptor)
            return 0
        stream = self._streams[descriptor]
        with self._changed:
            data = memoryview(buffer)[:size]
            self._capture.feed(stream, data)
            if self._text is not None:
                self._text.last_output_at = monotonic()
                if self._text.is_live:
                    self._text.chunks.append((STREAM_NAMES[stream], bytes(data)))
                    self._changed.notify_all()
        return size

    def _take_answers(self) -> bool:
        """Handle bash's answers. Returns false when bash has closed its end."""
        answers = self._channel.receive()
        for nonce, status in answers or ():
            text = self._text
            if text is None or nonce != text.nonce:
                continue
            # bash answers after the text's own commands have ended, so what they have printed is in the pipes by now.
            for descriptor in tuple(self._streams):
                self._read_waiting(descriptor)
            with self._changed:
                text.status, text.output = status, self._take_output()
                self._changed.notify_all()
        return answers is not None

    def _read_waiting(self, descriptor: int) -> None:
        """Read what is in a pipe now. A job may print on without end."""
        left = unpack("i", fcntl.ioctl(descriptor, FIONREAD, b"\0" * 4))[0]
        buffer = bytearray(READ_BYTES)
        while left > 0:
            size = self._read(descriptor, buffer, min(left, READ_BYTES))
            if not size:
                return
            left -= size

    def _take_output(self) -> Captured:
        """Return the output since the last text. What jobs print from now on belongs to the next one."""
        kept, self._capture = self._capture.finish(), self._new_capture()
        if b"tcsetattr" not in kept.stderr:
            return kept
        stderr = _ABOUT_TERMINAL.sub(b"", kept.stderr)
        return kept.replace(stderr=stderr, stderr_bytes=kept.stderr_bytes - len(kept.stderr) + len(stderr))

    def _close(self) -> None:
        for descriptor in (*self._streams, self._wake_reader, self._waker):
            os.close(descriptor)
        self._streams = {}
        self._wake_reader = self._waker = -1
        self._channel.close()
