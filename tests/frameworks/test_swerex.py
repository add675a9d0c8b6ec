"""The SWE-ReX runtime: sessions, commands and files, and what the guard and the kernel add."""

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


async def said(runtime: CorralRuntime, command: str, **given: object) -> tuple[str, int | None]:
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
async def test_a_session_gives_output_and_exit_code(
    runtime: CorralRuntime, command: str, output: str, exit_code: int
) -> None:
    assert await said(runtime, command) == (output, exit_code)


@pytest.mark.parametrize("merged", [False, True])
async def test_a_command_whose_task_is_cancelled_is_ended(runtime: CorralRuntime, merged: bool) -> None:
    seconds = unique_seconds()
    command = Command(command=f"sleep {seconds}", shell=True, merge_output_streams=merged)
    task = asyncio.create_task(runtime.execute(command))
    while not alive(seconds):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(seconds) == []


async def test_sessions_keep_their_state_to_themselves(runtime: CorralRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest(session="other"))
    await said(runtime, "x=1; mkdir inner; cd inner")
    assert await said(runtime, "echo $x; basename $PWD") == ("1\ninner\n", 0)
    assert await said(runtime, "echo [$x]", session="other") == ("[]\n", 0)


async def test_a_refused_command_does_not_reach_the_session(runtime: CorralRuntime) -> None:
    output, exit_code = await said(runtime, "sudo true")
    assert exit_code == 126
    assert "`sudo` is on the denylist" in output
    with pytest.raises(NonZeroExitCodeError, match="denylist"):
        await said(runtime, "sudo true", check="raise")
    assert await said(runtime, "echo on") == ("on\n", 0)


async def test_a_session_is_contained(runtime: CorralRuntime, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    output, exit_code = await said(runtime, f"d={tmp_path}; cat $d/out*e")
    assert ("secret" in output, exit_code) == (False, 1)


async def test_a_timeout_leaves_the_session_to_be_interrupted(runtime: CorralRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await said(runtime, "sleep 60", timeout=0.5)
    await runtime.run_in_session(BashInterruptAction(timeout=5))
    assert await said(runtime, "echo on") == ("on\n", 0)


async def test_a_program_can_be_talked_to(runtime: CorralRuntime) -> None:
    asks = {"is_interactive_command": True, "expect": [">>> "]}
    assert (await said(runtime, "sudo python3", **asks))[1] == 126
    await said(runtime, "python3 -q", **asks)
    assert (await said(runtime, "print(6 * 7)", **asks))[0] == "42"
    await said(runtime, "quit()", is_interactive_quit=True)
    assert await said(runtime, "echo on") == ("on\n", 0)


async def test_wrong_syntax_is_an_error_with_bashs_words(runtime: CorralRuntime) -> None:
    with pytest.raises(BashIncorrectSyntaxError) as caught:
        await said(runtime, "(a")
    assert "syntax error" in caught.value.extra_info["bash_stderr"]


async def test_a_session_that_ended_says_so(runtime: CorralRuntime) -> None:
    with pytest.raises(SessionNotInitializedError):
        await said(runtime, "exit 3")
    with pytest.raises(SessionNotInitializedError):
        await said(runtime, "echo on")


async def test_sessions_are_known_by_name(runtime: CorralRuntime) -> None:
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())
    await runtime.close_session(CloseBashSessionRequest())
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest())


async def test_commands_outside_sessions(runtime: CorralRuntime) -> None:
    done = await runtime.execute(Command(command="echo out; echo err >&2; exit 3", shell=True))
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    merged = await runtime.execute(Command(command="echo out; echo err >&2", shell=True, merge_output_streams=True))
    assert (merged.stdout, merged.stderr) == ("out\nerr\n", "")
    assert (await runtime.execute(Command(command=["no-such-command"]))).exit_code == 127
    refused = await runtime.execute(Command(command=["sudo", "true"]))
    assert (refused.exit_code, "denylist" in refused.stderr) == (126, True)
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "60"], timeout=0.5))
    with pytest.raises(NonZeroExitCodeError):
        await runtime.execute(Command(command=["false"], check=True))


async def test_files_and_uploads(runtime: CorralRuntime, project: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_text("content")
    await runtime.upload(UploadRequest(source_path=str(source), target_path=str(project / "target")))
    assert (await runtime.read_file(ReadFileRequest(path="target/deep/file"))).content == "content"
    await runtime.write_file(WriteFileRequest(path="new/file", content="é"))
    assert (project / "new" / "file").read_text() == "é"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="absent"))


async def test_a_deployment_starts_and_stops_its_runtime(project: Path) -> None:
    deployment = CorralDeployment(project)
    with pytest.raises(DeploymentNotStartedError):
        deployment.runtime  # noqa: B018
    await deployment.start()
    assert await deployment.is_alive()
    await deployment.stop()
    assert not await deployment.is_alive()
