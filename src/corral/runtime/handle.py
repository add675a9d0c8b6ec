"""The handle of a started command: wait for it, stream its output, write its input, end it. No thread is needed per command.

Any number of threads and coroutines may wait for one command. Each iteration receives all output from its start on.
"""

from __future__ import annotations

from collections import deque
from signal import valid_signals
from time import monotonic

from corral.containment import protocol
from corral.runtime.driver import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator
    from typing import Any, Self

    from corral.model.result import SandboxResult
    from corral.runtime.driver import Driver, OnResult
    from corral.runtime.processes import WardenClient
    from corral.runtime.streams import Chunk


class Handle:
    """A started command. `wait`, `await` or iterate to drive it; between those calls only its deadlines are kept.

    The handle of a call that was refused or could not start has its result and no driver.
    """

    __slots__ = ("_driver", "_result")

    def __init__(self, driver: Driver | None, result: SandboxResult | None = None) -> None:
        self._driver = driver
        self._result = result

    @property
    def result(self) -> SandboxResult | None:
        """The result, or None while the command runs."""
        return self._result if self._driver is None else self._driver.result

    @property
    def warden(self) -> WardenClient | None:
        """The warden that runs the command, or None when none does."""
        return None if self._driver is None else self._driver.warden

    def wait(self, timeout: float | None = None) -> SandboxResult:
        """Drive the command to its end and return its result; TimeoutError after `timeout` seconds, and the command runs on."""
        driver = self._driver
        until = NEVER if timeout is None else monotonic() + timeout
        while (result := self._result if driver is None else driver.result) is None:
            self._running().drive(until)
            if until != NEVER and self.result is None and monotonic() >= until:
                raise TimeoutError(f"the command still runs after {timeout} seconds")
        return result

    def poll(self) -> SandboxResult | None:
        """Handle pending events without waiting, and return the result if there is one."""
        if self._driver is not None and not self._driver.is_driving():
            self._driver.drive(0.0)
        return self.result

    def when_done(self, callback: OnResult) -> None:
        """Call `callback` once with the result: now if there is one, otherwise in the thread that drives the command to its end."""
        if self._driver is None or not self._driver.when_done(callback):
            callback(self.wait())

    def kill(self) -> None:
        """Kill the command and every process it started. `wait` returns soon after."""
        if self._driver is not None:
            self._driver.kill()

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group, if the command still runs."""
        if number not in valid_signals():
            raise ValueError(f"{number!r} is no signal")
        if self._driver is not None:
            self._driver.send(protocol.SIGNAL, number)

    def write_stdin(self, data: bytes) -> bool:
        """Queue input for the command without waiting. Returns false when the command takes none."""
        return self._driver is not None and self._driver.write(data)

    def close_stdin(self) -> None:
        """Close the command's input after the queued data."""
        if self._driver is not None:
            self._driver.end_input()

    def relay(self, descriptor: int) -> None:
        """Copy data and EOF from a descriptor to the command's input, while the command is driven."""
        if self._driver is not None:
            self._driver.relayed = descriptor

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the command's terminal, if it has one."""
        if self._driver is not None:
            self._driver.resize(rows, columns)

    def close(self) -> None:
        """Kill the command if it still runs and wait until it is gone. `on_output` is not called any more."""
        if self._kill_quietly():
            self.wait()

    def __iter__(self) -> Iterator[Chunk]:
        """Yield output from now on as it arrives: the stream's name and bytes."""
        return self._chunks(self._subscribe())

    def _chunks(self, queue: deque[Chunk]) -> Iterator[Chunk]:
        while True:
            has_ended = self.result is not None
            while queue:
                yield queue.popleft()
            if has_ended:
                return
            self._running().drive(NEVER)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield output from now on as it arrives: the stream's name and bytes."""
        return self._chunks_in_loop(self._subscribe())

    async def _chunks_in_loop(self, queue: deque[Chunk]) -> AsyncIterator[Chunk]:
        while True:
            has_ended = self.result is not None
            while queue:
                yield queue.popleft()
            if has_ended:
                return
            await self._running().wait_ready()
            self._running().drive(0.0)

    def __await__(self) -> Generator[Any, None, SandboxResult]:
        return self._wait_in_loop().__await__()

    async def _wait_in_loop(self) -> SandboxResult:
        while (result := self.result) is None:
            await self._running().wait_ready()
            self._running().drive(0.0)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._kill_quietly():
            await self

    def _kill_quietly(self) -> bool:
        """Kill the command without further calls of `on_output`. Returns false when it has ended already."""
        if self._driver is None or self._driver.result is not None:
            return False
        self._driver.drop_callback()
        self._driver.kill()
        return True

    def _subscribe(self) -> deque[Chunk]:
        return deque() if self._driver is None else self._driver.subscribe()

    def _running(self) -> Driver:
        assert self._driver is not None  # noqa: S101  a handle without a driver has its result
        return self._driver
