"""Counts the entries of the audit log in Prometheus' text format: all hooks, runs and programs that write this log."""

from __future__ import annotations

from collections import Counter

from corral.integrations.telemetry.prometheus import MAX_SERIES, labelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from corral.integrations.telemetry.prometheus import Labels

# The labels hold no argument of a command, and no path.
_METRICS = {
    "corral_log_calls": "Entries with a decision, by event, agent host, decision and enforcement.",
    "corral_log_findings": "Findings of the guard by rule.",
    "corral_log_violations": "Accesses that the kernel stopped, by kind.",
    "corral_log_timeouts": "Commands that ran into their time limit.",
    "corral_log_seconds": "Duration of all commands.",
}


def text_of(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the metrics of these entries. Gauges, since a log that rotates forgets old entries."""
    counts: dict[str, Counter[Labels]] = {name: Counter() for name in _METRICS}
    seconds = 0.0
    for entry in entries:
        result = entry.get("result")
        for name, labels in _counted(entry, result if isinstance(result, dict) else {}):
            seen = counts[name]
            seen[labels if labels in seen or len(seen) < MAX_SERIES else (("other", "true"),)] += 1
        seconds += _number(result.get("duration_ms")) / 1000 if isinstance(result, dict) else 0.0
    lines = []
    for name, about in _METRICS.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
        found = counts[name].items() if name != "corral_log_seconds" else [((), round(seconds, 3))]
        lines += [f"{name}{labelled(labels)} {count}" for labels, count in found]
    return "".join(f"{line}\n" for line in lines)


def _counted(entry: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[tuple[str, Labels]]:
    if "decision" in entry:
        names = {"event": entry.get("event"), "host": entry.get("host"), "decision": entry["decision"]}
        names["enforcement"] = result.get("enforcement")
        yield "corral_log_calls", tuple((name, str(value or "")) for name, value in names.items())
    for finding in _objects(entry.get("findings")):
        yield "corral_log_findings", (("rule", str(finding.get("rule", ""))),)
    for violation in _objects(result.get("violations")):
        yield "corral_log_violations", (("kind", str(violation.get("kind", ""))),)
    if result.get("timed_out") is True:
        yield "corral_log_timeouts", ()


def _objects(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
