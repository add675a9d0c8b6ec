"""Tests of the SWE-ReX runtime: sessions, commands, files, refusals and containment."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionNotInitializedError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from corral.integrations.frameworks.swerex import CorralDeployment, CorralRuntime

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from observe import alive, unique_seconds


@pytest.fixture
async def runtime(project: Path) -> AsyncIterator[CorralRuntime]:
    made = CorralRuntime(project)
    await made.create_session(CreateBashSessionRequest())
    yield made
    await made.close()


async def observe(runtime: CorralRuntime, command: str, **given: object) -> tuple[str, int | None]:
    seen = await runtime.run_in_session(BashAction(command=command, **{"timeout": 20, "check": "silent"} | given))
    return seen.output, seen.exit_code


@pytest.mark.parametrize(
    ("command", "output", "exit_code"),
    [
        ("echo hello", "hello\n", 0),
        ("printf '\n\nx'", "\n\nx", 0),
        ("false && true", "", 1),
        ("", "", 0),
        ("# a comment", "", 0),
        ("cat <<END\na\nb\nEND", "a\nb\n", 0),
        ("for i in 1 2;\n do echo $i;\n done", "1\n2\n", 0),
        ("echo one\n\necho two >&2", "one\ntwo\n", 0),
        ("echo " + "x" * 6000, "x" * 6000 + "\n", 0),
    ],
    ids=["plain", "newlines", "status", "empty", "comment", "here-document", "loop", "both streams", "long line"],
)
async def test_session_returns_output_and_exit_code(
    runtime: CorralRuntime, command: str, output: str, exit_code: int
) -> None:
    assert await observe(runtime, command) == (output, exit_code)


@pytest.mark.parametrize("merged", [False, True])
async def test_cancelling_the_task_kills_the_command(runtime: CorralRuntime, merged: bool) -> None:
    seconds = unique_seconds()
    command = Command(command=f"sleep {seconds}", shell=True, merge_output_streams=merged)
    task = asyncio.create_task(runtime.execute(command))
    while not alive(seconds):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(seconds) == []


async def test_sessions_do_not_share_state(runtime: CorralRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest(session="other"))
    await observe(runtime, "x=1; mkdir inner; cd inner")
    assert await observe(runtime, "echo $x; basename $PWD") == ("1\ninner\n", 0)
    assert await observe(runtime, "echo [$x]", session="other") == ("[]\n", 0)


async def test_refused_command_does_not_reach_the_session(runtime: CorralRuntime) -> None:
    output, exit_code = await observe(runtime, "sudo true")
    assert exit_code == 126
    assert "`sudo`" in output
    with pytest.raises(NonZeroExitCodeError, match="`sudo`"):
        await observe(runtime, "sudo true", check="raise")
    assert await observe(runtime, "echo on") == ("on\n", 0)


async def test_session_is_contained(runtime: CorralRuntime, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    output, exit_code = await observe(runtime, f"d={tmp_path}; cat $d/out*e")
    assert ("secret" in output, exit_code) == (False, 1)


async def test_session_can_be_interrupted_after_a_timeout(runtime: CorralRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await observe(runtime, "sleep 60", timeout=0.5)
    await runtime.run_in_session(BashInterruptAction(timeout=5))
    assert await observe(runtime, "echo on") == ("on\n", 0)


async def test_interactive_program_reads_input(runtime: CorralRuntime) -> None:
    asks = {"is_interactive_command": True, "expect": [">>> "]}
    assert (await observe(runtime, "sudo python3", **asks))[1] == 126
    await observe(runtime, "python3 -q", **asks)
    assert (await observe(runtime, "print(6 * 7)", **asks))[0] == "42"
    await observe(runtime, "quit()", is_interactive_quit=True)
    assert await observe(runtime, "echo on") == ("on\n", 0)


async def test_syntax_error_has_the_message_of_bash(runtime: CorralRuntime) -> None:
    with pytest.raises(BashIncorrectSyntaxError) as caught:
        await observe(runtime, "(a")
    assert "syntax error" in caught.value.extra_info["bash_stderr"]


async def test_exited_session_raises(runtime: CorralRuntime) -> None:
    with pytest.raises(SessionNotInitializedError):
        await observe(runtime, "exit 3")
    with pytest.raises(SessionNotInitializedError):
        await observe(runtime, "echo on")


async def test_session_names_are_unique(runtime: CorralRuntime) -> None:
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())
    await runtime.close_session(CloseBashSessionRequest())
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest())


async def test_commands_run_outside_sessions(runtime: CorralRuntime) -> None:
    done = await runtime.execute(Command(command="echo out; echo err >&2; exit 3", shell=True))
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    merged = await runtime.execute(Command(command="echo out; echo err >&2", shell=True, merge_output_streams=True))
    assert (merged.stdout, merged.stderr) == ("out\nerr\n", "")
    assert (await runtime.execute(Command(command=["no-such-command"]))).exit_code == 127
    refused = await runtime.execute(Command(command=["sudo", "true"]))
    assert (refused.exit_code, "`sudo`" in refused.stderr) == (126, True)
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "60"], timeout=0.5))
    with pytest.raises(NonZeroExitCodeError):
        await runtime.execute(Command(command=["false"], check=True))


async def test_files_are_read_written_and_uploaded(runtime: CorralRuntime, project: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_text("content")
    await runtime.upload(UploadRequest(source_path=str(source), target_path=str(project / "target")))
    assert (await runtime.read_file(ReadFileRequest(path="target/deep/file"))).content == "content"
    await runtime.write_file(WriteFileRequest(path="new/file", content="é"))
    assert (project / "new" / "file").read_text() == "é"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="absent"))


async def test_deployment_starts_and_stops_its_runtime(project: Path) -> None:
    deployment = CorralDeployment(project)
    with pytest.raises(DeploymentNotStartedError):
        deployment.runtime  # noqa: B018
    await deployment.start()
    assert await deployment.is_alive()
    await deployment.stop()
    assert not await deployment.is_alive()
