"""What became of a transaction, as the page shows it: by a line of the log, by `corral try --json`, by a task of an eval.

Total, as `calls` is: any data gives a record of known fields, types and sizes.
"""

from __future__ import annotations

from corral.apps.evals.outcome import OF_TRANSACTION
from corral.apps.evals.transactions import RENAMED
from corral.apps.viewer.call_list import MAX_NAME, listed, moment, number, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Data = dict[str, Any]


def of_entry(entry: Mapping[str, Any]) -> Data:
    """Return what a line of the log says of what became of a transaction."""
    made: Data = {name: text(entry.get(name)) for name in ("id", "root", "profile")}
    made |= {
        "key": made["id"] or f"line {entry.get('seq')}",
        "at": moment(entry.get("at")),
        "seq": number(entry.get("seq")),
    }
    return _note(made, text(entry.get("transaction"), MAX_NAME), entry.get("reason"), entry)


def of_trial(data: Mapping[str, Any], *, root: str = "", at: float | None = None) -> Data:
    """Return what `corral try --json` says of it."""
    id_ = text(data.get("transaction"), MAX_NAME)
    applied = data.get("applied")
    told = {**data, **(applied if isinstance(applied, dict) and applied.get("ok") is True else {})}
    if isinstance(applied, dict):
        told |= {name: applied.get(name) for name in ("conflicts", "refused")}
    made: Data = {"key": f"{id_} {text(data.get('outcome'))}", "root": root, "at": at}
    return _note(made, id_, data.get("outcome"), told)


def of_task(run: str, task: str, data: Mapping[str, Any]) -> Data:
    """Return what an eval's run keeps of the transaction of a task."""
    task = text(task, MAX_NAME)
    tables = {name: table if isinstance(table := data.get(name), dict) else {} for name in OF_TRANSACTION}
    more = number(data.get("more_changes")) or 0
    told: Data = {
        "changes": [_change_of(path, kind) for path, kind in tables["changes"].items()],
        "changed": len(tables["changes"]) + more,
        "conflicts": [{"path": path, "why": why} for path, why in tables["conflicts"].items()],
        "refused": [{"path": path, "why": why} for path, why in tables["refused"].items()],
    }
    made = {"key": f"{run}/{task}/transaction", "root": run, "task": task}
    return _note(made, name_of(run, task), data.get("became"), told)


def name_of(run: str, task: str) -> str:
    """Return what stands for the id of a task's transaction: a run keeps none, since each is another's the next time."""
    return f"{run}/{text(task, MAX_NAME)}"


def _change_of(path: str, kind: object) -> Data:
    said = text(kind)
    if said.startswith(RENAMED):
        return {"kind": "renamed", "path": path, "old_path": said.removeprefix(RENAMED)}
    return {"kind": said, "path": path}


def _note(made: Data, id_: str, became: object, told: Mapping[str, Any]) -> Data:
    changes = _items(told.get("changes"), ("kind", "path", "old_path"))
    settled: Data = {
        "became": text(became),
        "in_part": told.get("in_part") is True,
        "changes": changes,
        "changed": number(told.get("changed")) or len(listed(told.get("changes"), 10**9)),
        "conflicts": _items(told.get("conflicts"), ("path", "why")),
        "refused": _items(told.get("refused"), ("path", "why")),
    }
    made |= {"event": "transaction", "transaction": id_, "decision": "allow", "outcome": "note"}
    kept = {name: value for name, value in settled.items() if value}
    return {name: value for name, value in made.items() if value} | {"settled": kept}


def _items(data: object, names: tuple[str, ...]) -> list[Data]:
    found = [item for item in listed(data) if isinstance(item, dict)]
    return [{name: said for name in names if (said := text(item.get(name)))} for item in found]
