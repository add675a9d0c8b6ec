"""A task file may set what an untrusted corral.toml may set. A looser setting needs the user's --allow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import golden
from corral.apps.evals.task_loader import FIXTURES, TaskError, load
from corral.apps.evals.validate_tasks import POLICY_KEYS
from corral.policy.loader import user_policy_path
from corral.policy.settings import SETTINGS

TASK: dict[str, Any] = {"id": "x", "argv": ["true"], "expect": {"exit_code": 0}}
# For each setting a value that only a trusted file may have.
LOOSER: dict[str, Any] = {
    "timeout_seconds": 1e6,
    "max_output_bytes": 10**9,
    "env_allowlist": ["PATH", "AWS_SECRET_ACCESS_KEY"],
    "containment.backend": "none",
    "containment.network": "on",
    "containment.local": [5432],
    "containment.hosts": ["index.example=192.0.2.1"],
    "containment.inject": ["index.example:80 Name: value"],
    "containment.agents": ["claude"],
    "containment.read": ["/srv"],
    "containment.write": ["/srv"],
    "containment.destructive": "try",
    "containment.accept_partial": True,
    "limits.memory_bytes": None,
    "limits.processes": 10**6,
    "limits.free_disk_bytes": 1,
    "limits.free_inodes": 1,
    "limits.connections": 10**6,
    "output.drain_seconds": 1e6,
    "output.spill_bytes": 10**6,
}
# Their built-in value is the loosest, or no value is looser.
NEVER_LOOSER = {
    "profile", "denylist", "interpreter_block", "containment.project", "containment.scratch",
    "containment.ptrace", "containment.unsigned_commits", "limits.cpu_seconds", "limits.open_files", "limits.file_size_bytes", "limits.disk_bytes",
    "limits.network_bytes", "output.keep", "output.silence_seconds",
}  # fmt: skip


def task_with(name: str, value: object) -> dict[str, Any]:
    table, _, field = name.partition(".")
    return {**TASK, table: {field: value} if field else value}


def written(folder: Path, *lines: dict[str, Any]) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def user_policy() -> Path:
    """The path of the user's policy file, whose directory exists."""
    path = Path(user_policy_path(os.environ))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_every_setting_of_a_task_is_tried_here() -> None:
    assert {*LOOSER} | NEVER_LOOSER == {*POLICY_KEYS}
    others = {
        "host_questions",
        "publish",
        "sessions",
        "signing_keys",
        "posture",
        "audit.required",
        "asking.hold_seconds",
    }
    assert {*POLICY_KEYS.values()} == {*SETTINGS} - others


@pytest.mark.parametrize("name", LOOSER)
def test_looser_setting_is_refused_and_named_with_a_command(name: str, tmp_path: Path) -> None:
    for lines in ([task_with(name, LOOSER[name])], [{"defaults": _only_settings(name)}, TASK]):
        path = written(tmp_path, *lines)
        with pytest.raises(TaskError) as error:
            load([path])
        first, last = str(error.value).split("\n")
        assert f": {name} = " in first
        assert last.endswith(f"run: corral eval {path} --allow {name}")
        (task,) = load([path], allowed=[name])
        assert task.id == "x"


def _only_settings(name: str) -> dict[str, Any]:
    return {key: value for key, value in task_with(name, LOOSER[name]).items() if key not in TASK}


@pytest.mark.parametrize("name", sorted(NEVER_LOOSER))
def test_loosest_value_of_the_other_settings_is_the_built_in_one(name: str, tmp_path: Path) -> None:
    spec = SETTINGS[POLICY_KEYS[name]]
    loosest = spec.choices[0] if spec.choices else [] if spec.kind == "names" else None
    assert load([written(tmp_path, task_with(name, loosest))])


