"""The hook for the Claude Agent SDK, called as the SDK calls it; what it rewrites is run by a shell."""

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


def test_a_hook_that_fails_blocks() -> None:
    (matcher,) = corral_hooks()["PreToolUse"]
    assert (matcher.matcher, matcher.on_failure) == (None, "block")


async def test_an_allowed_command_runs_contained(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    # Nothing that the guard could know: the name is put together as it runs.
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


async def test_a_refused_command_is_denied_with_its_reason(project: Path) -> None:
    decided = (await answer(project, "Bash", command="sudo true"))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny"
    assert "`sudo` is on the denylist" in decided["permissionDecisionReason"]


async def test_a_file_that_runs_later_is_not_written_unasked(project: Path) -> None:
    (project / ".git").mkdir()
    decided = await answer(project, "Write", file_path=str(project / ".git" / "hooks" / "pre-commit"), content="x")
    assert decided["hookSpecificOutput"]["permissionDecision"] in ("ask", "deny")


async def test_tools_that_corral_does_not_judge_are_left_alone(project: Path) -> None:
    assert await answer(project, "WebSearch", query="x") == {}


@pytest.mark.parametrize("given", [{}, {"command": 7}], ids=["nothing", "a number"])
async def test_what_cannot_be_read_is_denied(project: Path, given: dict[str, Any]) -> None:
    decided = (await answer(project, "Bash", **given))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny"


async def test_a_crash_is_a_refusal(project: Path) -> None:
    (hook,) = corral_hooks(project)["PreToolUse"][0].hooks
    decided = (await hook({"hook_event_name": 3}, None, {}))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny"


@pytest.mark.parametrize(("mode", "said"), [("default", "ask"), ("bypassPermissions", "deny"), ("", "deny")])
async def test_a_question_is_asked_only_where_a_person_answers(project: Path, mode: str, said: str) -> None:
    (hook,) = corral_hooks(project)["PreToolUse"][0].hooks
    payload = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": str(project), "permission_mode": mode}
    decided = await hook(payload | {"tool_input": {"command": "git reset --hard"}}, None, {})
    assert decided["hookSpecificOutput"]["permissionDecision"] == said


async def test_a_text_that_the_parser_is_slow_on_is_denied(project: Path) -> None:
    decided = (await answer(project, "Bash", command="shopt -s extglob\n: " + "+(a) " * 18_000))["hookSpecificOutput"]
    assert decided["permissionDecision"] == "deny"
    assert "[structure-limit]" in decided["permissionDecisionReason"]
