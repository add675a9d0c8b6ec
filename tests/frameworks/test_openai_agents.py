"""Tests of the OpenAI Agents executor. They call it as the SDK does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import ShellActionRequest, ShellCallData, ShellCommandRequest, ShellResult, ShellTool

from corral.integrations.frameworks.openai_agents import CorralShell


@pytest.fixture
def shell(project: Path) -> Iterator[CorralShell]:
    made = CorralShell(project)
    yield made
    made.close()


async def call(shell: CorralShell, *commands: str, timeout_ms: int | None = None, call_id: str = "1") -> ShellResult:
    action = ShellActionRequest(commands=list(commands), timeout_ms=timeout_ms, max_output_length=1000)
    tool = ShellTool(executor=shell, needs_approval=shell.needs_approval)
    return await tool.executor(ShellCommandRequest(ctx_wrapper=None, data=ShellCallData(call_id, action)))


async def test_commands_run_in_order(shell: CorralShell) -> None:
    result = await call(shell, "echo one > f", "cat f; echo two >&2")
    assert [(o.stdout, o.stderr, o.exit_code, o.command) for o in result.output] == [
        ("", "", 0, "echo one > f"),
        ("one\n", "two\n", 0, "cat f; echo two >&2"),
    ]
    assert result.max_output_length == 1000


async def test_commands_after_a_failure_do_not_run(shell: CorralShell, project: Path) -> None:
    result = await call(shell, "false", "touch made")
    assert [o.exit_code for o in result.output] == [1]
    assert not (project / "made").exists()


async def test_refusal_is_126_with_the_reason(shell: CorralShell) -> None:
    (output,) = (await call(shell, "sudo true", "true")).output
    assert (output.stdout, output.exit_code) == ("", 126)
    assert "`sudo`" in output.stderr


async def test_timeout_has_its_own_outcome(shell: CorralShell) -> None:
    (output,) = (await call(shell, "echo before; sleep 60", timeout_ms=1000)).output
    assert (output.stdout, output.status, output.exit_code) == ("before\n", "timeout", None)


async def test_approved_command_runs_once_in_that_call_only(shell: CorralShell, project: Path) -> None:
    await call(shell, "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x")
    asks = "git reset -q --hard"
    assert not await shell.needs_approval(None, ShellActionRequest(commands=["ls"]), "1")
    assert [o.exit_code for o in (await call(shell, asks)).output] == [126]
    assert await shell.needs_approval(None, ShellActionRequest(commands=[asks]), "2")
    assert [o.exit_code for o in (await call(shell, asks, call_id="3")).output] == [126]
    assert [o.exit_code for o in (await call(shell, asks, call_id="2")).output] == [0]
    assert [o.exit_code for o in (await call(shell, asks, call_id="2")).output] == [126]
