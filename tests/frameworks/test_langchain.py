"""Tests of the LangChain execution policy in LangChain's own shell session and middleware."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HostExecutionPolicy, ShellToolMiddleware
from langchain.agents.middleware.shell_tool import ShellSession
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from corral.integrations.frameworks.langchain import CorralExecutionPolicy


@pytest.fixture
def session(project: Path) -> Iterator[ShellSession]:
    made = ShellSession(project, CorralExecutionPolicy(termination_timeout=2), ("/bin/bash",), {"GIVEN": "value"})
    made.start()
    yield made
    made.stop(20)


def said(session: ShellSession, command: str, timeout: float = 20) -> tuple[str, int | None]:
    result = session.execute(command, timeout=timeout)
    return result.output, result.exit_code


def test_command_returns_output_and_exit_code(session: ShellSession) -> None:
    assert said(session, "echo hello") == ("hello\n", 0)
    assert said(session, "(exit 7)") == ("", 7)
    assert said(session, "echo wrong >&2") == ("[stderr] wrong\n", 0)
    assert said(session, "printf 'caf\\303\\251\\n'") == ("café\n", 0)


def test_session_keeps_its_state(session: ShellSession, project: Path) -> None:
    said(session, "mkdir inner && cd inner && x=1")
    assert said(session, "pwd; echo $x $GIVEN") == (f"{project}/inner\n1 value\n", 0)


def test_refused_command_prints_the_reason_and_session_goes_on(session: ShellSession) -> None:
    output, exit_code = said(session, "sudo true")
    assert exit_code == 126
    assert "`sudo`" in output
    assert said(session, "echo on") == ("on\n", 0)


def test_text_that_imitates_the_marker_is_judged(session: ShellSession) -> None:
    assert said(session, "printf '__LC_SHELL_DONE__'; sudo true")[1] == 126


def test_shell_is_contained(session: ShellSession, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    # The shell builds the name at run time, so the guard cannot know it.
    reads = f"d={tmp_path}; cat $d/out*e; echo"
    bare = ShellSession(tmp_path, HostExecutionPolicy(), ("/bin/bash",), {})
    bare.start()
    assert said(bare, reads) == ("secret\n", 0)
    bare.stop(20)
    assert "secret" not in said(session, reads)[0]


def test_timeout_restarts_the_shell(session: ShellSession) -> None:
    said(session, "x=1")
    assert session.execute("sleep 60", timeout=1).timed_out
    assert said(session, "echo [$x]") == ("[]\n", 0)


def test_exited_shell_is_detected(session: ShellSession) -> None:
    process = session._process
    session.execute("exit 3", timeout=2)
    assert process is not None
    assert process.wait(20) == 3


def test_refused_shell_raises_permission_error(project: Path) -> None:
    with pytest.raises(PermissionError, match="sudo"):
        CorralExecutionPolicy().spawn(workspace=project, env={}, command=["sudo", "bash"])


class ToolCaller(GenericFakeChatModel):
    def bind_tools(self, tools: object, **_: object) -> "ToolCaller":
        return self


def test_agent_runs_commands_in_the_shell(project: Path) -> None:
    calls = ["sudo true", "echo 42 > answer; cat answer"]
    steps = [
        AIMessage("", tool_calls=[{"name": "shell", "args": {"command": c}, "id": str(i)}]) for i, c in enumerate(calls)
    ]
    middleware = ShellToolMiddleware(workspace_root=project, execution_policy=CorralExecutionPolicy())
    agent = create_agent(ToolCaller(messages=iter([*steps, AIMessage("done")])), middleware=[middleware])
    shown = [m.text for m in agent.invoke({"messages": "go"})["messages"] if isinstance(m, ToolMessage)]
    assert "`sudo`" in shown[0]
    assert shown[1].startswith("42")
    assert (project / "answer").read_text() == "42\n"
