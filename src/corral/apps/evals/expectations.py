"""Compares results with the expectations of a task. Pure: each difference is a line with the expected and the actual value."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from corral.model.result import SandboxResult

MAX_SHOWN = 200  # characters of a text in a difference
_TESTS: dict[str, tuple[str, Callable[[str, str], bool]]] = {
    "equal": ("exactly", lambda part, text: text == part),
    "contains": ("something with", lambda part, text: part in text),
    "lacks": ("nothing with", lambda part, text: part not in text),
    "regex": ("a match of", lambda part, text: re.search(part, text) is not None),
}


def differences(expect: Mapping[str, Any], result: SandboxResult, paths: Mapping[str, str]) -> Iterator[str]:
    """Yield the differences between a result and its expectations. `paths` is for `replaced`."""
    for key, wanted in expect.items():
        if key in ("stdout", "stderr", "reason"):
            given = result.reason if key == "reason" else getattr(result, f"{key}_text")
            yield from (f"{key}: {said}" for said in mismatches(wanted, replaced(given, paths)))
        elif key == "rule":
            if wanted not in (found := rule_ids(result)):
                yield f"rule: wanted {wanted}, found {shown(found)}"
        elif key in ("rules", "violations"):
            found = rule_ids(result) if key == "rules" else violation_kinds(result)
            if sorted(set(wanted)) != found:
                yield f"{key}: wanted {shown(sorted(set(wanted)))}, found {shown(found)}"
        elif key in ("exit_code", "decision", "denied", "timed_out", "truncated", "enforcement"):
            was = str(result.verdict.decision) if key == "decision" else getattr(result, key)
            if was != wanted:
                yield f"{key}: wanted {shown(wanted)}, was {shown(was)}{_why(key, result, paths)}"


def mismatches(wanted: str | Mapping[str, Any], text: str) -> Iterator[str]:
    """Yield the tests of a text that fail."""
    for kind, value in ({"equal": wanted} if isinstance(wanted, str) else wanted).items():
        words, fits = _TESTS[kind]
        for part in [value] if isinstance(value, str) else value:
            if not fits(part, text):
                yield f"wanted {words} {_cut(part)!r}, was {_cut(text)!r}"


def file_difference(wanted: str | Mapping[str, Any], content: str | None) -> Iterator[str]:
    """Yield the differences between a file and its expectations. `content` is None for a missing file."""
    if wanted == "absent":
        if content is not None:
            yield "wanted absent, is there"
    elif content is None:
        yield "wanted, is not there"
    elif wanted != "exists":
        yield from mismatches(wanted, content)


def replaced(text: str, paths: Mapping[str, str]) -> str:
    """Return a text with each temporary path replaced by its name in `paths`, so that all runs give the same text."""
    for path, name in paths.items():
        text = text.replace(path, name)
    return text


def rule_ids(result: SandboxResult) -> list[str]:
    """Return the ids of the rules that a call violates."""
    return sorted({finding.rule for finding in result.verdict.findings})


def violation_kinds(result: SandboxResult) -> list[str]:
    """Return the kinds of violations that the kernel stopped."""
    return sorted({violation.kind for violation in result.violations})


def shown(value: object) -> str:
    """Return a value of a task or an outcome as text."""
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _why(key: str, result: SandboxResult, paths: Mapping[str, str]) -> str:
    said = result.reason or (result.stderr_text.strip().rpartition("\n")[2] if key == "exit_code" else "")
    return f" ({_cut(replaced(said, paths))})" if said else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"
