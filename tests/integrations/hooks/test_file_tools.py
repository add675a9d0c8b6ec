"""A host's own file tools cannot write what commands cannot write: the table of files that run later, and parts of repositories."""

import json
from pathlib import Path

import pytest
from hosting import Owner
from names_that_run_later import DIRECTORIES, examples
from sampling import sampled

from corral.integrations.hooks.file_tools import judge_files
from corral.integrations.hooks.protocol import WRITE, ToolCall
from corral.policy.loader import load

ORDINARY = ["a.py", "package.json", "CLAUDE.md", ".vscode/extensions.json", ".config/app.toml", "objects/x", "config"]


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Owner:
    made = Owner(tmp_path)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made


def decisions(owner: Owner, paths: list[str], cwd: Path | None = None) -> dict[str, str]:
    """Return the answer to a write of each path, in the process of the test."""
    config = load(str(owner.root), owner.environ).config
    calls = {path: ToolCall(WRITE, str(cwd or owner.root), str(owner.root), paths=(path,)) for path in paths}
    return {path: judge_files(call, config, owner.environ).decision for path, call in calls.items()}


@pytest.mark.parametrize("directory", sampled(DIRECTORIES, every=4))
def test_every_file_that_runs_later_is_refused(owner: Owner, directory: str) -> None:
    paths = examples(directory)
    assert decisions(owner, paths) == dict.fromkeys(paths, "deny")
    spelled = [path.upper() for path in paths]
    assert decisions(owner, spelled) == dict.fromkeys(spelled, "deny")
    assert decisions(owner, ORDINARY) == dict.fromkeys(ORDINARY, "allow")


def test_files_that_run_later_are_refused_in_a_granted_directory(owner: Owner, tmp_path: Path) -> None:
    granted = tmp_path / "granted"
    granted.mkdir()
    owner.policy(f'[containment]\nwrite = ["{granted}"]\n')
    paths = [f"{granted}/{name}" for name in (".envrc", "deep/.vscode/tasks.json", "x/HEAD", ".git/config")]
    assert decisions(owner, paths) == dict.fromkeys(paths, "deny")
    assert decisions(owner, [f"{granted}/a.py"]) == {f"{granted}/a.py": "allow"}


def test_links_to_repositories_are_followed(owner: Owner) -> None:
    (owner.root / "bare" / "objects").mkdir(parents=True)
    (owner.root / "bare" / "refs").mkdir()
    (owner.root / "bare" / "HEAD").write_text("ref: refs/heads/main\n")
    (owner.root / "link").symlink_to("bare")
    (owner.root / "file").symlink_to("bare/config")
    (owner.root / "hooks").symlink_to(".git/hooks")
    (owner.root / "nearly" / "refs").mkdir(parents=True)
    (owner.root / "nearly" / "HEAD").write_text("")
    (owner.root / "other").symlink_to("nearly")
    paths = ["link/config", "link/hooks/update", "file", "hooks/pre-commit", "other/objects/x", "src/../link/config"]
    assert decisions(owner, paths) == dict.fromkeys(paths, "deny")


@pytest.mark.parametrize("host", ["codex", "opencode"])
def test_patch_cannot_write_a_whole_repository(owner: Owner, host: str) -> None:
    def refused(*names: str) -> bool:
        patch = "".join(f"*** Add File: {name}\n+x\n" for name in names)
        patch = f"*** Begin Patch\n{patch}*** End Patch\n"
        given = {"command": patch} if host == "codex" else {"patchText": patch}
        call = {"hook_event_name": "PreToolUse", "turn_id": "1"} if host == "codex" else {}
        whole = call | {"cwd": str(owner.root), "tool_name": "apply_patch", "tool_input": given}
        return owner.hook(host, json.dumps(whole).encode()).returncode == 2

    assert refused("b/head", "b/config", "b/objects/x", "b/refs/x")
    assert refused("b/HEAD")
    assert not refused("b/config", "b/objects/x", "b/refs/x")


def test_unfinished_rebase_is_refused_by_the_real_hook(owner: Owner) -> None:
    for name in (".git/rebase-merge/git-rebase-todo", ".git/sequencer/todo", ".git/rebase-apply/author-script"):
        call = {"hook_event_name": "PreToolUse", "cwd": str(owner.root), "tool_name": "Write"}
        done = owner.hook(
            "claude", json.dumps(call | {"tool_input": {"file_path": name, "content": "exec x"}}).encode()
        )
        assert (done.returncode, b"[path-write-protected]" in done.stderr) == (2, True)
