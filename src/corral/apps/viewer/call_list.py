"""Builds the page's record of a call from a log entry, a result, a call of an eval task, or a ruling of gates.

Total: any data gives a record of known fields, types and sizes. Unknown facts are left out.
"""

from __future__ import annotations

from datetime import datetime
from math import isfinite

from corral.model.call import Axis
from corral.model.grant import GIVER_TEXTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Data = dict[str, Any]

MAX_TEXT = 64 * 1024  # characters of a call
MAX_WORD = 4096  # characters of a path, a reason or another short text
MAX_NAME = 512  # characters of a task's id, which is part of a key
MAX_OUTPUT = 1024 * 1024  # characters of a stream
MAX_ITEMS = 100  # findings, violations, steps of a chain
MAX_NUMBER = 2**53  # numbers of a browser are not exact beyond
MAX_WORDS = 4096  # arguments of a call
DECISIONS = ("allow", "ask", "deny")
AXES = tuple(str(axis) for axis in Axis)
_USAGE = ("user_seconds", "system_seconds", "peak_memory_bytes", "read_bytes", "written_bytes")
_COUNTS = ("exit_code", "signal", "stdout_bytes", "stderr_bytes", "killed", "duration_ms")
_FLAGS = ("timed_out", "denied", "truncated")
_WORDS = ("backend", "enforcement", "network")
_CONNECTION = ("target", "outcome", "address", "detail", "grant")
_GRANT = ("kind", "target", "source")
_VIOLATION = ("kind", "target", "detail", "instead", "grant")


def of_entry(entry: Mapping[str, Any]) -> Data:
    """Return the record of a log entry. A run that a hook started has the key of the hook's entry, so both become one call."""
    if isinstance(entry.get("passed"), list) and "tool" in entry:
        return of_ruling(entry)
    at = moment(entry.get("at"))
    made = plain(entry, ("id", "event", "host", "root", "profile", "cwd", "reason", "error", "transaction"))
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
    """Return the record of a `SandboxResult.to_dict`, and its output separately."""
    verdict = found if isinstance(found := data.get("verdict"), dict) else {}
    made = plain(data, ("id", "cwd", "reason", "transaction"))
    made |= {"key": text(data.get("id")), "event": event, "root": root}
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
    """Return the record of a call of an eval task, and its output separately."""
    task = text(task, MAX_NAME)
    made: Data = {"key": f"{run}/{task}/{position}", "event": "eval", "root": run, "task": task} | _called(facts)
    made |= plain(facts, ("profile",)) | {"decision": decision(facts.get("decision"), "allow")}
    made["findings"] = [finding({"rule": rule, "decision": made["decision"]}) for rule in listed(facts.get("rules"))]
    kinds = [{"kind": kind} for kind in listed(facts.get("violations"))]
    made["result"] = _result({**facts, "violations": kinds})
    made["transaction"] = transaction
    made["outcome"] = outcome(made)
    return _kept(made), printed(facts)


def of_ruling(entry: Mapping[str, Any], *, root: str = "") -> Data:
    """Return the record of a ruling on a tool call. It has the key of the call's result, if there is one."""
    said = decision(entry.get("decision"), "deny")
    made: Data = {"root": root, "event": "gate"} | plain(entry, ("id", "event", "root", "profile", "reason", "tool"))
    ids = [text(entry.get(name)) for name in ("result_id", "id", "call_id") if entry.get(name)]
    decided = number(entry.get("decided_at"))
    made |= {"key": ids[0] if ids else f"{made.get('tool')} {decided}", "seq": number(entry.get("seq"))}
    made |= {"at": moment(entry.get("at")) or (decided and round(decided * 1000)), "decision": said}
    step = plain(entry, ("gate", "rule", "reason", "instead", "call_id")) | {"event": "gate", "at": made["at"]}
    step |= {"decision": said, "passed": [text(name) for name in listed(entry.get("passed"))]}
    if entry.get("rule"):
        made["findings"] = [finding(entry)]
    made["outcome"] = "judged" if said == "allow" else "refused"
    return _kept(made) | {"chain": [_kept(step)]}


