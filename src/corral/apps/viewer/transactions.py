"""Builds the page's record of a settled transaction from a log entry, from `corral try --json`, or from an eval task.

Total, as `call_list`: any data gives a record of known fields, types and sizes.
"""

from __future__ import annotations

from corral.apps.evals.outcome import OF_TRANSACTION
from corral.apps.evals.transactions import RENAMED
from corral.apps.viewer.call_list import MAX_NAME, listed, moment, number, plain, tables, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Data = dict[str, Any]


def of_entry(entry: Mapping[str, Any]) -> Data:
    """Return the record of a log entry."""
    made: Data = {name: text(entry.get(name)) for name in ("id", "root", "profile")}
    made |= {"at": moment(entry.get("at")), "seq": number(entry.get("seq"))}
    made["key"] = made["id"] or f"line {entry.get('seq')}"
    return _note(made, text(entry.get("transaction"), MAX_NAME), entry.get("reason"), entry)


def of_trial(data: Mapping[str, Any], *, root: str = "", at: float | None = None) -> Data:
    """Return the record of the output of `corral try --json`."""
    id_ = text(data.get("transaction"), MAX_NAME)
    applied = data.get("applied")
    given = {**data, **(applied if isinstance(applied, dict) and applied.get("ok") is True else {})}
    if isinstance(applied, dict):
        given |= {name: applied.get(name) for name in ("conflicts", "refused")}
    made: Data = {"key": f"{id_} {text(data.get('outcome'))}", "root": root, "at": at}
    return _note(made, id_, data.get("outcome"), given)


def of_task(run: str, task: str, data: Mapping[str, Any]) -> Data:
    """Return the record of the transaction of an eval task."""
    task = text(task, MAX_NAME)
    tables = {name: table if isinstance(table := data.get(name), dict) else {} for name in OF_TRANSACTION}
    more = number(data.get("more_changes")) or 0
    given: Data = {
        "changes": [_change_of(path, kind) for path, kind in tables["changes"].items()],
        "changed": len(tables["changes"]) + more,
        "conflicts": [{"path": path, "why": why} for path, why in tables["conflicts"].items()],
        "refused": [{"path": path, "why": why} for path, why in tables["refused"].items()],
    }
    made = {"key": f"{run}/{task}/transaction", "root": run, "task": task}
    return _note(made, name_of(run, task), data.get("became"), given)


def name_of(run: str, task: str) -> str:
    """Return a stable name for a task's transaction. Outcomes do not have its id, which differs in each run."""
    return f"{run}/{text(task, MAX_NAME)}"


def _change_of(path: str, kind: object) -> Data:
    word = text(kind)
    if word.startswith(RENAMED):
        return {"kind": "renamed", "path": path, "old_path": word.removeprefix(RENAMED)}
    return {"kind": word, "path": path}


def _note(made: Data, id_: str, became: object, given: Mapping[str, Any]) -> Data:
    settled: Data = {
        "became": text(became),
        "in_part": given.get("in_part") is True,
        "changes": _items(given, "changes", ("kind", "path", "old_path")),
        "changed": number(given.get("changed")) or len(listed(given.get("changes"), 10**9)),
        "conflicts": _items(given, "conflicts", ("path", "why")),
        "refused": _items(given, "refused", ("path", "why")),
    }
    made |= {"event": "transaction", "transaction": id_, "decision": "allow", "outcome": "note"}
    kept = {name: value for name, value in settled.items() if value}
    return {name: value for name, value in made.items() if value} | {"settled": kept}


def _items(data: Mapping[str, Any], name: str, names: tuple[str, ...]) -> list[Data]:
    return [plain(item, names) for item in tables(data, name)]
