"""The gate of the observation budget: no call whose outcome could not be shown any more. Pure but for the ledger it reads."""

from __future__ import annotations

from corral.integrations.gates.model import Refusal
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.integrations.gates.model import ToolCall
    from corral.integrations.gates.token_budget import ObservationLedger


class BudgetGate:
    """Refuses a call when less than `at_least` tokens are left for its tool, or less than `expected` says that it will show."""

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
            raise PolicyError(f"the budget gate needs a ledger, as ObservationLedger({ledger!r}) is one")
        self.ledger = ledger
        self._at_least = at_least
        self._expected = expected

    def judge(self, call: ToolCall, now: float) -> Refusal | None:  # noqa: ARG002  one signature for all gates
        """Refuse what does not fit what is left."""
        needed = self._at_least
        if self._expected is not None:
            needed = max(needed, self._expected(call) or 0)
        total, own = self.ledger.rooms(call.tool)
        if total is not None and needed > total:
            budget = self.ledger.budget.total
            reason = f"{needed} tokens are needed and {total} of {budget} are left of the observation budget."
            return Refusal("gate-budget-total", reason, _instead(total))
        if own is not None and needed > own:
            budget = self.ledger.budget.of(call.tool)
            reason = (
                f"{needed} tokens are needed and {own} of {budget} are left of the observation budget of {call.tool}."
            )
            return Refusal("gate-budget-tool", reason, _instead(own, "Use another tool, or finish"))
        return None


def _instead(room: int, otherwise: str = "Finish") -> str:
    if room > 0:
        return f"Ask for less: a part of the file, fewer matches, a summary. {otherwise} with what you have seen."
    return f"{otherwise} with what you have seen."
