"""Tests of reading the log: order, filters, and following new entries across rotations."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from corral.audit.ledger import LOG, Ledger, older_files
from corral.audit.query import LogFilter, command_of, entries, follow, known_by, verify

ENTRIES: list[dict[str, Any]] = [
    {"id": "a1", "event": "hook", "host": "claude", "root": "/w/app", "shell": "git status", "decision": "allow"},
    {"id": "b2", "event": "run", "call": "a1", "root": "/w/app", "shell": "git status", "decision": "allow"},
    {
        "id": "c3",
        "event": "hook",
        "host": "codex",
        "root": "/w/app-two",
        "argv": ["sudo", "LS"],
        "decision": "deny",
        "findings": [{"rule": "name-sudo", "decision": "deny", "reason": "x"}],
    },
    {
        "id": "d4",
        "event": "check",
        "root": "/w/app/sub",
        "shell": "git push -f",
        "decision": "ask",
        "findings": [{"rule": "argv-git-history", "decision": "ask", "reason": "x"}],
    },
    {"id": "e5", "event": "hook", "host": "codex", "decision": "deny", "error": "no JSON"},
    {"id": "f6", "event": "hook", "host": "codex", "root": "/w/app", "files": ["/w/app/.envrc"], "decision": "deny"},
]


@pytest.fixture
def place(tmp_path: Path) -> str:
    folder = tmp_path / "audit"
    folder.mkdir(0o700)
    return str(folder)


@pytest.fixture
def filled(place: str) -> str:
    # One entry per file, so that every query also crosses files.
    log = Ledger(place, file_bytes=300, files=50)
    for entry in ENTRIES:
        log.append(json.dumps(entry)[1:-1])
    assert len(older_files(place)) >= 3
    return place


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [entry["id"] for entry in found]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        pytest.param(LogFilter(), "a1 b2 c3 d4 e5 f6", id="all"),
        pytest.param(LogFilter(decision="deny"), "c3 e5 f6", id="a verdict"),
        pytest.param(LogFilter(rule="name-sudo"), "c3", id="a rule"),
        pytest.param(LogFilter(rule="argv"), "d4", id="an axis"),
        pytest.param(LogFilter(rule="name-su"), "", id="part of a rule id"),
        pytest.param(LogFilter(project="/w/app"), "a1 b2 d4 f6", id="a project, not another with the same prefix"),
        pytest.param(LogFilter(text="ls"), "c3", id="a part of the command, ignoring case"),
        pytest.param(LogFilter(text=".envrc"), "f6", id="a file"),
        pytest.param(LogFilter(host="codex", decision="deny"), "c3 e5 f6", id="a host and a verdict"),
        pytest.param(LogFilter(event="check"), "d4", id="an event"),
        pytest.param(LogFilter(since="9999"), "", id="the future"),
        pytest.param(LogFilter(until="2000"), "", id="the past"),
        pytest.param(LogFilter(since="2000", until="9999"), "a1 b2 c3 d4 e5 f6", id="between"),
    ],
)
def test_matching_entries_are_ordered_newest_last(filled: str, wish: LogFilter, expected: str) -> None:
    assert ids(entries(filled, wish)) == expected.split()
    assert ids(entries(filled, wish, last=2)) == expected.split()[-2:]


def test_since_and_until_split_the_log(filled: str) -> None:
    found = entries(filled, LogFilter())
    moments = sorted({entry["at"] for entry in found})
    assert entries(filled, LogFilter(since=moments[-1])) == [e for e in found if e["at"] == moments[-1]]
    assert entries(filled, LogFilter(until=moments[0])) == [e for e in found if e["at"] == moments[0]]


def test_missing_log_has_no_entries(tmp_path: Path) -> None:
    assert entries(str(tmp_path / "nowhere"), LogFilter()) == []
    assert known_by(str(tmp_path / "nowhere"), "a1") == []


def test_call_and_its_run_are_found_by_one_id(filled: str) -> None:
    assert ids(known_by(filled, "a1")) == ["a1", "b2"]
    assert ids(known_by(filled, "f")) == ["f6"]


def test_unreadable_lines_are_skipped(place: str) -> None:
    log = Ledger(place)
    log.append('"id": "one"')
    with Path(place, LOG).open("ab") as file:
        file.write(b'[1]\n"x"\n{"seq": "2"}\nnonsense\n{"seq": 3}\n{"torn')
    assert [entry["seq"] for entry in entries(place, LogFilter())] == [1, 3]


def test_command_of_an_entry_is_one_text() -> None:
    assert list(map(command_of, ENTRIES)) == [
        *("git status", "git status", "sudo LS", "git push -f", "", "/w/app/.envrc"),
    ]


def test_follow_yields_each_entry_once_across_rotations(place: str) -> None:
    log = Ledger(place, file_bytes=2000, files=400)
    for number in range(10):
        log.append(f'"number": {number}, "id": "x"')

    def write() -> None:
        for number in range(10, 400):
            log.append(f'"number": {number}, "id": "x"')

    writer = threading.Thread(target=write)
    seen: list[int] = []
    writer.start()
    for entry in follow(place, LogFilter(), after=5):
        if entry is not None:
            seen.append(entry["number"])
        if len(seen) == 395 or (entry is None and not writer.is_alive() and seen[-1:] == [399]):
            break
    writer.join()
    assert seen == list(range(5, 400))
    assert len(older_files(place)) > 10
    assert verify(place).problems == ()


def test_follow_waits_for_a_missing_log(tmp_path: Path) -> None:
    place = tmp_path / "later"
    stream = follow(str(place), LogFilter(decision="deny"), after=0)
    assert next(stream) is None
    place.mkdir(0o700)
    log = Ledger(str(place))
    log.append('"decision": "allow"')
    log.append('"decision": "deny"')
    assert [entry["seq"] for entry in (next(stream), next(stream)) if entry] == [2]
