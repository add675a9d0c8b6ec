"""Counts the tokens that a model was shown, and keeps them within a budget. The gate refuses a call that would not fit."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque

from corral._lib.records import Record, frozen
from corral.integrations.gates.model import Refusal
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from corral.integrations.gates.model import ToolCall

    Tokenizer = Callable[[str], int]

BYTES_PER_TOKEN = 4  # roughly, for English and code
MAX_ENTRIES = 4096  # the sums also count older entries
MARKER = "\n[corral: {omitted} characters omitted, the observation budget is spent]\n"


def approximate_tokens(text: str) -> int:
    """Estimate the tokens of a text: a quarter of its bytes, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


@frozen
class Budget(Record):
    """Limits on the tokens shown: in total and per tool. `each_tool` applies to tools that `per_tool` does not name."""

    total: int | None = None
    per_tool: Mapping[str, int] = None  # type: ignore[assignment]  # `_validate` makes it {}
    each_tool: int | None = None

    def _validate(self) -> None:
        object.__setattr__(self, "per_tool", dict(self.per_tool or {}))
        for name, value in (("total", self.total), ("each_tool", self.each_tool), *self.per_tool.items()):
            if value is not None and (type(value) is not int or value < 0):
                raise PolicyError(f"the budget of {name} must be a whole number of tokens, at least 0, not {value!r}")

    def of(self, tool: str) -> int | None:
        """Return the limit of one tool, or None if it has none."""
        return self.per_tool.get(tool, self.each_tool)


@frozen
class Shown(Record):
    """An observation as the model sees it: the text, its tokens, and the number of characters left out."""

    tool: str
    text: str
    tokens: int
    omitted_characters: int = 0
    call_id: str = ""


@frozen
class Entry(Record):
    """An entry of the ledger: an observation without its text."""

    number: int
    tool: str
    tokens: int
    omitted_characters: int
    call_id: str


class ObservationLedger:
    """Counts observations, and cuts a text that exceeds the budget. The counts only grow. Thread-safe."""

    def __init__(self, budget: Budget, tokenizer: Tokenizer = approximate_tokens) -> None:
        if not isinstance(budget, Budget):
            raise PolicyError(f"a ledger needs a budget, such as Budget(total={budget!r})")
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
        """The latest entries, oldest first."""
        with self._lock:
            return tuple(self._entries)

    def spent_by(self, tool: str) -> int:
        """Return the tokens that one tool has used so far."""
        return self._spent.get(tool, 0)

    def rooms(self, tool: str) -> tuple[int | None, int | None]:
        """Return the tokens left in total and for one tool. None means no limit."""
        with self._lock:
            return self._rooms(tool)

    def _rooms(self, tool: str) -> tuple[int | None, int | None]:
        total, own = self.budget.total, self.budget.of(tool)
        return (
            None if total is None else total - self._total,
            None if own is None else own - self._spent.get(tool, 0),
        )

    def show(self, tool: str, text: str, *, call_id: str = "", at_most: int | None = None) -> Shown:
        """Charge an observation, and return the part that fits: all, head and tail around a marker, or nothing."""
        wanted = self.count(text)
        while True:
            room = _least(*self.rooms(tool), at_most)
            # Outside the lock: a tokenizer can be slow.
            fits = room is None or wanted <= room
            kept, tokens, omitted = (text, wanted, 0) if fits else self._cut(text, room or 0)
            shown = Shown(tool, kept, tokens, omitted, call_id)
            if self._charge(shown):
                return shown

    def _charge(self, shown: Shown) -> bool:
        with self._lock:
            room = _least(*self._rooms(shown.tool))
            if room is not None and shown.tokens > room:
                # Another thread used the tokens meanwhile.
                return False
            self._number += 1
            self._total += shown.tokens
            self._spent[shown.tool] = self._spent.get(shown.tool, 0) + shown.tokens
            self._entries.append(Entry(self._number, shown.tool, shown.tokens, shown.omitted_characters, shown.call_id))
            return True

    def count(self, text: str) -> int:
        """Return the tokens of a text. If the tokenizer fails, each byte counts as a token, which is an upper bound."""
        try:
            tokens = self._tokenizer(text)
        except Exception:  # noqa: BLE001  the tokenizer is the user's code
            tokens = -1
        if type(tokens) is not int or tokens < 0:
            return len(text.encode("utf-8", "surrogatepass"))
        return tokens

    def _cut(self, text: str, room: int) -> tuple[str, int, int]:
        """Return the longest head and tail that fit, found by bisection, their tokens, and the number of characters left out."""
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


class BudgetGate:
    """Refuses a call when fewer tokens are left than `at_least`, or than `expected` predicts for the call."""

    name = "budget"

    def __init__(
        self,
        ledger: ObservationLedger,
        *,
        at_least: int = 1,
        expected: Callable[[ToolCall], int | None] | None = None,
    ) -> None:
        if type(at_least) is not int or at_least < 0:
            raise PolicyError(f"at_least must be a whole number of tokens, not {at_least!r}")
        if not hasattr(ledger, "rooms"):
            raise PolicyError(f"the budget gate needs a ledger, such as ObservationLedger({ledger!r})")
        self.ledger = ledger
        self._at_least = at_least
        self._expected = expected

    def judge(self, call: ToolCall, now: float) -> Refusal | None:  # noqa: ARG002  one signature for all gates
        """Refuse a call whose observation would not fit the budget."""
        needed = self._at_least
        if self._expected is not None:
            needed = max(needed, self._expected(call) or 0)
        budget = self.ledger.budget
        total, own = self.ledger.rooms(call.tool)
        if total is not None and needed > total:
            reason = f"The call needs {needed} tokens; {total} of {budget.total} are left in the observation budget."
            return Refusal("gate-budget-total", reason, _alternative(total, "Finish"))
        if own is not None and needed > own:
            limit = budget.of(call.tool)
            reason = (
                f"The call needs {needed} tokens; {own} of {limit} are left in the observation budget of {call.tool}."
            )
            return Refusal("gate-budget-tool", reason, _alternative(own, "Use another tool, or finish"))
        return None


def _alternative(room: int, otherwise: str) -> str:
    less = "Ask for less: a part of the file, fewer matches, a summary. " if room > 0 else ""
    return f"{less}{otherwise} with what you have seen."
