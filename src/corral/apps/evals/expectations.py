"""What a task expects, against what came of it. Pure: every difference is a line that says what was wanted and what was there."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from corral.model.result import SandboxResult

MAX_SHOWN = 200  # characters of a text in a difference


def differences(expect: Mapping[str, Any], result: SandboxResult, shown: Mapping[str, str]) -> Iterator[str]:
    """Yield how a result differs from what is expected of it; `shown` maps paths of this run to what stands for them."""
    for key, wanted in expect.items():
        if key in ("stdout", "stderr", "reason"):
            given = result.reason if key == "reason" else getattr(result, f"{key}_text")
            yield from (f"{key}: {said}" for said in mismatches(wanted, replaced(given, shown)))
        elif key == "rule":
            found = _rules(result)
            if wanted not in found:
                yield f"rule: wanted {wanted}, found {_listed(found)}"
        elif key in ("rules", "violations"):
            found = _rules(result) if key == "rules" else sorted({violation.kind for violation in result.violations})
            if sorted(set(wanted)) != found:
                yield f"{key}: wanted {_listed(sorted(set(wanted)))}, found {_listed(found)}"
        elif key in ("exit_code", "decision", "denied", "timed_out", "truncated", "enforcement"):
            was = str(result.verdict.decision) if key == "decision" else getattr(result, key)
            if was != wanted:
                yield f"{key}: wanted {_word(wanted)}, was {_word(was)}{_why(key, result, shown)}"


def mismatches(wanted: str | Mapping[str, Any], text: str) -> Iterator[str]:
    """Yield how a text differs from what is wanted of it."""
    if isinstance(wanted, str):
        wanted = {"equal": wanted}
    for kind, value in wanted.items():
        for part in [value] if isinstance(value, str) else value:
            if not _TESTS[kind](part, text):
                yield f"wanted {_WANTED[kind]} {_quoted(part)}, was {_quoted(text)}"


def file_difference(wanted: str | Mapping[str, Any], content: str | None) -> Iterator[str]:
    """Yield how a file differs from what is wanted of it; a file that is none has no content."""
    if wanted == "absent":
        if content is not None:
            yield "wanted absent, is there"
    elif content is None:
        yield "wanted, is not there"
    elif wanted != "exists":
        yield from mismatches(wanted, content)


def replaced(text: str, shown: Mapping[str, str]) -> str:
    """Return a text without the paths of this very run, so that it is the same the next time."""
    for path, name in shown.items():
        text = text.replace(path, name)
    return text


_TESTS: dict[str, Callable[[str, str], bool]] = {
    "equal": lambda part, text: text == part,
    "contains": lambda part, text: part in text,
    "lacks": lambda part, text: part not in text,
    "regex": lambda part, text: re.search(part, text) is not None,
}
_WANTED = {"equal": "exactly", "contains": "something with", "lacks": "nothing with", "regex": "a match of"}


def _rules(result: SandboxResult) -> list[str]:
    return sorted({finding.rule for finding in result.verdict.findings})


def _why(key: str, result: SandboxResult, shown: Mapping[str, str]) -> str:
    said = result.reason or (result.stderr_text.strip().rpartition("\n")[2] if key == "exit_code" else "")
    return f" ({_cut(replaced(said, shown))})" if said else ""


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "none"


def _quoted(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"
