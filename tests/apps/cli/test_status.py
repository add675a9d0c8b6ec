"""`corral status`, as text and as JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.apps.cli.verbs.status import recent_refusals


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An empty home directory."""
    (tmp_path / "home").mkdir()
    names = (
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
        "COLUMNS",
        "NO_COLOR",
        "CODEX_HOME",
        "CLAUDE_CONFIG_DIR",
    )
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return kept | {"HOME": str(tmp_path / "home")}


def corral_(*arguments: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


def told(project: Path, home: dict[str, str]) -> dict[str, Any]:
    done = corral_("--json", cwd=project, env=home)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def about(answer: dict[str, Any], name: str) -> list[tuple[str, str]]:
    return [(check["status"], check["text"]) for check in answer["checks"] if check["about"] == name]


def test_status_of_a_fresh_home_names_the_first_step(project: Path, home: dict[str, str]) -> None:
    answer = told(project, home)
    assert (answer["version"], answer["root"], answer["profile"]) == (corral.__version__, str(project), "workspace")
    assert about(answer, "profile")[0][1].startswith("workspace")
    assert about(answer, "kernel") == [("ok", "full: every layer holds")]
    assert about(answer, "hooks")[0][0] == "warn"
    assert answer["refused"] == []
    shown = corral_(cwd=project, env=home)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "corral install claude\n" in shown.stdout
    assert corral_("status", cwd=project, env=home).stdout == shown.stdout
    assert corral_(f"--root={project}", cwd=project.parent, env=home).stdout == shown.stdout


def test_status_leaves_nothing_behind(project: Path, home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    told(project, home | {"TMPDIR": str(tmp_path / "tmp")})
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "home").iterdir()) == []
    assert list(project.iterdir()) == []


def test_status_shows_policy_files_and_trust(project: Path, home: dict[str, str], tmp_path: Path) -> None:
    owners = tmp_path / "home" / ".config" / "corral"
    owners.mkdir(parents=True)
    (owners / "policy.toml").write_text('profile = "strict"\n')
    (project / "corral.toml").write_text("timeout_seconds = 5\n")
    answer = told(project, home)
    assert answer["profile"] == "strict"
    assert about(answer, "policy") == [
        ("ok", "~/.config/corral/policy.toml, yours"),
        ("ok", "corral.toml, the project's, only tightens"),
    ]
    (project / "corral.toml").write_text('[containment]\nnetwork = "on"\n')
    status, text = about(told(project, home), "policy")[1]
    assert (status, text.endswith("containment.network")) == ("warn", True)


def test_broken_policy_exits_125(project: Path, home: dict[str, str]) -> None:
    (project / "corral.toml").write_text("colour = 1\n")
    done = corral_(cwd=project, env=home)
    assert done.returncode == 125
    ((status, _),) = about(told(project, home), "policy")
    assert status == "fail"


def test_unwritable_log_is_shown(project: Path, home: dict[str, str], tmp_path: Path) -> None:
    assert corral_("run", "--", "true", cwd=project, env=home).returncode == 0
    assert about(told(project, home), "log") == []
    place = tmp_path / "home" / ".local" / "state" / "corral" / "audit"
    (place / "log.jsonl").unlink()
    (place / "log.jsonl").mkdir()
    assert corral_("run", "--", "true", cwd=project, env=home).returncode == 125
    why = f"the audit log in {place} cannot be written: Is a directory"
    ((status, text),) = about(told(project, home), "log")
    assert (status, text.startswith(why)) == ("fail", True)
    owners = tmp_path / "home" / ".config" / "corral"
    owners.mkdir(parents=True)
    (owners / "policy.toml").write_text("[audit]\nrequired = false\n")
    ((status, text),) = about(told(project, home), "log")
    assert (status, text.startswith(why)) == ("warn", True)


def test_status_shows_installed_missing_and_broken_hooks(project: Path, home: dict[str, str], tmp_path: Path) -> None:
    settings = tmp_path / "home" / ".claude" / "settings.json"
    (tmp_path / "home" / ".gemini").mkdir()
    (tmp_path / "home" / ".gemini" / "settings.json").write_text("{}")
    settings.parent.mkdir()
    program = "/x/corral/integrations/hooks/program.py"
    for python, status in ((sys.executable, "ok"), ("/no/such/python", "fail")):
        hook = {"type": "command", "command": python, "args": ["-I", "-S", program, "claude"]}
        settings.write_text(json.dumps({"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [hook]}]}}))
        first, second = about(told(project, home), "hooks")
        assert (first[0], "~/.claude/settings.json" in first[1], "/no/such" in first[1]) == (
            status,
            True,
            status == "fail",
        )
        assert (second[0], second[1].startswith("Gemini CLI")) == ("warn", True)
    settings.write_text("{")
    assert about(told(project, home), "hooks")[0][0] == "fail"


def test_status_shows_the_last_refusals_of_the_project(project: Path, home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    corral_("run", "--", "sudo", "other", cwd=tmp_path / "other", env=home)
    for n in range(4):
        corral_("run", "--", "sudo", f"n{n}", cwd=project, env=home)
    corral_("check", "--", "sudo", "only-checked", cwd=project, env=home)
    corral_("run", "--", "true", cwd=project, env=home)
    corral_("run", "--no-ask", "--", "git", "reset", "--hard", cwd=project, env=home)
    refused = told(project, home)["refused"]
    assert [call["command"] for call in refused] == ["sudo n2", "sudo n3", "git reset --hard"]
    assert [call["rule"] for call in refused] == ["name-sudo", "name-sudo", "argv-git-discard"]
    shown = corral_(cwd=project, env=home).stdout
    assert "Refused last" in shown
    assert "sudo n3" in shown


def test_log_that_cannot_be_created_is_shown(project: Path, home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "home" / ".local").write_text("")
    why = f"the audit log cannot be written: {tmp_path / 'home' / '.local'} is not writable"
    ((status, text),) = about(told(project, home), "log")
    assert (status, text.startswith(why)) == ("fail", True)
    done = corral_("doctor", "--json", cwd=project, env=home)
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "log"]
    assert (done.returncode > 0, check["status"], bool(check["means"])) == (True, "fail", True)
    assert check["found"].startswith(why)


def test_corrupt_log_gives_no_refusals(tmp_path: Path) -> None:
    assert recent_refusals(str(tmp_path / "none"), "/x") == []
    (tmp_path / "log.jsonl").write_bytes(b"\xff\xfe[1]\n{}\nnull\n" + b"[" * 100_000 + b"\n")
    assert recent_refusals(str(tmp_path), "/x") == []


def test_home_directory_is_not_a_project(home: dict[str, str], tmp_path: Path) -> None:
    done = corral_("--json", cwd=tmp_path / "home", env=home)
    assert [check["status"] for check in json.loads(done.stdout)["checks"] if check["about"] == "project"] == ["fail"]


@pytest.mark.parametrize("columns", [30, 60, 100])
def test_status_fits_the_terminal_and_escapes_text(project: Path, home: dict[str, str], columns: int) -> None:
    corral_("run", "--shell", "sudo x # \x1b[2J\n\rnext", cwd=project, env=home)
    shown = corral_(cwd=project, env=home | {"COLUMNS": str(columns)}).stdout
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert [
        line for line in shown.splitlines() if len(line) > columns and not line.strip().startswith(("$", "More"))
    ] == []
