"""Builds the data of the evals page: one run, or two runs and their comparison. Pure."""

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
    """Return the data of runs, each given by its name, its outcomes and its number of tasks."""
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
    made: Data = {"name": name, "total": max(total, len(outcomes)), "counts": counts(outcomes), "rates": found}
    return made | {"tasks": [_task(outcome) for outcome in outcomes]}


def _task(outcome: Outcome) -> Data:
    made: Data = {
        "id": text(outcome.id),
        "status": outcome.status,
        "tags": [text(tag) for tag in outcome.tags[:MAX_ITEMS]],
        "source": text(outcome.source),
        "words": [text(word) for word in outcome.words[:MAX_ITEMS]],
        "duration_ms": number(outcome.duration_ms) or 0,
        "calls": min(len(outcome.calls), MAX_ITEMS),
    }
    if outcome.transaction:
        settled = of_task("", outcome.id, outcome.transaction)["settled"]
        sizes = {name: len(settled.get(name, ())) for name in ("conflicts", "refused")}
        made["transaction"] = {"became": settled.get("became", ""), "changed": settled.get("changed", 0), **sizes}
    return made
