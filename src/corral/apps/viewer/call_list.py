"""What the page shows of a call, whatever told of it: a line of the log, a result, a call of an eval's task, a gate's ruling.

Total: any data gives a record of known fields, types and sizes. What is not told is left out; nothing is made up.
"""

from __future__ import annotations

from datetime import datetime
from math import isfinite

from corral.model.call import Axis

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Data = dict[str, Any]

MAX_TEXT = 64 * 1024  # characters of a call
MAX_WORD = 4096  # of a path, a reason or another text beside it
MAX_NAME = 512  # of a task's id, which is part of a key
MAX_OUTPUT = 1024 * 1024  # of a stream
MAX_ITEMS = 100  # findings, violations, steps of a chain
MOST_NUMBER = 2**53  # beyond, a browser's numbers are not exact
MAX_WORDS = 4096  # of an argv
DECISIONS = ("allow", "ask", "deny")
AXES = tuple(str(axis) for axis in Axis)
_USAGE = ("user_seconds", "system_seconds", "peak_memory_bytes", "read_bytes", "written_bytes")
_COUNTS = ("exit_code", "signal", "stdout_bytes", "stderr_bytes", "killed", "duration_ms")
_FLAGS = ("timed_out", "denied", "truncated")
_WORDS = ("backend", "enforcement", "network")
_CONNECTION = ("target", "outcome", "address", "detail", "grant")
_VIOLATION = ("kind", "target", "detail", "instead", "grant")


def of_entry(entry: Mapping[str, Any]) -> Data:
    """Return what a line of the log says. `key` is the hook's line where a hook made the run, so that the two are one call."""
    if isinstance(entry.get("passed"), list) and "tool" in entry:
        return of_ruling(entry)
    at = moment(entry.get("at"))
    made = _plain(entry, ("id", "event", "host", "root", "profile", "cwd", "reason", "error", "transaction"))
    made |= {"key": text(entry.get("call") or entry.get("id")), "seq": number(entry.get("seq"))}
    made |= {"at": at, "decision": decision(entry.get("decision"), "deny" if "error" in entry else "allow")}
    made |= _called(entry) | {"findings": [finding(item) for item in listed(entry.get("findings"))]}
    if isinstance(entry.get("cut"), dict):
        made["cut"] = number(entry["cut"].get("length"))
    result = entry.get("result")
    if isinstance(result, dict):
        made["result"] = _result(result)
        made["at"] = moment(result.get("started_at")) or at
    made["outcome"] = outcome(made)
    return _kept(made)


def of_result(data: Mapping[str, Any], *, root: str = "", event: str = "run") -> tuple[Data, Data]:
    """Return what a result says, as `SandboxResult.to_dict` gives it, and apart from it what it printed."""
    verdict = data.get("verdict") if isinstance(data.get("verdict"), dict) else {}
    assert isinstance(verdict, dict)  # noqa: S101  one line above
    made = _plain(data, ("id", "cwd", "reason", "transaction")) | {
        "key": text(data.get("id")),
        "event": event,
        "root": root,
    }
    words = [text(word, MAX_TEXT) for word in listed(data.get("argv"), MAX_WORDS)]
    is_shell = data.get("shell") is True and len(words) == 1
    made |= {"shell": words[0]} if is_shell else {"argv": words}
    said = decision(verdict.get("decision"), "allow")
    made["decision"] = "deny" if data.get("denied") is True and said == "allow" else said
    made["findings"] = [finding(item) for item in listed(verdict.get("findings"))]
    made |= {"result": _result(data), "at": moment(data.get("started_at"))}
    made["outcome"] = outcome(made)
    return _kept(made), printed(data)


def of_task(
    run: str, task: str, position: int, facts: Mapping[str, Any], *, transaction: str = ""
) -> tuple[Data, Data]:
    """Return what an eval's run keeps of a call of a task."""
    task = text(task, MAX_NAME)
    made: Data = {"key": f"{run}/{task}/{position}", "event": "eval", "root": run, "task": task} | _called(facts)
    made |= _plain(facts, ("profile",)) | {"decision": decision(facts.get("decision"), "allow")}
    made["findings"] = [finding({"rule": rule, "decision": made["decision"]}) for rule in listed(facts.get("rules"))]
    kinds = [{"kind": kind} for kind in listed(facts.get("violations"))]
    made["result"] = _result({**facts, "violations": kinds})
    made["transaction"] = transaction
    made["outcome"] = outcome(made)
    return _kept(made), printed(facts)


def of_ruling(entry: Mapping[str, Any], *, root: str = "") -> Data:
    """Return what a chain of gates said of a tool call; it belongs to the result that the call ended with, if there is one."""
    said = decision(entry.get("decision"), "deny")
    made: Data = {"root": root, "event": "gate"} | _plain(entry, ("id", "event", "root", "profile", "reason", "tool"))
    ids = [text(entry.get(name)) for name in ("result_id", "id", "call_id") if entry.get(name)]
    decided = number(entry.get("decided_at"))
    made |= {"key": ids[0] if ids else f"{made.get('tool')} {decided}", "seq": number(entry.get("seq"))}
    made |= {"at": moment(entry.get("at")) or (decided and round(decided * 1000)), "decision": said}
    step = _plain(entry, ("gate", "rule", "reason", "instead", "call_id")) | {"event": "gate", "at": made["at"]}
    step |= {"decision": said, "passed": [text(name) for name in listed(entry.get("passed"))]}
    if entry.get("rule"):
        made["findings"] = [finding(entry)]
    made["outcome"] = "judged" if said == "allow" else "refused"
    return _kept(made) | {"chain": [_kept(step)]}


