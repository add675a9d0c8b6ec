"""What the model has been shown, in tokens, under a budget. The ledger only grows, and never beyond the budget."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque

from corral._lib.records import Record, frozen
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tokenizer = Callable[[str], int]

BYTES_PER_TOKEN = 4  # of English and code, roughly, with the vocabularies of today
MAX_ENTRIES = 4096  # kept one by one; sums are kept of all
MARKER = "\n[corral: {omitted} characters omitted, the observation budget is spent]\n"


def approximate_tokens(text: str) -> int:
    """Return about how many tokens a text is: a quarter of its bytes, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


@frozen
class Budget(Record):
    """How many tokens may be shown: in all, and of each tool. A tool without a number of its own has that of `each_tool`."""

    total: int | None = None
    per_tool: Mapping[str, int] = None  # type: ignore[assignment]  # none have one
    each_tool: int | None = None

    def _validate(self) -> None:
        object.__setattr__(self, "per_tool", dict(self.per_tool or {}))
        for name, value in (("total", self.total), ("each_tool", self.each_tool), *self.per_tool.items()):
            if value is not None and (type(value) is not int or value < 0):
                raise PolicyError(f"the budget of {name} must be a whole number of tokens, at least 0, not {value!r}")

    def of(self, tool: str) -> int | None:
        """Return what one tool has, or None for no bound of its own."""
        return self.per_tool.get(tool, self.each_tool)


@frozen
class Shown(Record):
    """One observation as the model gets it: the text, what it costs, and how many characters were left out."""

    tool: str
    text: str
    tokens: int
    omitted_characters: int = 0
    call_id: str = ""


@frozen
class Entry(Record):
    """One line of the ledger: an observation without its text."""

    number: int
    tool: str
    tokens: int
    omitted_characters: int
    call_id: str


class ObservationLedger:
    """Counts what is shown, and cuts what would go beyond the budget. Any thread may use it."""

    def __init__(self, budget: Budget, tokenizer: Tokenizer = approximate_tokens) -> None:
        if not isinstance(budget, Budget):
            raise PolicyError(f"a ledger needs a budget, as Budget(total={budget!r}) is one")
        self.budget = budget
        self._tokenizer = tokenizer
        self._lock = allocate_lock()
        self._spent: dict[str, int] = {}
        self._total = 0
        self._number = 0
        self._entries: deque[Entry] = deque(maxlen=MAX_ENTRIES)

    @property
    def spent(self) -> int:
        """Tokens shown so far."""
        return self._total

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The latest lines, oldest first."""
        with self._lock:
            return tuple(self._entries)

    def spent_by(self, tool: str) -> int:
        """Return the tokens that one tool has shown so far."""
        return self._spent.get(tool, 0)

    def rooms(self, tool: str) -> tuple[int | None, int | None]:
        """Return what is left in all and of one tool, each None where there is no bound."""
        with self._lock:
            return self._rooms(tool)

    def _rooms(self, tool: str) -> tuple[int | None, int | None]:
        total, own = self.budget.total, self.budget.of(tool)
        return (
            None if total is None else total - self._total,
            None if own is None else own - self._spent.get(tool, 0),
        )

    def show(self, tool: str, text: str, *, call_id: str = "", at_most: int | None = None) -> Shown:
        """Charge an observation, and return what of it fits what is left: all, its head and tail around a marker, or nothing."""
        wanted = self.count(text)
        while True:
            room = _least(*self.rooms(tool), at_most)
            # Outside the lock: a tokenizer takes its time.
            fits = room is None or wanted <= room
            kept, tokens, omitted = (text, wanted, 0) if fits else self._cut(text, room or 0)
            shown = Shown(tool, kept, tokens, omitted, call_id)
            if self._charge(shown):
                return shown

    def _charge(self, shown: Shown) -> bool:
        with self._lock:
            room = _least(*self._rooms(shown.tool))
            if room is not None and shown.tokens > room:
                # Another thread has spent it meanwhile.
                return False
            self._number += 1
            self._total += shown.tokens
            self._spent[shown.tool] = self._spent.get(shown.tool, 0) + shown.tokens
            self._entries.append(Entry(self._number, shown.tool, shown.tokens, shown.omitted_characters, shown.call_id))
            return True

    def count(self, text: str) -> int:
        """Return how many tokens a text is. Where the tokenizer fails it is a token a byte: no vocabulary of bytes has more."""
        try:
            tokens = self._tokenizer(text)
        except Exception:  # noqa: BLE001  the owner's own code, or a text that it cannot take
            tokens = -1
        if type(tokens) is not int or tokens < 0:
            return len(text.encode("utf-8", "surrogatepass"))
        return tokens

    def _cut(self, text: str, room: int) -> tuple[str, int, int]:
        """Return the longest head and tail that fit, found by halving, their cost, and the characters left out."""
        best = "", 0, len(text)
        low, high = 0, len(text) // 2
        while low <= high:
            half = (low + high) // 2
            omitted = len(text) - 2 * half
            kept = text[:half] + MARKER.format(omitted=omitted) + text[len(text) - half :]
            tokens = self.count(kept)
            if tokens <= room and omitted:
                best = kept, tokens, omitted
                low = half + 1
            else:
                high = half - 1
        return best


def _least(*rooms: int | None) -> int | None:
    return min((room for room in rooms if room is not None), default=None)
