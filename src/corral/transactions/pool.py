"""The wardens of one transaction. They come from the sandbox's keeper and see an overlay in place of the project."""

from __future__ import annotations

from corral._lib.fork_lock import ProcessOwner
from corral.model.errors import ContainmentError
from corral.runtime.pool import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.runtime.processes import WardenClient
    from corral.transactions.workspace import Place


class TransactionPool(Pool):
    """A second pool over the keeper of the sandbox's pool."""

    def __init__(self, sandbox_pool: Pool, place: Place) -> None:
        super().__init__(sandbox_pool._plan, generation=sandbox_pool._generation)
        self._sandbox_pool = sandbox_pool
        self._process = ProcessOwner()
        self.place = place

    def prepare(self) -> None:
        """Make one warden in advance."""
        self.release(self.acquire())

    def sweep(self, lost: WardenClient) -> tuple[int, int]:
        """Kill the processes of a lost warden, through the sandbox's pool."""
        return self._sandbox_pool.sweep(lost)

    def retire(self, then: Callable[[], object] | None = None) -> None:
        """End the keeper and all wardens of the sandbox. The written files stay."""
        self._sandbox_pool.retire(then)

    def end(self) -> None:
        """End every command and warden and wait until they are gone, so that nothing writes any more."""
        self.close()
        for warden in self._known():
            warden.await_end()

    def close(self) -> None:
        """End every command and warden."""
        self._closed = True
        self._idle = []
        for warden in self._known():
            # Only signal it: the thread that drives its command still polls the descriptors, and closes them itself.
            warden.hang_up()

    def _make(self, place: str = "") -> WardenClient:
        if not self._process.is_current:
            raise ContainmentError("this transaction belongs to the process that began it, of which this one is a fork")
        if self._closed:
            raise ContainmentError("the transaction has ended; begin another")
        warden = self._sandbox_pool._make(place or self.place.path)
        with self._lock:
            self._wardens.add(warden)
        if self._closed:
            # `close` ran while this warden was made and has not seen it.
            warden.close()
            raise ContainmentError("the transaction has ended; begin another")
        return warden
