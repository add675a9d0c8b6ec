"""Tests of the Claude Agent SDK hook. They call it as the SDK does and run the rewritten command in a shell."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions

from corral.integrations.frameworks.claude_sdk import corral_hooks


async def answer(root: Path, tool: str, **given: Any) -> dict[str, Any]:
    options = ClaudeAgentOptions(hooks=corral_hooks(root))
    (matcher,) = options.hooks["PreToolUse"]
    (hook,) = matcher.hooks
    payload = {"hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": given, "cwd": str(root)}
    return await hook(payload | {"session_id": "s", "transcript_path": "/dev/null", "tool_use_id": "1"}, "1", {})


def test_failing_hook_blocks_the_call() -> None:
    (matcher,) = corral_hooks()["PreToolUse"]
    assert (matcher.matcher, matcher.on_failure) == (None, "block")


async def test_allowed_command_runs_contained(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    # The shell builds the name at run time, so the guard cannot know it.
    command = f"echo inside; d={tmp_path}; cat $d/out*e"
    bare = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert "secret" in bare.stdout
    decided = (await answer(project, "Bash", command=command, description="d"))["hookSpecificOutput"]
    assert (decided["permissionDecision"], decided["updatedInput"]["description"]) == ("allow", "d")
    held = subprocess.run(
        ["bash", "-c", decided["updatedInput"]["command"]],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert held.stdout == "inside\n"


async def test_refused_command_is_denied_with_the_reason(project: Path) -> None:
    decided = (await answer(project, "Bash", command="sudo true"))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny"
    assert "`sudo`" in decided["permissionDecisionReason"]


async def test_git_hook_is_not_written_without_asking(project: Path) -> None:
    (project / ".git").mkdir()
    decided = await answer(project, "Write", file_path=str(project / ".git" / "hooks" / "pre-commit"), content="x")
    assert decided["hookSpecificOutput"]["permissionDecision"] in ("ask", "deny")


async def test_other_tools_get_an_empty_answer(project: Path) -> None:
    assert await answer(project, "WebSearch", query="x") == {}


@pytest.mark.parametrize("given", [{}, {"command": 7}], ids=["nothing", "number"])
async def test_invalid_command_is_denied(project: Path, given: dict[str, Any]) -> None:
    decided = (await answer(project, "Bash", **given))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny"


async def test_crash_denies(project: Path) -> None:
    (hook,) = corral_hooks(project)["PreToolUse"][0].hooks
    decided = (await hook({"hook_event_name": 3}, None, {}))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny"


@pytest.mark.parametrize(("mode", "said"), [("default", "ask"), ("bypassPermissions", "deny"), ("", "deny")])
async def test_ask_depends_on_the_permission_mode(project: Path, mode: str, said: str) -> None:
    (hook,) = corral_hooks(project)["PreToolUse"][0].hooks
    payload = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": str(project), "permission_mode": mode}
    decided = await hook(payload | {"tool_input": {"command": "git reset --hard"}}, None, {})
    assert decided["hookSpecificOutput"]["permissionDecision"] == said


async def test_command_that_is_slow_to_parse_is_denied(project: Path) -> None:
    decided = (await answer(project, "Bash", command="shopt -s extglob\n: " + "+(a) " * 18_000))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny"
    assert "[structure-limit]" in decided["permissionDecisionReason"]
