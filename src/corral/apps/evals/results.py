"""What a run comes to: lines of JSON, JUnit's XML, and rates per tag. Pure but for `write`, which leaves whole files or none."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from xml.sax.saxutils import escape, quoteattr

from corral._lib.records import Record, frozen
from corral.apps.evals.outcome import ERROR, FAILED, PASSED, SKIPPED, STATUSES, Outcome
from corral.apps.output_files import OutputDirectory
from corral.model.errors import CorralError
from corral.policy.user_dirs import read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

RESULTS, JUNIT, SUMMARY = "results.jsonl", "junit.xml", "summary.json"
MAX_RESULTS_BYTES = 512 * 1024 * 1024  # that are read
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@frozen
class Rate(Record):
    """How many of a tag's tasks passed, of those that could be tried."""

    tag: str
    passed: int
    tried: int
    skipped: int

    @property
    def share(self) -> float:
        """The part that passed; all, where none could be tried."""
        return self.passed / self.tried if self.tried else 1.0


def counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Return how many tasks have each status."""
    found = dict.fromkeys(STATUSES, 0)
    for outcome in outcomes:
        found[outcome.status] += 1
    return found


def rates(outcomes: Sequence[Outcome]) -> list[Rate]:
    """Return the rates of all tags, in the order of their names."""
    tags = sorted({tag for outcome in outcomes for tag in outcome.tags})
    return [_rate(tag, [outcome for outcome in outcomes if tag in outcome.tags]) for tag in tags]


def _rate(tag: str, outcomes: list[Outcome]) -> Rate:
    found = counts(outcomes)
    return Rate(tag, found[PASSED], len(outcomes) - found[SKIPPED], found[SKIPPED])


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the summary as JSON-ready data."""
    return {
        "tasks": len(outcomes),
        **counts(outcomes),
        "tags": {
            rate.tag: {
                "passed": rate.passed,
                "tried": rate.tried,
                "skipped": rate.skipped,
                "rate": round(rate.share, 4),
            }
            for rate in rates(outcomes)
        },
        "not_passed": [outcome.id for outcome in outcomes if not outcome.is_good],
    }


def junit(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as JUnit's XML, a test suite for each task file."""
    files: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        files.setdefault(outcome.source.rpartition(":")[0] or "tasks", []).append(outcome)
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<testsuites {_totals(outcomes)}>"]
    for name, some in files.items():
        lines.append(f"  <testsuite name={_attribute(name)} {_totals(some)}>")
        for outcome in some:
            lines += _case(name, outcome)
        lines.append("  </testsuite>")
    return "\n".join((*lines, "</testsuites>", ""))


def _totals(outcomes: Sequence[Outcome]) -> str:
    found = counts(outcomes)
    seconds = sum(outcome.duration_ms for outcome in outcomes) / 1000
    numbers = {"tests": len(outcomes), "failures": found[FAILED], "errors": found[ERROR], "skipped": found[SKIPPED]}
    return " ".join([*(f'{key}="{value}"' for key, value in numbers.items()), f'time="{seconds:.3f}"'])


def _case(suite: str, outcome: Outcome) -> list[str]:
    head = f"    <testcase classname={_attribute(suite)} name={_attribute(outcome.id)}"
    head += f' time="{outcome.duration_ms / 1000:.3f}"'
    inner = []
    if outcome.tags:
        tags = "".join(f'<property name="tag" value={_attribute(tag)}/>' for tag in outcome.tags)
        inner.append(f"      <properties>{tags}</properties>")
    if outcome.status != PASSED:
        kind = {FAILED: "failure", ERROR: "error", SKIPPED: "skipped"}[outcome.status]
        message = _attribute(outcome.words[0] if outcome.words else outcome.status)
        body = _text("\n".join((*outcome.words, *_printed(outcome))))
        inner.append(f"      <{kind} message={message}>{body}</{kind}>")
    return [f"{head}>", *inner, "    </testcase>"] if inner else [f"{head}/>"]


def _printed(outcome: Outcome) -> list[str]:
    return [
        f"call {number}, {name}:\n{call[name]}"
        for number, call in enumerate(outcome.calls, 1)
        for name in ("stdout", "stderr")
        if call.get(name)
    ]


def _text(text: str) -> str:
    return escape(_NOT_IN_XML.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return quoteattr(_NOT_IN_XML.sub("\ufffd", text))


def forget(folder: str) -> None:
    """Make the directory, and take away the results of an earlier run: they would pass for this run's."""
    with _opened(folder) as opened:
        for name in (RESULTS, JUNIT, SUMMARY):
            with _told(os.path.join(folder, name)):
                opened.remove(name)


def write(folder: str, outcomes: Sequence[Outcome]) -> None:
    """Leave the results in a directory."""
    texts = {
        RESULTS: "".join(json.dumps(outcome.to_dict()) + "\n" for outcome in outcomes),
        JUNIT: junit(outcomes),
        SUMMARY: json.dumps(summary(outcomes), indent=1) + "\n",
    }
    with _opened(folder) as opened:
        for name, text in texts.items():
            with _told(os.path.join(folder, name)):
                opened.write(name, (text,))


def _opened(folder: str) -> OutputDirectory:
    with _told(folder):
        return OutputDirectory(folder, make=True)


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorralError(f"{path} cannot be written: {error.strerror}; choose another --out") from None


def read(path: str) -> list[Outcome]:
    """Return the outcomes of a run, from its directory or its results; CorralError where one of them is none."""
    found = read_any(path)
    # A run has at least one task.
    if not found or not all(outcome.is_sound for outcome in found):
        raise _foreign(path)
    return found


def read_any(path: str) -> list[Outcome]:
    """Return what a file says of outcomes, sound or not."""
    file_path = os.path.join(path, RESULTS) if os.path.isdir(path) else path
    try:
        # Neither a pipe nor a device, which a command may have put there, can hold this up.
        data, _ = read_regular_file(file_path, MAX_RESULTS_BYTES, follows=True)
        if len(data) > MAX_RESULTS_BYTES:
            raise CorralError(f"{file_path}: longer than {MAX_RESULTS_BYTES} bytes")
        return [Outcome.from_dict(json.loads(line)) for line in data.decode().split("\n") if line.strip()]
    except OSError as error:
        raise CorralError(
            f"{file_path}: {error.strerror}; name the --out directory of a run that came to its end"
        ) from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise _foreign(file_path) from None


def _foreign(path: str) -> CorralError:
    return CorralError(f"{path} is no results.jsonl of corral eval")
