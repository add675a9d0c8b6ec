"""Reports calls to observers such as telemetry. An observer is passed to `Sandbox(observers=...)`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol, Self

    from corral.model.result import SandboxResult
    from corral.runtime.handle import Handle
    from corral.runtime.run_options import RunOptions

    class Observation(Protocol):
        """An observer's view of a single call. Its methods must not raise."""

        def enter(self) -> None:
            """Called in the caller's context before the call is judged."""

        def leave(self) -> None:
            """Called before `run` or `start` returns to the caller."""

        def end(self, result: SandboxResult | None, error: BaseException | None = None) -> None:
            """Called with the result, with the error that ended the call early, or with both."""

    class Observer(Protocol):
        """Is asked for an observation of every call that a sandbox runs or starts."""

        def observe(self, options: RunOptions) -> Observation: ...


class ObservedCall:
    """Reports one call to all observers. The block starts the call and sets `handle`."""

    __slots__ = ("_observations", "handle")

    def __init__(self, observers: Iterable[Observer], options: RunOptions) -> None:
        self._observations = [observer.observe(options) for observer in observers]
        self.handle: Handle | None = None

    def follow(self, handle: Handle) -> None:
        """Take the result from this handle."""
        self.handle = handle

    def __enter__(self) -> Self:
        for observation in self._observations:
            observation.enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for observation in reversed(self._observations):
            observation.leave()
        for observation in self._observations:
            if error is not None:
                observation.end(None if self.handle is None else self.handle.result, error)
            elif self.handle is not None:
                self.handle.when_done(observation.end)
