"""The page shows transactions with their state and calls, and connections with their grants, in a real browser."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chromium import NARROW, Browser

from corral.apps.cli.questions.terminal_prompt import AGENT_VARIABLES
from corral.apps.evals.outcome import Outcome
from corral.apps.evals.results import RESULTS
from corral.apps.viewer import call_list, page, write
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import Server
from corral.apps.viewer.sources import EvalSource, ResultSource

HIDES = "import os; os.rename('old', 'new'); [open(name, 'w').close() for name in ('made', '.envrc')]"
Corral = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def corral(home: dict[str, str], project: Path) -> Corral:
    """Return a function that runs corral in the project, without a terminal."""
    (project / "notes.txt").write_text("kept\n")
    (project / "old").write_text("old\n")
    env = {name: value for name, value in home.items() if name not in AGENT_VARIABLES}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "corral", *words]
        return subprocess.run(
            command, cwd=project, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    return run


def waiting(corral: Corral) -> str:
    (first, *_) = json.loads(corral("history", "--json").stdout)
    return str(first["id"])


def choose(browser: Browser, state: str) -> None:
    browser.js(
        "const e = document.getElementById('state'); e.value = arguments[0]; e.dispatchEvent(new Event('change'))",
        state,
    )
    browser.settle()


def test_state_of_a_transaction_is_shown_and_updated(
    browser: Browser, serve: Callable[..., Server], corral: Corral, project: Path
) -> None:
    corral("try", "--", "python3", "-c", HIDES)
    id_ = waiting(corral)
    browser.open(serve().url)
    browser.click(".row", "python3")
    assert browser.text("#transaction b") == "waiting"
    assert f"corral apply {id_}" in browser.text("#transaction")
    assert browser.texts("#members .changes li") == ["added.envrc", "addedmade", "renamedold → new"]
    corral("apply", id_, "made")
    browser.until(lambda: browser.text("#transaction b") == "applied in part", "a part is applied")
    corral("undo")
    browser.until(lambda: browser.text("#transaction b") == "undone", "it is undone")
    (project / "old").write_text("the owner's\n")
    corral("apply", id_)
    browser.until(lambda: browser.text("#transaction b") == "conflict", "the user's file causes a conflict")
    lines = browser.texts("#members .changes .deny")
    assert [line for line in lines if line.startswith("conflictold")] != []
    assert [line for line in lines if line.startswith("protected.envrc")] != []
    assert "corral discard" in browser.text("#transaction")
    corral("discard", id_)
    browser.until(lambda: browser.text("#transaction b") == "discarded", "it is discarded")
    words = [text.split(" ")[0] for text in browser.texts("#members > li")]
    assert words == ["python3", "waiting", "applied", "undone", "conflict", "discarded"]


def test_calls_and_their_transaction_link_to_each_other(
    browser: Browser, serve: Callable[..., Server], corral: Corral
) -> None:
    corral("run", "--", "ls")
    corral("try", "--yes", "--", "rm", "old")
    corral("try", "--", "touch", "made")
    browser.open(serve().url)
    every = ["1 change: added made", "touch made", "1 change: deleted old", "rm old", "ls"]
    assert browser.commands() == every
    assert browser.texts(".row .ending") == ["waiting", "exit 0", "applied", "exit 0", "exit 0"]
    browser.click(".row", "rm old")
    browser.click("#members .link", "applied")
    assert browser.texts(".row[aria-selected=true] .command") == ["1 change: deleted old"]
    assert browser.texts("#members > li > b") == ["applied"]
    browser.click("#members .link", "rm old")
    assert browser.text("#command") == "rm old"
    browser.click("#transaction .link")
    assert browser.commands() == ["1 change: deleted old", "rm old"]
    browser.click("[data-chip=transaction]")
    assert browser.commands() == every
    offered = browser.js("return [...document.getElementById('state').options].map((option) => option.textContent)")
    assert offered == ["Transaction", "waiting", "applied"]
    choose(browser, "waiting")
    assert browser.commands() == ["1 change: added made", "touch made"]
    browser.click("#clear")
    assert browser.commands() == every


def test_call_of_a_transaction_is_judged_with_its_profile(
    browser: Browser, serve: Callable[..., Server], corral: Corral
) -> None:
    corral("try", "--", "git", "reset", "--hard")
    browser.open(serve().url)
    browser.click(".row", "git reset")
    browser.until(lambda: browser.texts("#parts"), "the call is read")
    assert browser.texts("#parts .bad") == []
    assert "The verdict today is" not in browser.text("#detail")
    assert browser.text("#transaction b") == "nothing changed"


def test_filter_in_a_narrow_window_returns_to_the_list(
    browser: Browser, serve: Callable[..., Server], corral: Corral
) -> None:
    corral("run", "--", "ls")
    corral("try", "--", "touch", "made")
    browser.prepare(NARROW, "dark")
    browser.open(serve().url)
    browser.click(".row", "touch made")
    assert browser.js("const e = document.getElementById('detail'); return e.scrollWidth <= e.clientWidth")
    browser.click("#transaction .link")
    assert browser.texts("#detail") == []
    assert browser.commands() == ["1 change: added made", "touch made"]


def test_try_results_show_the_transaction(
    browser: Browser, serve: Callable[..., Server], corral: Corral, tmp_path: Path
) -> None:
    path = tmp_path / "tried.jsonl"
    tried = [
        corral("try", "--json", *words, "--", "touch", name).stdout for words, name in ((["--yes"], "a"), ([], "b"))
    ]
    path.write_text("".join(json.dumps(json.loads(text)) + "\n" for text in tried))
    browser.open(serve(ResultSource(str(path))).url)
    assert sorted(browser.texts(".row .ending")) == ["applied", "exit 0", "exit 0", "waiting"]
    browser.click(".row", "touch a")
    assert browser.text("#transaction b") == "applied"


def test_transaction_of_a_task_is_shown(browser: Browser, serve: Callable[..., Server], tmp_path: Path) -> None:
    call = {
        "shell": "rm -r src",
        "profile": "workspace",
        "exit_code": 0,
        "decision": "allow",
        "rules": [],
        "duration_ms": 2.0,
    }
    told = {
        "became": "conflict",
        "changes": {"b": "renamed from a"},
        "conflicts": {"a": "it was changed"},
        "refused": {".envrc": "it is protected"},
    }
    one = Outcome("one", "d", "passed", ("x",), "t.toml:1", calls=(call, call), transaction=told)
    plain = Outcome("two", "d", "passed", ("x",), "t.toml:9", calls=(call,))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / RESULTS).write_text("".join(json.dumps(found.to_dict()) + "\n" for found in (one, plain)))
    browser.open(serve(EvalSource([str(folder)])).url)
    browser.until(lambda: browser.texts("#tasks .link"), "the tasks are shown")
    assert browser.texts("#tasks .settled") == [" transaction: conflict · 1 change · 1 conflict · 1 protected"]
    browser.click("#tasks .link", "one")
    assert browser.commands() == ["rm -r src", "rm -r src", "1 change: renamed a → b; conflicts: a; refused: .envrc"]
    browser.click(".row")
    assert browser.text("#transaction b") == "conflict"
    assert "corral apply" not in browser.text("#detail")
    assert len(browser.texts("#members > li")) == 3
    browser.press("3")
    browser.click("#tasks .link", "two")
    browser.click(".row")
    assert browser.texts("#transaction") == []


CONNECTIONS = [
    {"target": "index.example:443", "outcome": "allowed", "address": "192.0.2.7", "grant": "*.example:443", "count": 3},
    {"target": "other.example:443", "outcome": "refused", "detail": "it is not granted", "grant": "other.example:443", "count": 1},
    {"target": "more.example:443", "outcome": "refused", "detail": "too many", "grant": "limits.connections = 9", "count": 1},
    {"target": "index.example:80", "outcome": "failed", "detail": "no answer", "grant": "*.example:80", "count": 1},
]  # fmt: skip


def test_connections_are_shown_with_their_grant(browser: Browser, home: dict[str, str], tmp_path: Path) -> None:
    feed = Feed()
    feed.put(
        [call_list.of_result({"id": "a", "argv": ["curl"], "exit_code": 0, "connections": CONNECTIONS}, root="/p")]
    )
    path = tmp_path / "r.html"
    write(str(path), feed, page.meta(name="n", kind="results", live=False), Reader(home, keeps=True))
    browser.open(path.as_uri())
    browser.click(".row")
    assert browser.texts("#connections > li") == [
        "index.example:443 allowed · 3 timesat 192.0.2.7granted by *.example:443",
        'other.example:443 refusedit is not grantedto allow it, the user sets containment.network = ["other.example:443"]',
        "more.example:443 refusedtoo manyto allow it, the user sets limits.connections = 9",
        "index.example:80 failedno answergranted by *.example:80",
    ]


def test_library_transaction_shows_no_apply_command(browser: Browser, home: dict[str, str], tmp_path: Path) -> None:
    feed = Feed()
    feed.put([call_list.of_result({"id": "a", "argv": ["rm", "x"], "exit_code": 0, "transaction": "t1"}, root=os.sep)])
    path = tmp_path / "r.html"
    write(str(path), feed, page.meta(name="n", kind="results", live=False), Reader(home, keeps=True))
    browser.open(path.as_uri())
    browser.click(".row")
    assert (browser.text("#transaction b"), "corral apply" in browser.text("#detail")) == ("tried", False)
