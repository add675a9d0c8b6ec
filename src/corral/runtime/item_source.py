"""Where items come from, one at a time. What takes several at a time takes only those that are there: no result waits for the next item."""

from __future__ import annotations

from collections import deque
from threading import Condition, Thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Source:
    """The items of an iterator, taken by whoever wants one."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = iter(items)

    def take(self) -> object:
        """Return the next item, however long that takes; StopIteration after the last."""
        return next(self._items)

    def has_ready(self) -> bool:
        """Say whether a further item is there already. Nobody knows, of an iterator."""
        return False

    def close(self) -> None:
        """Take no more."""


class Fed(Source):
    """A source that a thread of its own takes from, a few items ahead."""

    def __init__(self, items: Iterable[object], most: int) -> None:
        super().__init__(items)
        self._most = most
        self._ready: deque[object] = deque()
        self._state = Condition()
        self._end: BaseException | None = None
        self._is_closed = False
        Thread(target=self._feed, name="corral-source", daemon=True).start()

    def _feed(self) -> None:
        end: BaseException | None = None
        while end is None and not self._is_closed:
            try:
                item = next(self._items)
            except BaseException as error:  # noqa: BLE001  the source is the reader's own code, and so is its error
                end = error
            with self._state:
                if end is None:
                    self._state.wait_for(lambda: self._is_closed or len(self._ready) < self._most)
                    self._ready.append(item)
                self._end = end
                self._state.notify_all()

    def take(self) -> object:
        """Return the next item, however long that takes; what ended the source is raised after the last."""
        with self._state:
            self._state.wait_for(lambda: self._ready or self._end is not None or self._is_closed)
            if self._ready:
                self._state.notify_all()
                return self._ready.popleft()
        raise StopIteration if self._end is None else self._end

    def has_ready(self) -> bool:
        """Say whether a further item is there already."""
        return bool(self._ready)

    def close(self) -> None:
        """Take no more; one that is waited for is the last."""
        with self._state:
            self._is_closed = True
            self._ready.clear()
            self._state.notify_all()
