"""A command of `corral run` waits while a person is asked about a destination that nobody could foresee."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from observe import eventually
from person import CORRAL, END, Ask, run, terminals
from screen import OrphanScreen

import golden
from corral.policy.answers.family_grants import list_answers
from corral.policy.answers.refusals import find_refusal, open_refusals
from corral.policy.answers.watchers import is_watched

FETCH = ("python3", "fetch.py")
SCRIPT = """
import sys, urllib.request
for name in sys.argv[1:] or ["own"]:
    try:
        print(urllib.request.urlopen(f"http://{name}.example:PORT/").read().decode(), flush=True)
    except OSError as error:
        print("failed:", error, flush=True)
"""


@pytest.fixture
def project(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("state", "config", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    monkeypatch.delenv("CI", raising=False)
    root = tmp_path / "project"
    root.mkdir()
    (root / "fetch.py").write_text(SCRIPT.replace("PORT", str(port)))
    policy(tmp_path)
    return root


def policy(base: Path, more: str = "") -> None:
    """Write the user's policy. The names have an address of their own, since no resolver knows them."""
    folder = base / "config" / "corral"
    folder.mkdir(parents=True, exist_ok=True)
    text = '[containment]\nhosts = ["own.example=127.0.0.1", "more.example=127.0.0.1"]\n'
    (folder / "policy.toml").write_text(f"{more}{text}")


@pytest.fixture
def screen(project: Path) -> Iterator[Ask]:
    with terminals(project) as made:
        yield made


def answer(shown: OrphanScreen, keys: bytes) -> int:
    shown.until(END)
    shown.type(keys)
    return shown.status()


def test_terminal_of_the_run_asks_and_a_yes_serves(screen: Ask, project: Path, port: int) -> None:
    shown = screen("run", "--", *FETCH, TERM="dumb")
    text = shown.until(END).decode().replace("\r\n", "\n")
    text = text.replace(str(project), "PROJECT").replace(str(port), "PORT")
    golden.check("cli-messages", "run: a connection waits", text)
    shown.type(b"o\r")
    shown.until(b"reached")
    assert shown.status() == 0
    (line,) = [
        line for line in _log(project) if line["event"] == "grant" and "A person at a terminal" in line["reason"]
    ]
    assert f"own.example:{port}" in json.dumps(line)
    assert open_refusals(os.environ) == []


