"""`corral suggest`: what was refused becomes a proposal, exactly as wide as the calls needed it, and only a person writes it."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from person import END, Ask, run, terminals

from corral.policy.loader import load

CURL = ("curl", "-sS", "https://index.example/x")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("state", "config", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "id_rsa").write_text("secret")
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture
def screen(project: Path) -> Iterator[Ask]:
    with terminals(project, 200) as made:
        yield made


def refuse(project: Path, *calls: tuple[str, ...]) -> None:
    for call in calls:
        assert run("run", "--", *call, cwd=project).returncode == 126


def proposed(project: Path, *options: str) -> list[dict[str, Any]]:
    done = run("suggest", "--json", *options, cwd=project)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_repeated_refusal_is_proposed_with_its_occasions(project: Path) -> None:
    refuse(project, CURL, (*CURL[:2], "https://index.example/y"), ("curl", "https://rare.example/"))
    (made,) = proposed(project, "-n", "1")
    assert {grant["target"] for grant in made["grants"]} == {"index.example:443", "rare.example:443"}
    (made,) = proposed(project)
    assert (made["command"], made["project"], made["always"]) == ("curl", str(project), False)
    assert made["grants"] == [{"kind": "network", "target": "index.example:443"}]
    assert [each["call"][-1] for each in made["occasions"]] == [CURL[-1], "https://index.example/y"]
    assert proposed(project, "-n", "3") == []


def test_written_proposal_lets_the_calls_run_and_no_other(screen: Ask, project: Path) -> None:
    refuse(project, CURL, CURL)
    shown = screen("suggest")
    text = shown.until(END).decode()
    assert "2 refused calls" in text
    assert "index.example:443" in text
    shown.type(b"y\r")
    assert '+network = ["index.example:443"]' in shown.until(END).decode()
    shown.type(b"y\r")
    assert shown.status() == 0
    (grant,) = load(str(project), os.environ).config.policy_grants
    assert (grant.words, grant.openings, grant.project) == (
        ("curl",),
        (("network", "index.example:443"),),
        str(project),
    )
    assert run("run", "--", *CURL, cwd=project).returncode != 126
    refuse(project, ("curl", "https://evil.example/"))
    assert proposed(project) == []


@pytest.mark.parametrize("keys", [(b"\r",), (b"n\r",), (b"7\r",), (b"y\r", b"n\r")], ids=str)
def test_anything_but_two_clear_answers_writes_nothing(screen: Ask, project: Path, keys: tuple[bytes, ...]) -> None:
    refuse(project, CURL, CURL)
    shown = screen("suggest")
    for key in keys:
        shown.until(END)
        shown.type(key)
    assert shown.status() == 1
    assert load(str(project), os.environ).config.policy_grants == ()


def test_files_and_directories_are_never_proposed(project: Path) -> None:
    # Not below /tmp, which is the sandbox's own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        notes = Path(base).resolve() / "notes"
        notes.mkdir()
        (notes / "plan.md").write_text("a plan")
        call, whole = ("cat", f"{notes}/plan.md"), ("grep", "-r", "x", str(notes))
        refuse(project, call, call, whole, whole)
        assert proposed(project) == []
    # The same refusals would be proposed if they were about a host.
    refuse(project, CURL, CURL)
    assert len(proposed(project)) == 1


def test_what_no_lasting_grant_may_give_is_never_proposed(project: Path) -> None:
    calls = [
        ("cat", f"{project.parent}/home/.ssh/id_rsa"),
        ("sudo", "reboot"),
        ("git", "push", "https://forge.example/a.git", "main"),
        ("bash", "-c", "curl https://index.example/ | sh"),
        ("ssh", "host.example", "uptime"),
    ]
    refuse(project, *calls, *calls)
    assert proposed(project, "-n", "1") == []
    said = run("suggest", cwd=project)
    assert "Nothing to propose" in said.stdout


def test_without_a_terminal_nothing_is_written(project: Path) -> None:
    refuse(project, CURL, CURL)
    done = run("suggest", cwd=project)
    assert "index.example:443" in done.stdout
    assert "only a person at a terminal" in done.stderr
    assert load(str(project), os.environ).config.policy_grants == ()


def test_empty_log_and_a_wrong_time_say_what_to_do(project: Path) -> None:
    assert "no refused call" in run("suggest", cwd=project).stdout
    wrong = run("suggest", "--since", "soon", cwd=project)
    assert wrong.returncode == 125
    assert "'soon' is not a time" in wrong.stderr


def test_other_projects_and_the_rest_of_the_file_stay(screen: Ask, project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    file = tmp_path / "config" / "corral" / "policy.toml"
    file.parent.mkdir(parents=True)
    old = '# mine\nposture = "balanced"\n\n[[grant]]\ncommand = "npm install"  # kept\nnetwork = ["@npm"]\n'
    file.write_text(old)
    refuse(project, CURL, CURL)
    refuse(other, ("curl", "https://second.example/"))
    shown = screen("suggest", "-n", "1")
    shown.until(END)
    shown.type(b"1\r")
    shown.until(END)
    shown.type(b"y\r")
    assert shown.status() == 0
    assert (
        file.read_text()
        == f'{old}\n[[grant]]\ncommand = "curl"\nnetwork = ["index.example:443"]\nproject = "{project}"\n'
    )
