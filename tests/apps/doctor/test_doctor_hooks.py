"""corral doctor: a hook that the host never asks is not called well, and nothing that a project brought with it is run."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import alone
import pytest

from corral.apps.doctor.hook_checks import hook_checks
from corral.integrations.hooks.install import apply, plan_install
from corral.integrations.hooks.reachability import disabling_setting
from corral.integrations.hooks.registry import HOSTS, PROJECT, USER, hooks_in, runs_corral, settings_path, start_words

PROGRAM = "/x/corral/integrations/hooks/program.py"
JSON_HOSTS = [name for name in HOSTS if HOSTS[name].entries is not None]


def found(home: Path, work: Path, name: str, **environ: str) -> list[tuple[str, str]]:
    checks = hook_checks(alone.environment(home, **environ), str(work))
    return [(check.status, check.found) for check in checks if check.name == name]


def install(name: str, home: Path, work: Path, level: str = USER) -> None:
    environ = alone.environment(home)
    apply(plan_install(HOSTS[name], level, str(work), environ), environ, str(work))


def place_for(name: str, home: Path) -> Path:
    return Path(settings_path(HOSTS[name], "user", "", alone.environment(home)))


def hostile(name: str, program: Path) -> str:
    """Return a project's file whose hook looks like ours, and is not."""
    host = HOSTS[name]
    words = [str(program), PROGRAM]
    if host.entries is None:
        return f"const COMMAND = {json.dumps(words)}\n"
    return json.dumps({**host.skeleton, "hooks": {event: [entry] for event, entry in host.entries(words).items()}})


@pytest.mark.parametrize("name", list(HOSTS))
def test_hook_from_a_project_is_not_run(name: str, home: Path, work: Path) -> None:
    program, mark = work / "hook.sh", work / "mark"
    program.write_text(f"#!/bin/sh\ntouch {mark}\nexit 2\n")
    program.chmod(0o755)
    file = work / HOSTS[name].project_file
    file.parent.mkdir(parents=True)
    file.write_text(hostile(name, program))
    statuses = [status for status, _ in found(home, work, name) if status != "warn"]
    assert (set(statuses), mark.exists()) == ({"fail"}, False)
    # The host would run it: it is a program like any other.
    hook: dict[str, Any] = {"command": str(program), "args": [PROGRAM]}
    if name in JSON_HOSTS:
        entries = json.loads(file.read_text())["hooks"].values()
        hook = next(hook for entry in next(iter(entries)) for hook in hooks_in(entry) if runs_corral(hook))
    subprocess.run(start_words(hook), check=False, timeout=60)
    assert mark.exists()


def test_linked_hook_in_a_project_is_not_run(home: Path, work: Path, tmp_path: Path) -> None:
    program, mark, elsewhere = work / "hook.sh", work / "mark", tmp_path / "elsewhere.json"
    program.write_text(f"#!/bin/sh\ntouch {mark}\nexit 2\n")
    program.chmod(0o755)
    elsewhere.write_text(hostile("claude", program))
    (work / ".claude").mkdir()
    (work / ".claude" / "settings.local.json").symlink_to(elsewhere)
    assert [status for status, _ in found(home, work, "claude")] == ["fail"]
    assert not mark.exists()


@pytest.mark.parametrize("name", list(HOSTS))
def test_hook_that_corral_installed_in_a_project_is_proven(name: str, home: Path, work: Path) -> None:
    install(name, home, work, PROJECT)
    assert {status for status, _ in found(home, work, name)} <= {"ok", "warn"}
    assert "ok" in {status for status, _ in found(home, work, name)}


def entry_changed(**change: object) -> Callable[[dict[str, Any]], None]:
    return lambda entry: entry.update(change)


def hook_changed(**change: object) -> Callable[[dict[str, Any]], None]:
    return lambda entry: hooks_in(entry)[0].update(change)


UNREACHED: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "another tool": ("claude", entry_changed(matcher="NotebookEdit")),
    "a tool in small letters": ("claude", entry_changed(matcher="bash")),
    "a pattern that matches nothing": ("gemini", entry_changed(matcher="^(run_shell_commands)$")),
    "a pattern that is none": ("codex", entry_changed(matcher="(Bash")),
    "a matcher that is no text": ("claude", entry_changed(matcher=["Bash"])),
    "only some commands": ("claude", hook_changed(**{"if": "Bash(git *)"})),
    "nobody waits for it": ("claude", hook_changed(**{"async": True})),
    "not run but shown to a model": ("claude", hook_changed(type="prompt")),
    "a failure that lets it run": ("claude", hook_changed(onFailure="allow")),
    "no time to answer": ("claude", hook_changed(timeout=1)),
    "milliseconds for seconds": ("gemini", hook_changed(timeout=10)),
    "only commands that look so": ("cursor", hook_changed(matcher="^git ")),
    "open where it fails": ("cursor", hook_changed(failClosed=False)),
    "a shorter time of Copilot": ("copilot", hook_changed(timeoutSec=0.5)),
}


