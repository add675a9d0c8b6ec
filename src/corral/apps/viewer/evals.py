"""An eval's run, or two of them side by side, as the page shows them: rates, tasks, what changed. Pure."""

from __future__ import annotations

from corral.apps.evals.compare import compare
from corral.apps.evals.results import counts, rates
from corral.apps.viewer.call_list import MAX_ITEMS, number, text
from corral.apps.viewer.transactions import of_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from corral.apps.evals.outcome import Outcome

    Data = dict[str, Any]


def document(runs: Sequence[tuple[str, Sequence[Outcome], int]]) -> Data:
    """Return what is said about runs: the name, the outcomes and how many tasks there are of each."""
    made: Data = {"runs": [_run(name, outcomes, total) for name, outcomes, total in runs]}
    if len(runs) == 2:
        comparison = compare(runs[0][1], runs[1][1]).to_dict()
        for change in comparison["changes"]:
            change |= {"id": text(change["id"]), "words": [text(word) for word in change["words"][:MAX_ITEMS]]}
        tags = [{"tag": text(tag), **shares} for tag, shares in comparison["tags"].items()]
        made["comparison"] = comparison | {"tags": tags}
    return made


def _run(name: str, outcomes: Sequence[Outcome], total: int) -> Data:
    found = [{"tag": text(r.tag), "passed": r.passed, "tried": r.tried, "skipped": r.skipped} for r in rates(outcomes)]
    return {
        "name": name,
        "total": max(total, len(outcomes)),
        "counts": counts(outcomes),
        "rates": found,
        "tasks": [_task(outcome) for outcome in outcomes],
    }


def _task(outcome: Outcome) -> Data:
    made = _about(outcome)
    if outcome.transaction:
        told = of_task("", outcome.id, outcome.transaction)["settled"]
        sizes = {name: len(told.get(name, ())) for name in ("conflicts", "refused")}
        made["transaction"] = {"became": told.get("became", ""), "changed": told.get("changed", 0), **sizes}
    return made


def _about(outcome: Outcome) -> Data:
    return {
        "id": text(outcome.id),
        "status": outcome.status,
        "tags": [text(tag) for tag in outcome.tags[:MAX_ITEMS]],
        "source": text(outcome.source),
        "words": [text(word) for word in outcome.words[:MAX_ITEMS]],
        "duration_ms": number(outcome.duration_ms) or 0,
        "calls": min(len(outcome.calls), MAX_ITEMS),
    }
