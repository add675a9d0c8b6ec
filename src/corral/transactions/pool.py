"""The wardens of one transaction: of the same keeper as the sandbox's own, in a tree whose project is not the real one."""

from __future__ import annotations

from corral._lib.process_identity import ProcessIdentity
from corral.model.errors import ContainmentError
from corral.runtime.pool import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.runtime.processes import WardenClient
    from corral.transactions.workspace import Place


class TransactionPool(Pool):
    """A pool beside the sandbox's own. Closed, it has no process left."""

    def __init__(self, trunk: Pool, place: Place) -> None:
        super().__init__(trunk._plan, generation=trunk._generation)
        self._trunk = trunk
        self._process = ProcessIdentity()
        self.place = place

    def prepare(self) -> None:
        """Have a warden ready."""
        self.release(self.acquire())

    def sweep(self, lost: WardenClient) -> tuple[int, int]:
        """End a warden that is lost and what it leaves behind."""
        return self._trunk.sweep(lost)

    def retire(self, then: Callable[[], object] | None = None) -> None:
        """End everything of the sandbox; what was written stays."""
        self._trunk.retire(then)

    def end(self) -> None:
        """End every command and warden, and wait until they are gone: nobody writes any more."""
        self.close()
        for warden in self._known():
            warden.await_end()

    def close(self) -> None:
        """End every command and warden."""
        self._closed = True
        self._idle = []
        for warden in self._known():
            # Who drives its command closes it then; what is open here must not become another's while they look at it.
            warden.hang_up()

    def _make(self, place: str = "") -> WardenClient:
        if not self._process.is_current():
            raise ContainmentError("a transaction belongs to the process that began it, of which this one is a fork")
        if self._closed:
            raise ContainmentError("the transaction has ended; begin another")
        warden = self._trunk._make(place or self.place.path)
        with self._lock:
            self._wardens.add(warden)
        if self._closed:
            # It ended while this one was made, and has not met it.
            warden.close()
            raise ContainmentError("the transaction has ended; begin another")
        return warden