def merged(old: Data, new: Data) -> Data:
    """Return what two lines say of one call; of a run more than of what was said before it."""
    first, last = (new, old) if "result" in old and "result" not in new else (old, new)
    # By what comes first, not by when it was written: a ruling is recorded when its call has ended.
    chain = sorted([*_chain(old), *_chain(new)], key=_order)
    made = first | last | {"chain": chain[:MAX_ITEMS]}
    if not last.get("findings") and first.get("findings"):
        made["findings"] = first["findings"]
    if "result" not in last and "refused" in (first.get("outcome"), last.get("outcome")):
        made["outcome"] = "refused"
    return made


def _chain(call: Data) -> list[Data]:
    names = ("event", "host", "decision", "reason", "error", "id", "at")
    return call.get("chain") or [{name: call[name] for name in names if name in call}]


def _order(step: Data) -> tuple[int, float]:
    return {"hook": 0, "gate": 1}.get(step.get("event", ""), 2), step.get("at") or 0


def outcome(call: Mapping[str, Any]) -> str:
    """Return in a word what became of a call."""
    result = call.get("result")
    if call.get("error"):
        return "error"
    if not isinstance(result, dict):
        if "argv" not in call and "shell" not in call and "files" not in call:
            return "note"
        return "judged" if call.get("decision") == "allow" else "refused"
    if result.get("denied"):
        return "refused"
    if result.get("timed_out"):
        return "timeout"
    if result.get("signal"):
        return "signal"
    return "ok" if result.get("exit_code") == 0 else "failed"


def finding(data: object) -> Data:
    """Return one finding; its axis is how its rule's id begins, where it is not told."""
    given = data if isinstance(data, dict) else {}
    made = _plain(given, ("rule", "reason", "text", "instead"))
    axis = text(given.get("axis")) or str(made.get("rule", "")).partition("-")[0]
    made |= {"axis": axis if axis in (*AXES, "gate") else "", "decision": decision(given.get("decision"), "deny")}
    if given.get("length"):
        made |= {name: number(given.get(name)) for name in ("start", "length", "argument")}
    return _kept(made)


def printed(data: Mapping[str, Any]) -> Data:
    """Return what is kept of what was printed; nothing where none is told."""
    kept = {name: text(data[name], MAX_OUTPUT) for name in ("stdout", "stderr") if isinstance(data.get(name), str)}
    if kept and data.get("full_output_path"):
        kept["path"] = text(data.get("full_output_path"))
    return kept


def text(value: object, most: int = MAX_WORD) -> str:
    """Return a text of bounded length; anything else is none."""
    if not isinstance(value, str):
        return ""
    return value if len(value) <= most else f"{value[:most]}…"


def number(value: object) -> int | float | None:
    """Return a number that JSON and the page can hold."""
    if type(value) is int or (type(value) is float and isfinite(value)):
        return value if -MOST_NUMBER <= value <= MOST_NUMBER else None
    return None


def listed(value: object, most: int = MAX_ITEMS) -> list[Any]:
    """Return a list of bounded length; anything else is none."""
    return value[:most] if isinstance(value, list) else []


def decision(value: object, unknown: str) -> str:
    """Return a decision; of what is none, the given one."""
    return str(value) if value in DECISIONS else unknown


def moment(value: object) -> float | None:
    """Return a time of the log in milliseconds of the epoch."""
    try:
        return round(datetime.fromisoformat(str(value)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _called(data: Mapping[str, Any]) -> Data:
    if isinstance(data.get("shell"), str):
        return {"shell": text(data["shell"], MAX_TEXT)}
    for name in ("argv", "files"):
        if isinstance(data.get(name), list):
            return {name: [text(word, MAX_TEXT) for word in listed(data[name], MAX_WORDS)]}
    return {}


def _result(data: Mapping[str, Any]) -> Data:
    made: Data = {name: told for name in _COUNTS if (told := number(data.get(name))) is not None}
    made |= {name: True for name in _FLAGS if data.get(name) is True} | _plain(data, _WORDS)
    made["missing_layers"] = [text(name) for name in listed(data.get("missing_layers"))]
    violations = [item for item in listed(data.get("violations")) if isinstance(item, dict)]
    made["violations"] = [
        _kept(_plain(item, _VIOLATION) | {"inferred": item.get("inferred") is True}) for item in violations
    ]
    connections = [item for item in listed(data.get("connections")) if isinstance(item, dict)]
    made["connections"] = [
        _kept(_plain(item, _CONNECTION) | {"count": number(item.get("count"))}) for item in connections
    ]
    usage = data.get("usage")
    if isinstance(usage, dict):
        made["usage"] = {name: value for name in _USAGE if (value := number(usage.get(name))) is not None}
    return _kept(made)


def _plain(data: Mapping[str, Any], names: tuple[str, ...]) -> Data:
    return {name: said for name in names if (said := text(data.get(name)))}


def _kept(data: Data) -> Data:
    # Zero is said, and is not the same as nothing.
    return {name: value for name, value in data.items() if value or (value == 0 and value is not False)}