def test_allowing_one_setting_allows_no_other(tmp_path: Path) -> None:
    both = {**TASK, "timeout_seconds": 1000, "containment": {"network": "on"}}
    with pytest.raises(TaskError) as error:
        load([written(tmp_path, both)], allowed=["timeout_seconds"])
    assert str(error.value).split("\n")[-1].endswith("--allow containment.network --allow timeout_seconds")


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        ("containment", "publish", [8080]),
        ("containment", "settings", ["/root/.claude"]),
        ("output", "directory_file", "/tmp/x"),
        ("output", "exports_file", "/tmp/x"),
        ("output", "text_file", "/tmp/x"),
    ],
)
def test_setting_of_a_single_call_is_unknown_in_a_task(table: str, field: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=f"{table} has no '{field}'"):
        load([written(tmp_path, {**TASK, table: {field: value}})])


@pytest.mark.parametrize("place", [".ssh", ".aws", ".config/corral"])
def test_credentials_are_refused_although_allowed(place: str, tmp_path: Path) -> None:
    path = Path(os.environ["HOME"], place)
    path.mkdir(parents=True, exist_ok=True)
    with pytest.raises(TaskError, match=place):
        load([written(tmp_path, task_with("containment.write", [str(path)]))], allowed=["containment.write"])


def test_denylist_of_a_task_adds_to_the_built_in_one(tmp_path: Path) -> None:
    (task,) = load([written(tmp_path, {**TASK, "denylist": ["cat"], "interpreter_block": ["mylang"]})])
    (plain,) = load([written(tmp_path, TASK)])
    config, built_in = task.config(str(tmp_path)), plain.config(str(tmp_path))
    assert config.denylist == {*(built_in.denylist or ()), "cat"}
    assert config.interpreter_block == {*(built_in.interpreter_block or ()), "mylang"}


def test_user_policy_decides_what_is_looser(tmp_path: Path, user_policy: Path) -> None:
    user_policy.write_text('profile = "strict"\ntimeout_seconds = 100\n')
    try:
        assert load([written(tmp_path, {**TASK, "timeout_seconds": 100})])
        for loose in ({"timeout_seconds": 101}, {"profile": "workspace"}):
            with pytest.raises(TaskError, match=f"{next(iter(loose))} = "):
                load([written(tmp_path, {**TASK, **loose})])
    finally:
        user_policy.unlink()


def test_profile_that_the_user_tightened_cannot_be_named_as_it_was(tmp_path: Path, user_policy: Path) -> None:
    user_policy.write_text('[effects]\nwrite-inside = "deny"\n')
    try:
        with pytest.raises(TaskError, match="profile = "):
            load([written(tmp_path, {**TASK, "profile": "workspace"})])
        assert load([written(tmp_path, {**TASK, "profile": "strict"})])
    finally:
        user_policy.unlink()


def test_shipped_tasks_may_have_looser_settings(tmp_path: Path) -> None:
    assert any(task.data.get("containment", {}).get("network") for task in load([FIXTURES]))
    copy = tmp_path / "network.toml"
    copy.write_bytes(Path(FIXTURES, "network.toml").read_bytes())
    with pytest.raises(TaskError, match=r"containment\.network"):
        load([str(copy)])


def corral_eval(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", "eval", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_task_file_cannot_switch_containment_off(tmp_path: Path) -> None:
    project, canary = tmp_path / "project", tmp_path / "canary"
    project.mkdir()
    task = {
        "id": "makes",
        "containment": {"backend": "none"},
        "files": {"Makefile": f"all:\n\ttouch {canary}\n"},
        "argv": ["make"],
        "expect": {"exit_code": 0},
    }
    written(project, task)
    done = corral_eval("tasks.jsonl", cwd=project)
    assert (done.returncode, canary.exists()) == (125, False)
    golden.check("eval-task-errors", "a task without containment", done.stderr)
    # The same task reaches the canary once the user allows it, and the summary says so.
    done = corral_eval("tasks.jsonl", "--allow", "containment.backend", cwd=project)
    assert (done.returncode, canary.exists()) == (0, True)
    assert "1 task ran without full containment" in done.stdout
