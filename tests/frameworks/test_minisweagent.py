"""Tests of the mini-swe-agent environment: commands, refusals, and an agent from end to end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from corral.integrations.frameworks.minisweagent import CorralEnvironment


@pytest.fixture
def environment(project: Path) -> Iterator[CorralEnvironment]:
    made = get_environment(
        {
            "environment_class": "corral.integrations.frameworks.minisweagent.CorralEnvironment",
            "cwd": str(project),
            "timeout": 20,
        }
    )
    yield made
    made.close()


@pytest.mark.parametrize(
    ("command", "output", "exit_code"),
    [
        ("echo 'hello world'", "hello world\n", 0),
        ("exit 42", "", 42),
        ("echo out; echo err >&2; echo out", "out\nerr\nout\n", 0),
        ("echo 'hello world' | grep -o world", "world\n", 0),
        ("echo $(echo nested)", "nested\n", 0),
        ("cat <<'END'\nx\nEND", "x\n", 0),
        ("kill -TERM $$", "", 143),
        ("# nothing", "", 0),
        ("false", "", 1),
    ],
)
def test_command_returns_output_and_exit_code(
    environment: CorralEnvironment, command: str, output: str, exit_code: int
) -> None:
    assert environment.execute({"command": command}) == {
        "output": output,
        "returncode": exit_code,
        "exception_info": "",
    }


def test_missing_command_is_127_with_the_message_of_bash(environment: CorralEnvironment) -> None:
    seen = environment.execute({"command": "no_such_command_1"})
    assert seen["returncode"] == 127
    assert seen["output"].endswith("line 1: no_such_command_1: command not found\n")


def test_config_variables_reach_commands(project: Path) -> None:
    environment = CorralEnvironment(cwd=str(project), env={"ONE": "1", "TWO": "2"})
    assert environment.execute({"command": "echo $ONE $TWO"})["output"] == "1 2\n"
    environment.close()


def test_secret_of_the_environment_does_not_reach_commands(
    environment: CorralEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2")
    assert environment.execute({"command": "echo [$SOME_API_KEY]"})["output"] == "[]\n"
    assert "SOME_API_KEY" not in environment.get_template_vars()


def test_command_can_start_in_a_project_directory(environment: CorralEnvironment, project: Path) -> None:
    (project / "inner").mkdir()
    assert environment.execute({"command": "pwd"})["output"] == f"{project}\n"
    assert environment.execute({"command": "pwd"}, cwd=str(project / "inner"))["output"] == f"{project}/inner\n"


def test_directory_outside_the_project_is_refused(environment: CorralEnvironment) -> None:
    seen = environment.execute({"command": "pwd"}, cwd="/usr")
    assert (seen["returncode"], seen["extra"]["exception_type"]) == (126, "denied")


def test_timeout_keeps_the_output(project: Path) -> None:
    environment = CorralEnvironment(cwd=str(project), timeout=1)
    seen = environment.execute({"command": "echo before; sleep 60"})
    assert (seen["output"], seen["returncode"], seen["extra"]["exception_type"]) == ("before\n", -1, "timeout")
    environment.close()


def test_refusal_is_an_observation_with_the_reason(environment: CorralEnvironment) -> None:
    seen = environment.execute({"command": "sudo true"})
    assert (seen["output"], seen["returncode"], seen["extra"]["exception_type"]) == ("", 126, "denied")
    assert "`sudo`" in seen["exception_info"]


def test_command_writes_to_the_project(environment: CorralEnvironment, project: Path) -> None:
    environment.execute({"command": "echo content > made.txt"})
    assert (project / "made.txt").read_text() == "content\n"


def test_final_command_submits(environment: CorralEnvironment) -> None:
    with pytest.raises(Submitted) as caught:
        environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo done"})
    assert caught.value.messages[0]["extra"] == {"exit_status": "Submitted", "submission": "done\n"}


def test_failed_command_does_not_submit(environment: CorralEnvironment) -> None:
    assert environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; false"})["returncode"] == 1


def test_agent_continues_after_a_refusal_and_submits(environment: CorralEnvironment, project: Path) -> None:
    (project / "bug.py").write_text("print(1)\n")
    commands = [
        "sudo rm bug.py",
        "sed -i s/1/2/ bug.py && python3 bug.py",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat bug.py",
    ]
    model = DeterministicModel(outputs=[make_output("…", [{"command": c}], cost=0.0) for c in commands])
    agent = DefaultAgent(model, environment, system_template="s", instance_template="{{task}} on {{system}}")
    info = agent.run("fix it")
    assert (info["exit_status"], info["submission"]) == ("Submitted", "print(2)\n")
    shown = [str(message["content"]) for message in agent.messages]
    assert any("`sudo`" in text for text in shown)
    assert (
        agent.serialize()["info"]["config"]["environment_type"]
        == "corral.integrations.frameworks.minisweagent.CorralEnvironment"
    )