def merged(old: Data, new: Data) -> Data:
    """Merge two records of one call. The record of a run takes precedence over a verdict."""
    first, last = (new, old) if "result" in old and "result" not in new else (old, new)
    # Sorted by kind, not by log order: a ruling is logged after its call has ended.
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
    """Return the outcome of a call as one word."""
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
    """Return the record of a finding. An unknown axis is taken from the rule's id."""
    given = data if isinstance(data, dict) else {}
    made = plain(given, ("rule", "reason", "text", "instead"))
    axis = text(given.get("axis")) or str(made.get("rule", "")).partition("-")[0]
    made |= {"axis": axis if axis in (*AXES, "gate") else "", "decision": decision(given.get("decision"), "deny")}
    if given.get("length"):
        made |= {name: number(given.get(name)) for name in ("start", "length", "argument")}
    return _kept(made)


def printed(data: Mapping[str, Any]) -> Data:
    """Return the output of a call, an empty dict if it is unknown."""
    kept = {name: text(data[name], MAX_OUTPUT) for name in ("stdout", "stderr") if isinstance(data.get(name), str)}
    if kept and data.get("full_output_path"):
        kept["path"] = text(data.get("full_output_path"))
    return kept


def text(value: object, most: int = MAX_WORD) -> str:
    """Return a text of bounded length, an empty one for other data."""
    if not isinstance(value, str):
        return ""
    return value if len(value) <= most else f"{value[:most]}…"


def number(value: object) -> int | float | None:
    """Return a number that JSON and the page can represent, or None."""
    if type(value) is int or (type(value) is float and isfinite(value)):
        return value if -MAX_NUMBER <= value <= MAX_NUMBER else None
    return None


def listed(value: object, most: int = MAX_ITEMS) -> list[Any]:
    """Return a list of bounded length, an empty one for other data."""
    return value[:most] if isinstance(value, list) else []


def decision(value: object, unknown: str) -> str:
    """Return a decision, `unknown` for other data."""
    return str(value) if value in DECISIONS else unknown


def moment(value: object) -> float | None:
    """Return a timestamp of the log in milliseconds since the epoch."""
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
    made = _numbers(data, _COUNTS) | {name: True for name in _FLAGS if data.get(name) is True} | plain(data, _WORDS)
    made["missing_layers"] = [text(name) for name in listed(data.get("missing_layers"))]
    made["violations"] = [
        _kept(plain(item, _VIOLATION) | {"inferred": item.get("inferred") is True})
        for item in tables(data, "violations")
    ]
    made["grants"] = [_opening(item) for item in tables(data, "grants")]
    made["connections"] = [
        _kept(plain(item, _CONNECTION) | _numbers(item, ("count",))) for item in tables(data, "connections")
    ]
    usage = data.get("usage")
    if isinstance(usage, dict):
        made["usage"] = _numbers(usage, _USAGE)
    return _kept(made)


def _opening(item: Data) -> Data:
    return _kept(plain(item, _GRANT) | {"by": GIVER_TEXTS.get(text(item.get("by")), "")})


def tables(data: Mapping[str, Any], name: str) -> list[Data]:
    """Return the tables in a list of bounded length."""
    return [item for item in listed(data.get(name)) if isinstance(item, dict)]


def _numbers(data: Mapping[str, Any], names: tuple[str, ...]) -> Data:
    return {name: value for name in names if (value := number(data.get(name))) is not None}


def plain(data: Mapping[str, Any], names: tuple[str, ...]) -> Data:
    """Return the texts of these names that are not empty."""
    return {name: value for name in names if (value := text(data.get(name)))}


def _kept(data: Data) -> Data:
    # A zero is a known fact, unlike an empty value.
    return {name: value for name, value in data.items() if value or (value == 0 and value is not False)}
