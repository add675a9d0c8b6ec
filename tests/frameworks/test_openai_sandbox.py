"""Tests of the OpenAI Agents sandbox client: as the SDK calls it, and in the SDK's own agent with a scripted model."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError
from agents.testing import ScriptedModel, assistant_message, function_call

from corral.integrations.frameworks.openai_sandbox import CorralSandboxClient, CorralSandboxSession


@pytest.fixture
async def session(project: Path) -> AsyncIterator[Any]:
    client = CorralSandboxClient()
    made = await client.create(manifest=Manifest(root=str(project), entries={"notes.txt": File(content=b"pears\n")}))
    async with made:
        yield made
    await client.delete(made)


async def test_command_runs_contained_in_the_workspace(session: Any, project: Path) -> None:
    done = await session.exec("cat notes.txt; readlink /proc/self/ns/pid; pwd")
    text, inside, place = done.stdout.decode().split()
    assert (text, done.exit_code) == ("pears", 0)
    assert inside != os.readlink("/proc/self/ns/pid")
    assert place == str(project)


async def test_words_are_a_command_without_a_shell(session: Any) -> None:
    done = await session.exec("echo", "$HOME; ls", shell=False)
    assert done.stdout == b"$HOME; ls\n"


async def test_refusal_is_126_with_the_reason(session: Any) -> None:
    done = await session.exec("sudo true")
    assert (done.stdout, done.exit_code) == (b"", 126)
    assert b"`sudo`" in done.stderr


async def test_command_cannot_write_outside(session: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    await session.exec("python3", "-c", f"open({str(tmp_path / 'mine')!r}, 'w')", shell=False)
    assert (tmp_path / "mine").read_text() == "mine"


async def test_timeout_is_the_error_of_the_sdk(session: Any) -> None:
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 60", timeout=1)
    assert (await session.exec("echo again")).stdout == b"again\n"


async def test_variables_are_those_of_the_manifest(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_HOST", "x")
    client = CorralSandboxClient()
    made = await client.create(manifest=Manifest(root=str(project), environment={"value": {"GIVEN": "yes"}}))
    async with made:
        done = await made.exec('echo "$GIVEN:$SECRET_OF_HOST"')
    assert done.stdout == b"yes:\n"


async def test_workspace_that_the_client_made_is_removed(tmp_path: Path) -> None:
    client = CorralSandboxClient()
    made = await client.create(manifest=Manifest())
    async with made:
        assert (await made.exec("touch made")).exit_code == 0
        root = Path(made.state.manifest.root)
        assert (root / "made").exists()
    await client.delete(made)
    assert not root.exists()


async def test_resumed_session_is_contained_too(session: Any) -> None:
    client = CorralSandboxClient()
    again = await client.resume(session.state)
    assert isinstance(again._inner, CorralSandboxSession)
    async with again:
        assert (await again.exec("sudo true")).exit_code == 126


async def test_agent_of_the_sdk_works_in_it(project: Path) -> None:
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "sudo cat notes.txt"}, call_id="1")],
            [function_call("exec_command", {"cmd": "cat notes.txt > copy.txt && cat copy.txt"}, call_id="2")],
            [assistant_message("done")],
        ]
    )
    agent = SandboxAgent(
        name="worker",
        model=model,
        capabilities=[Shell()],
        default_manifest=Manifest(root=str(project), entries={"notes.txt": File(content=b"pears\n")}),
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=CorralSandboxClient()), tracing_disabled=True)
    result = await Runner.run(agent, "copy the notes", run_config=config)
    assert result.final_output == "done"
    outputs = [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
    assert "`sudo`" in outputs[0]
    assert "pears" in outputs[1]
    assert (project / "copy.txt").read_text() == "pears\n"
