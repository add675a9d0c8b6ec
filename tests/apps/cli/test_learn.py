"""`corral learn`: a person lets a command connect once, and the proposed grants are proven by a second run without a question."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from person import CORRAL, END, Ask, run, terminals
from screen import OrphanScreen

from corral.policy.loader import load

HOSTS = '[containment]\nhosts = ["own.example=127.0.0.1", "more.example=127.0.0.1"]\n'
SCRIPT = """
import pathlib, sys, urllib.request
for name in sys.argv[1:]:
    print(urllib.request.urlopen(f"http://{name}.example:PORT/").read().decode(), flush=True)
pathlib.Path("made").touch()
"""


@pytest.fixture
def project(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("state", "config", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    monkeypatch.delenv("CI", raising=False)
    root = tmp_path / "project"
    root.mkdir()
    (root / "fetch.py").write_text(SCRIPT.replace("PORT", str(port)))
    policy_file(tmp_path).parent.mkdir(parents=True)
    policy_file(tmp_path).write_text(HOSTS)
    return root


def policy_file(base: Path) -> Path:
    return base / "config" / "corral" / "policy.toml"


@pytest.fixture
def screen(project: Path) -> Iterator[Ask]:
    with terminals(project) as made:
        yield made


def answered(shown: OrphanScreen, *keys: bytes) -> tuple[int, list[str]]:
    """Answer one question after the other. Return the exit code and the questions."""
    questions = []
    for key in keys:
        questions.append(shown.until(END).decode())
        shown.type(key + b"\r")
    return shown.status(), questions


def test_learnt_grant_is_proven_written_and_enough(screen: Ask, project: Path, port: int) -> None:
    before = run("run", "--", "python3", "fetch.py", "own", cwd=project)
    assert before.returncode == 1
    status, questions = answered(screen("learn", "--", "python3", "fetch.py", "own"), b"y", b"y")
    assert status == 0
    assert f"own.example:{port}" in questions[0]
    assert "proven" in questions[1]
    added = f'\n[[grant]]\ncommand = "python3 fetch.py own"\nnetwork = ["own.example:{port}"]\nproject = "{project}"\nalways = true\n'
    assert policy_file(project.parent).read_text() == HOSTS + added
    assert not (project / "made").exists()  # both runs were transactions
    again = run("run", "--", "python3", "fetch.py", "own", cwd=project)
    assert (again.returncode, again.stdout) == (0, "reached\n")
    assert (project / "made").exists()


def test_learnt_grant_is_for_this_command_alone(screen: Ask, project: Path) -> None:
    assert answered(screen("learn", "--", "python3", "fetch.py", "own"), b"y", b"y")[0] == 0
    assert run("run", "--", "python3", "fetch.py", "more", cwd=project).returncode == 1
    assert run("run", "--", "python3", "-c", "0", cwd=project).returncode == 0
    # Another program of the same call could use it, so that call has no opening, and still runs.
    both = run("run", "--shell", "python3 fetch.py own; make -v >made-by-make", cwd=project)
    assert "reached" not in both.stdout
    assert (project / "made-by-make").exists()
    quiet = run("run", "--shell", "python3 fetch.py own | cat", cwd=project)
    assert quiet.stdout == "reached\n"


def test_a_no_to_the_host_proposes_nothing(screen: Ask, project: Path) -> None:
    shown = screen("learn", "--", "python3", "fetch.py", "own")
    status, _ = answered(shown, b"n")
    assert status == 1
    assert policy_file(project.parent).read_text() == HOSTS


def test_a_no_to_the_policy_writes_nothing(screen: Ask, project: Path) -> None:
    assert answered(screen("learn", "--", "python3", "fetch.py", "own"), b"y", b"n")[0] == 1
    assert policy_file(project.parent).read_text() == HOSTS


def test_two_hosts_are_asked_about_one_by_one(screen: Ask, project: Path, port: int) -> None:
    status, questions = answered(screen("learn", "--", "python3", "fetch.py", "own", "more"), b"y", b"y", b"y")
    assert status == 0
    assert [name in question for name, question in zip(("own.", "more."), questions, strict=False)] == [True, True]
    (grant,) = load(str(project), os.environ).config.policy_grants
    assert {target for _, target in grant.openings} == {f"own.example:{port}", f"more.example:{port}"}


def test_command_that_needs_nothing_learns_nothing(screen: Ask, project: Path) -> None:
    shown = screen("learn", "--", "python3", "fetch.py")
    assert shown.status() == 0
    assert b"needs nothing beyond your policy" in shown.seen
    assert policy_file(project.parent).read_text() == HOSTS


def test_failing_command_proposes_nothing(screen: Ask, project: Path) -> None:
    shown = screen("learn", "--", "python3", "-c", "raise SystemExit(3)")
    assert shown.status() == 3
    assert b"exited with 3" in shown.seen


def test_call_of_a_hard_class_is_not_run(screen: Ask, project: Path) -> None:
    shown = screen("learn", "--", "sudo", "reboot")
    assert shown.status() == 126
    assert b"not learnt" in shown.seen


@pytest.mark.parametrize("text", ["git push https://forge.example/a.git main", "git reset --hard"])
def test_call_that_needs_an_answer_each_time_is_not_run(screen: Ask, project: Path, text: str) -> None:
    shown = screen("learn", "--shell", text)
    assert shown.status() == 1
    assert b"not run: this needs your answer each time" in shown.seen
    assert policy_file(project.parent).read_text() == HOSTS


@pytest.mark.parametrize("command", [("learn", "--", "true"), ("learn", "--shell", "curl https://own.example/")])
def test_nobody_but_a_person_at_a_terminal_learns(project: Path, command: tuple[str, ...]) -> None:
    done = run(*command, cwd=project)
    assert done.returncode == 126
    assert "only a person at a terminal" in done.stderr
    assert policy_file(project.parent).read_text() == HOSTS


def test_agent_cannot_learn_for_itself(project: Path) -> None:
    inside = run("run", "--", *CORRAL, "learn", "--", "true", cwd=project)
    assert inside.returncode != 0
    assert policy_file(project.parent).read_text() == HOSTS
