"""The handle of a command that was started: wait for it, stream it, talk to it, end it. Never a thread per run.

Any number of threads and coroutines may wait for one command, and each gets all that is printed once it listens.
"""

from __future__ import annotations

from _thread import RLock
from signal import valid_signals
from time import monotonic

from corral.containment import protocol
from corral.runtime.driver import NEVER, Driver
from corral.runtime.streams import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import AsyncIterator, Generator, Iterator
    from typing import Any, Self

    from corral.model.result import SandboxResult
    from corral.runtime.driver import OnResult
    from corral.runtime.streams import Chunk


class Handle(Driver):
    """A command that was started. `wait`, `await` or iterate to drive it; in between only its deadlines hold."""

    __slots__ = ()

    @property
    def result(self) -> SandboxResult | None:
        """What became of the command, or None while it runs."""
        return self._result

    def wait(self, timeout: float | None = None) -> SandboxResult:
        """Drive the command to its end and return its result; TimeoutError when that takes longer, and it runs on."""
        until = NEVER if timeout is None else monotonic() + timeout
        while self._result is None:
            self._drive(until)
            if self._result is None and until != NEVER and monotonic() >= until:
                raise TimeoutError(f"the command still runs after {timeout} seconds")
        return self._result

    def poll(self) -> SandboxResult | None:
        """Read what is there, and return the result if there is one already."""
        if not self._is_driving():
            self._drive(0.0)
        return self._result

    def when_done(self, callback: OnResult) -> None:
        """Call back with the result, once: now where there is one, else by whoever drives the command to its end."""
        with self._speaking:
            if self._warden is not None:
                # The warden is given back under this lock, and only then the result is told.
                self._on_result = _both(self._on_result, callback)
                return
        callback(self.wait())

    def kill(self) -> None:
        """End the command and everything it started; `wait` returns soon."""
        self._end()

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group, if the command still runs."""
        if number not in valid_signals():
            raise ValueError(f"{number!r} is no signal")
        self._say(protocol.SIGNAL, number)

    def write_stdin(self, data: bytes) -> bool:
        """Give the command more input without waiting until it is read; false when the command takes none."""
        self._check_owner()
        with self._speaking:
            return self._streams.write(data)

    def close_stdin(self) -> None:
        """End the command's input after what was written."""
        self._check_owner()
        with self._speaking:
            self._streams.end_input()

    def relay(self, descriptor: int) -> None:
        """Pass on what can be read from a descriptor as input, and its end, for as long as the command is driven."""
        self._relayed = descriptor

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the command's terminal, if it has one."""
        self._check_owner()
        with self._speaking:
            self._streams.resize(rows, columns)

    def close(self) -> None:
        """Kill the command if it still runs, and wait until it is gone; no callback hears of it."""
        if self._result is None:
            self._dismiss()
            self._end()
            self.wait()

    def __iter__(self) -> Iterator[Chunk]:
        """Yield what the command prints from now on, as it comes: the stream's name and bytes."""
        return self._chunks(self._subscribe())

    def _chunks(self, queue: deque[Chunk]) -> Iterator[Chunk]:
        while True:
            has_ended = self._result is not None
            while queue:
                yield queue.popleft()
            if has_ended:
                return
            self._drive(NEVER)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield what the command prints from now on, as it comes: the stream's name and bytes."""
        return self._chunks_in_loop(self._subscribe())

    async def _chunks_in_loop(self, queue: deque[Chunk]) -> AsyncIterator[Chunk]:
        while True:
            has_ended = self._result is not None
            while queue:
                yield queue.popleft()
            if has_ended:
                return
            await self._readiness()
            self._drive(0.0)

    def __await__(self) -> Generator[Any, None, SandboxResult]:
        return self._wait_in_loop().__await__()

    async def _wait_in_loop(self) -> SandboxResult:
        while self._result is None:
            await self._readiness()
            self._drive(0.0)
        return self._result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._result is None:
            self._dismiss()
            self._end()
            await self


def _both(first: OnResult | None, second: OnResult) -> OnResult:
    if first is None:
        return second

    def tell(result: SandboxResult) -> None:
        try:
            first(result)
        finally:
            second(result)

    return tell


class Finished(Handle):
    """The handle of a call that was not started: it has its result already."""

    __slots__ = ()

    def __init__(self, result: SandboxResult) -> None:
        self._result = result
        self._warden = None
        self._audience = None
        self._printed = None
        self._driving = RLock()
        self._speaking = RLock()
        self._streams = Streams()
        self._patience_ends_at = NEVER
