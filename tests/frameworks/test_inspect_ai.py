"""Runs inspect's conformance tests and an eval against the inspect_ai provider, and tests its refusals."""

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import inspect_ai
import pytest
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import OutputLimitExceededError, SandboxUserUnsupportedError
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from corral.integrations.frameworks.inspect_ai import CorralSandboxEnvironment
from corral.model.errors import PolicyError

CANNOT_PASS = {"test_exec_as_user": "it adds a user to the machine; corral runs every command as the current user"}


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[CorralSandboxEnvironment]:
    if request.node.originalname in CANNOT_PASS:
        request.node.add_marker(pytest.mark.xfail(reason=CANNOT_PASS[request.node.originalname]))
    environments = await CorralSandboxEnvironment.sample_init("test", None, {})
    yield environments["default"].as_type(CorralSandboxEnvironment)
    await CorralSandboxEnvironment.sample_cleanup("test", None, environments, False)


def test_inspect_finds_the_provider_by_name() -> None:
    assert registry_find_sandboxenv("corral") is CorralSandboxEnvironment


async def test_refusal_is_a_permission_error_with_the_reason(sandbox_env: CorralSandboxEnvironment) -> None:
    with pytest.raises(PermissionError, match="`sudo`"):
        await sandbox_env.exec(["sudo", "true"])


async def test_other_user_is_not_supported(sandbox_env: CorralSandboxEnvironment) -> None:
    with pytest.raises(SandboxUserUnsupportedError):
        await sandbox_env.exec(["true"], user="daemon")


async def test_output_above_the_limit_raises_with_its_beginning(sandbox_env: CorralSandboxEnvironment) -> None:
    with override_max_exec_output_size(1024), pytest.raises(OutputLimitExceededError) as caught:
        await sandbox_env.exec(["seq", "10000"])
    assert caught.value.truncated_output.startswith("1\n2\n")
    assert len(caught.value.truncated_output) == 1024


async def test_missing_command_is_a_result(sandbox_env: CorralSandboxEnvironment) -> None:
    result = await sandbox_env.exec(["no-such-command"])
    assert (result.success, result.returncode) == (False, 127)
    assert "not found" in result.stderr


async def test_unreadable_file_is_not_read(sandbox_env: CorralSandboxEnvironment) -> None:
    with pytest.raises(PermissionError):
        await sandbox_env.read_file("/etc/shadow")


async def test_project_is_removed_after_the_sample() -> None:
    environments = await CorralSandboxEnvironment.sample_init("test", None, {})
    folder = environments["default"].as_type(CorralSandboxEnvironment).directory
    await CorralSandboxEnvironment.sample_cleanup("test", None, environments, False)
    assert not os.path.exists(folder)


async def test_invalid_policy_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corral").mkdir()
    (tmp_path / "corral" / "policy.toml").write_text("profile = 'no such'\n")
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    with pytest.raises(PolicyError, match="no such"):
        await CorralSandboxEnvironment.sample_init("test", None, {})
    assert list(room.iterdir()) == []


def test_eval_runs_its_tools_in_corral(tmp_path: object) -> None:
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "sudo cat data.txt"}),
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "cat data.txt made-by-setup"}),
        ModelOutput.from_content("mockllm/model", "the answer is 42"),
    ]
    for output in outputs:
        output.usage = ModelUsage()  # otherwise inspect downloads a tokenizer
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = inspect_ai.Task(
        dataset=[
            Sample(
                "what?", target="42", files={"data.txt": "forty-two"}, setup="#!/bin/sh\necho setup > made-by-setup\n"
            )
        ],
        solver=[use_tools([bash(timeout=20)]), generate()],
        scorer=includes(),
        sandbox="corral",
    )
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    refused, shown = [m for m in log.samples[0].messages if m.role == "tool"]
    assert (refused.error.type, "`sudo`" in refused.error.message) == ("permission", True)
    assert shown.text == "forty-twosetup\n"
    assert log.results.scores[0].metrics["accuracy"].value == 1