def _log(project: Path) -> list[dict[str, str]]:
    lines = (project.parent / "state" / "corral" / "audit" / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_question_stands_below_all_output_on_a_reset_terminal(screen: Ask, project: Path) -> None:
    (project / "fetch.py").write_text("print('\\x1b[8m hidden', flush=True)\n" + (project / "fetch.py").read_text())
    shown = screen("run", "--", *FETCH)
    before, _, question = shown.until(END).partition(b"waits for your permission")
    assert before.index(b"\x1b[8m") < before.index(b"\x1b[0m") < before.index(b"\x1b[999;1H")
    assert b"\x1b" not in question
    shown.type(b"\r")
    shown.status()


@pytest.mark.parametrize("keys", [b"\r", b"y es\r", b"d\r", b"p\r"])
def test_anything_but_a_yes_refuses_and_is_not_asked_again(screen: Ask, project: Path, keys: bytes) -> None:
    shown = screen("run", "--", *FETCH, "own", "own")
    shown.until(END)
    shown.type(keys)
    text = shown.until(b"[exit ")
    assert (b"reached" in text, text.count(b"failed:"), text.count(END)) == (False, 2, 0)
    assert b"corral allow" not in text
    assert open_refusals(os.environ) == []
    again = screen("run", "--", *FETCH, "own", "own")
    assert END not in again.until(b"[exit ")
    assert [each.answer for each in list_answers(os.environ)] == ["no"]


def test_unanswered_question_ends_and_leaves_a_refusal(screen: Ask, project: Path) -> None:
    policy(project.parent, "[asking]\nhold_seconds = 1\n")
    shown = screen("run", "--", *FETCH)
    shown.until(END)
    text = shown.until(b"[exit ")
    assert (b"reached" in text, b"failed:" in text) == (False, True)
    (refusal,) = open_refusals(os.environ)
    assert f"corral allow {refusal.id}".encode() in text
    assert list_answers(os.environ) == []


def test_keys_typed_before_the_question_are_no_answer_to_it(screen: Ask, project: Path) -> None:
    (project / "fetch.py").write_text("input()\n" + (project / "fetch.py").read_text())
    shown = screen("run", "--", *FETCH)
    eventually(shown.is_raw)
    shown.type(b"go\ro\ro\r")
    assert b"reached" not in shown.until(END)
    shown.type(b"\r")
    assert b"reached" not in shown.until(b"[exit ")


def test_output_does_not_appear_while_the_user_is_asked(screen: Ask, project: Path) -> None:
    text = (project / "fetch.py").read_text()
    noise = "import threading\ndef noise():\n    while True: print('NOISE', flush=True)\n"
    (project / "fetch.py").write_text(f"{noise}threading.Thread(target=noise, daemon=True).start()\n{text}")
    shown = screen("run", "--", *FETCH)
    shown.until(END)
    shown.read(1.0)
    assert shown.seen == b""
    shown.type(b"o\r")
    shown.until(b"reached")
    shown.status()


@pytest.mark.parametrize("option", ["-T", "--json", "--no-ask"])
def test_nothing_is_asked_on_a_terminal_that_the_command_holds(screen: Ask, option: str) -> None:
    text = screen("run", option, "--", *FETCH).until(b"[exit ")
    assert (END in text, b"reached" in text) == (False, False)
    (refusal,) = open_refusals(os.environ)
    assert f"corral allow {refusal.id}".encode() in text


def test_refused_connection_is_allowed_later_for_one_run(screen: Ask, project: Path, port: int) -> None:
    done = run("run", "--", *FETCH, cwd=project)
    assert (done.returncode, "failed:" in done.stdout) == (0, True)
    (refusal,) = open_refusals(os.environ)
    golden.check(
        "cli-messages",
        "run: a connection was refused",
        done.stderr.replace(refusal.id, "ID").replace(str(port), "PORT"),
    )
    shown = screen("allow", refusal.id)
    text = shown.until(END).decode().replace("\r\n", "\n").replace(str(project), "PROJECT")
    golden.check(
        "cli-messages",
        "allow: a refused connection",
        text.replace(str(port), "PORT"),
    )
    shown.type(b"o\r")
    assert shown.status() == 0
    assert find_refusal(refusal.id, os.environ) is None
    other = run("run", "--", *FETCH, "more", cwd=project)
    assert "reached" not in other.stdout
    assert run("run", "--", *FETCH, cwd=project).stdout == "reached\n"
    assert "reached" not in run("run", "--", *FETCH, cwd=project).stdout


def test_second_destination_is_asked_about_with_the_first(screen: Ask, project: Path, port: int) -> None:
    (project / "fetch.py").write_text((project / "fetch.py").read_text().replace('print("failed', 'sys.exit("failed'))
    both = (*FETCH, "own", "more")
    for targets in ([f"own.example:{port}"], [f"more.example:{port}", f"own.example:{port}"]):
        assert run("run", "--", *both, cwd=project).stdout.count("reached") == len(targets) - 1
        (refusal,) = open_refusals(os.environ)
        assert [grant.target for grant in refusal.grants] == targets
        assert answer(screen("allow", refusal.id), b"o\r") == 0
    assert run("run", "--", *both, cwd=project).stdout == "reached\nreached\n"


@pytest.mark.parametrize(
    "settings", ['posture = "locked"\n', 'profile = "strict"\n', "[asking]\nhold_seconds = 0\n"],
    ids=["locked", "strict", "zero"],
)  # fmt: skip
def test_policy_can_refuse_without_a_question(screen: Ask, project: Path, settings: str) -> None:
    policy(project.parent, settings)
    text = screen("run", "--", *FETCH).until(b"[exit ")
    assert (END in text, b"reached" in text) == (False, False)
    assert open_refusals(os.environ) == []


@pytest.mark.parametrize(("keys", "served"), [(b"o\r", True), (b"\r", False)])
def test_watcher_answers_a_connection_of_a_hooked_run(screen: Ask, project: Path, keys: bytes, served: bool) -> None:
    watching = screen("allow", "--watch")
    eventually(lambda: is_watched(os.environ))
    call = subprocess.Popen(
        [*CORRAL, "run", "--call", "toolu_1", "--", *FETCH],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watching.until(END)
    (refusal,) = open_refusals(os.environ)
    assert refusal.held_until > refusal.refused_at
    watching.type(keys)
    watching.until(b"The command continues." if served else b"not allowed")
    said, errors = call.communicate(timeout=120)
    assert (said == "reached\n", "corral allow" in errors) == (served, False)
    watching.type(b"\x03")
    assert watching.status() == 0
    assert not is_watched(os.environ)


def test_hooked_run_without_a_watcher_holds_nothing(screen: Ask, project: Path) -> None:
    text = screen("run", "--call", "toolu_1", "--", *FETCH).until(b"[exit ")
    assert (END in text, b"failed:" in text) == (False, True)
    (refusal,) = open_refusals(os.environ)
    assert (refusal.held_until, refusal.host) == (0.0, "hook")


def test_connection_that_waits_is_shown_before_older_refusals(screen: Ask, project: Path) -> None:
    assert run("run", "--", "curl", "https://index.example/x", cwd=project).returncode == 126
    watching = screen("allow", "--watch")
    watching.until(b"index.example")
    watching.until(END)
    run("run", "--", "curl", "https://files.example/x", cwd=project)
    call = subprocess.Popen(
        [*CORRAL, "run", "--call", "toolu_1", "--", *FETCH],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    eventually(lambda: len(open_refusals(os.environ)) == 3)
    watching.type(b"\r")
    assert b"own.example" in watching.until(END)
    watching.type(b"o\r")
    assert b"files.example" in watching.until(END)
    assert call.communicate(timeout=120)[0] == "reached\n"


def test_log_shows_an_opening_its_source_and_who_allowed_it(screen: Ask, project: Path, port: int) -> None:
    assert answer(screen("run", "--", "curl", "-sS", f"http://own.example:{port}/"), b"o\r") == 0
    (entry,) = [line for line in _log(project) if "result" in line]
    shown = run("log", "show", entry["id"], cwd=project).stdout
    assert f"network own.example:{port} (in the call), allowed by you, once" in " ".join(shown.split())