@pytest.mark.parametrize("case", UNREACHED)
def test_unreachable_hook_fails(case: str, home: Path, work: Path) -> None:
    name, change = UNREACHED[case]
    install(name, home, work)
    path = place_for(name, home)
    data = json.loads(path.read_text())
    first = next(iter(data["hooks"].values()))
    change(first[0])
    path.write_text(json.dumps(data))
    assert "fail" in {status for status, _ in found(home, work, name)}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("claude", entry_changed(matcher="*")),
        ("claude", entry_changed(matcher="")),
        ("claude", entry_changed(matcher=".*")),
        ("claude", hook_changed(timeout=60, statusMessage="corral looks")),
        ("gemini", hook_changed(timeout=60000, description="a guard")),
    ],
)
def test_wider_matcher_and_longer_timeout_are_ok(
    name: str, change: Callable[[dict[str, Any]], None], home: Path, work: Path
) -> None:
    install(name, home, work)
    path = place_for(name, home)
    data = json.loads(path.read_text())
    change(next(iter(data["hooks"].values()))[0])
    path.write_text(json.dumps(data))
    assert [status for status, _ in found(home, work, name)] == ["ok"]


def test_matcher_for_commands_only_is_reported(home: Path, work: Path) -> None:
    install("claude", home, work)
    path = place_for("claude", home)
    data = json.loads(path.read_text())
    data["hooks"]["PreToolUse"][0]["matcher"] = "Bash"
    path.write_text(json.dumps(data))
    proof, told = found(home, work, "claude")
    assert (proof[0], told[0]) == ("ok", "warn")
    assert 'its matcher "Bash" leaves out Monitor, PowerShell, Write, Edit' in told[1]


def test_missing_event_fails(home: Path, work: Path) -> None:
    install("cursor", home, work)
    path = place_for("cursor", home)
    data = json.loads(path.read_text())
    del data["hooks"]["beforeShellExecution"]
    path.write_text(json.dumps(data))
    assert ("fail", f"Cursor has no hook at beforeShellExecution: {path}") in found(home, work, "cursor")


def test_changed_plugin_fails(home: Path, work: Path) -> None:
    install("opencode", home, work)
    path = place_for("opencode", home)
    path.write_text(path.read_text().replace("const said = await ask(payload)", "return"))
    assert found(home, work, "opencode") == [("fail", f"the plugin is not what corral writes: {path}")]


OFF: dict[str, tuple[str, str, str]] = {
    "said twice": ("claude", ".claude/settings.json", '{"disableAllHooks": false, "disableAllHooks": true}'),
    "neither yes nor no": ("claude", ".claude/settings.local.json", '{"disableAllHooks": "yes"}'),
    "no JSON": ("claude", ".claude/settings.json", '{"disableAllHooks": true,}'),
    "by its name": ("gemini", ".gemini/settings.json", '{"hooksConfig": {"disabled": ["other", "corral"]}}'),
}


@pytest.mark.parametrize("case", OFF)
def test_setting_that_disables_hooks_is_reported(case: str, home: Path, work: Path) -> None:
    name, file, text = OFF[case]
    install(name, home, work)
    assert [status for status, _ in found(home, work, name)] == ["ok"]
    (work / file).parent.mkdir(parents=True)
    (work / file).write_text(text)
    assert {status for status, _ in found(home, work, name)} == {"fail"}


def test_administrator_settings_are_read(home: Path, work: Path, tmp_path: Path) -> None:
    install("gemini", home, work)
    managed = tmp_path / "system.json"
    managed.write_text('{"hooksConfig": {"enabled": false}}')
    status = found(home, work, "gemini", GEMINI_CLI_SYSTEM_SETTINGS_PATH=str(managed))
    assert status == [("fail", f"hooksConfig.enabled turns hooks off: {managed}")]
    (tmp_path / "managed.d").mkdir()
    (tmp_path / "managed.d" / "10-hooks.json").write_text('{"allowManagedHooksOnly": true}')
    host = HOSTS["claude"].replace(managed=(f"{tmp_path}/managed.json", f"{tmp_path}/managed.d/"))
    off = disabling_setting(host, str(place_for("claude", home)), str(work), alone.environment(home))
    assert off == (f"{tmp_path}/managed.d/10-hooks.json", "allowManagedHooksOnly turns hooks off")


@pytest.mark.parametrize("file", [".claude/settings.json", ".claude/settings.local.json"])
def test_fifo_in_the_project_does_not_block(file: str, home: Path, work: Path) -> None:
    install("claude", home, work)
    (work / ".claude").mkdir()
    os.mkfifo(work / file)
    assert "fail" in {status for status, _ in found(home, work, "claude")}


def test_project_directory_on_path_is_reported(home: Path, work: Path) -> None:
    install("claude", home, work)
    assert found(home, work, "PATH") == []
    (work / "bin").mkdir()
    path = f"{work}/bin:relative::/usr/bin:/bin:{work}-beside/bin"
    told = [said for _, said in found(home, work, "PATH", PATH=path)]
    places = (f"{work}/bin", "relative", "the working directory")
    assert told == [f"{place} is on the PATH, and in the project" for place in places]
