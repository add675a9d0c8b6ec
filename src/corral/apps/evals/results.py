"""Writes and reads the results of a run: JSON lines, JUnit XML, and pass rates per tag. Each file is written atomically."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import contextmanager
from xml.sax.saxutils import escape, quoteattr

from corral._lib.records import Record, frozen
from corral.apps.evals.outcome import ERROR, FAILED, PASSED, SKIPPED, STATUSES, Outcome, parse_object
from corral.apps.output_files import OutputDirectory
from corral.model.errors import CorralError
from corral.policy.user_dirs import read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

RESULTS, JUNIT, SUMMARY = "results.jsonl", "junit.xml", "summary.json"
MAX_RESULTS_BYTES = 512 * 1024 * 1024  # bounds the memory for reading a file that is not ours
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@frozen
class Rate(Record):
    """The number of tasks with a tag that passed, were tried (not skipped), and were skipped."""

    tag: str
    passed: int
    tried: int
    skipped: int

    @property
    def share(self) -> float:
        """Return the fraction that passed, 1.0 if no task was tried."""
        return self.passed / self.tried if self.tried else 1.0


def counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Return the number of tasks with each status."""
    found = Counter(outcome.status for outcome in outcomes)
    return {status: found[status] for status in STATUSES}


def rates(outcomes: Sequence[Outcome]) -> list[Rate]:
    """Return the rates of all tags, sorted by tag."""
    tagged: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        for tag in dict.fromkeys(outcome.tags):
            tagged.setdefault(tag, []).append(outcome)
    found = {tag: counts(some) for tag, some in sorted(tagged.items())}
    return [Rate(tag, n[PASSED], len(tagged[tag]) - n[SKIPPED], n[SKIPPED]) for tag, n in found.items()]


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the summary as JSON-ready data."""
    tags = {
        rate.tag: {"passed": rate.passed, "tried": rate.tried, "skipped": rate.skipped, "rate": round(rate.share, 4)}
        for rate in rates(outcomes)
    }
    not_passed = [outcome.id for outcome in outcomes if not outcome.is_good]
    return {"tasks": len(outcomes), **counts(outcomes), "tags": tags, "not_passed": not_passed}


def junit(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as JUnit XML, with a test suite for each task file."""
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
        printed = [
            f"call {number}, {name}:\n{call[name]}"
            for number, call in enumerate(outcome.calls, 1)
            for name in ("stdout", "stderr")
            if call.get(name)
        ]
        body = escape(_NOT_IN_XML.sub("\ufffd", "\n".join((*outcome.words, *printed))))
        inner.append(f"      <{kind} message={message}>{body}</{kind}>")
    return [f"{head}>", *inner, "    </testcase>"] if inner else [f"{head}/>"]


def _attribute(text: str) -> str:
    return quoteattr(_NOT_IN_XML.sub("\ufffd", text))


def forget(folder: str) -> None:
    """Create the directory and delete the results of an earlier run in it, which could be mistaken for results of this run."""
    with _opened(folder) as opened:
        for name in (RESULTS, JUNIT, SUMMARY):
            with _named_errors(os.path.join(folder, name)):
                opened.remove(name)


def write(folder: str, outcomes: Sequence[Outcome]) -> None:
    """Write the results to a directory."""
    texts = {
        RESULTS: "".join(json.dumps(outcome.to_dict()) + "\n" for outcome in outcomes),
        JUNIT: junit(outcomes),
        SUMMARY: json.dumps(summary(outcomes), indent=1) + "\n",
    }
    with _opened(folder) as opened:
        for name, text in texts.items():
            with _named_errors(os.path.join(folder, name)):
                opened.write(name, (text,))


def _opened(folder: str) -> OutputDirectory:
    with _named_errors(folder):
        return OutputDirectory(folder, make=True)


@contextmanager
def _named_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorralError(f"cannot write {path}: {error.strerror}; choose another --out") from None


def read(path: str) -> list[Outcome]:
    """Return the outcomes of a run from its directory or its results file. Raises CorralError if a line is not an outcome."""
    found = read_lines(path)
    outcomes = [outcome for outcome in found if outcome is not None]
    if not found or len(outcomes) < len(found):
        raise _not_results(path)
    return outcomes


def read_lines(path: str) -> list[Outcome | None]:
    """Return the outcome on each line of a results file, None for a line with another JSON object."""
    file_path = os.path.join(path, RESULTS) if os.path.isdir(path) else path
    try:
        # A command may have put a pipe or a device there, which a plain open would wait for.
        data, _ = read_regular_file(file_path, MAX_RESULTS_BYTES, follows=True)
    except OSError as error:
        raise CorralError(
            f"cannot read {file_path}: {error.strerror}; name the --out directory of a finished run"
        ) from None
    if len(data) > MAX_RESULTS_BYTES:
        raise CorralError(f"{file_path} is longer than {MAX_RESULTS_BYTES} bytes")
    objects = [parse_object(line) for line in data.split(b"\n") if line.strip()]
    if None in objects:
        raise _not_results(file_path)
    return [Outcome.parse(data) for data in objects]


def _not_results(path: str) -> CorralError:
    return CorralError(f"{path} is not a results.jsonl of corral eval")
