"""The same runs in an event loop: concurrent, cancellable, without threads."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from corral import Output, Sandbox
from observe import alive, descriptors, eventually, unique_seconds


def test_arun_gives_what_run_gives(open_box: Sandbox) -> None:
    text = "echo out; echo err >&2; exit 3"
    awaited = asyncio.run(open_box.arun(text, shell=True, env={"A": "1"}, stdin=b"x", timeout_seconds=20))
    ran = open_box.run(text, shell=True, env={"A": "1"}, stdin=b"x", timeout_seconds=20)
    own = {name: getattr(ran, name) for name in ("id", "started_at", "duration_ms", "usage")}
    assert awaited.replace(**own) == ran


def test_a_refused_call_is_a_result_at_once(box: Sandbox) -> None:
    assert asyncio.run(box.arun(["rm", "x"])).denied


def test_a_hundred_runs_at_once_in_one_thread(open_box: Sandbox) -> None:
    async def crowd() -> list[bytes]:
        runs = (open_box.arun(f"sleep 0.3; echo {n}", shell=True) for n in range(100))
        results = await asyncio.gather(*runs)
        assert threading.active_count() == 1
        return [result.stdout for result in results]

    before = threading.active_count()
    assert before == 1
    assert asyncio.run(crowd()) == [f"{n}\n".encode() for n in range(100)]


def test_the_loop_runs_on_while_a_command_runs(open_box: Sandbox) -> None:
    async def both() -> int:
        ticks = 0
        run = asyncio.ensure_future(open_box.arun(["sleep", "0.3"]))
        while not run.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await run
        return ticks

    assert asyncio.run(both()) > 3


def test_cancelling_ends_the_tree_and_is_not_swallowed(open_box: Sandbox) -> None:
    seconds = unique_seconds()

    async def cancelled() -> None:
        run = asyncio.ensure_future(open_box.arun(f"sleep {seconds} & sleep {seconds} & wait", shell=True))
        while len(alive(seconds)) < 2:
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert alive(seconds) == []

    open_box.run(["true"])
    before = descriptors()
    asyncio.run(cancelled())
    assert descriptors() == before
    assert open_box.run(["echo", "next"]).stdout == b"next\n"


def test_a_timeout_of_the_loop_ends_the_tree(open_box: Sandbox) -> None:
    seconds = unique_seconds()

    async def late() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(open_box.arun(["sleep", seconds]), 0.2)

    asyncio.run(late())
    assert alive(seconds) == []


def test_the_commands_own_timeout_and_silence_hold(open_sandbox: Callable[..., Sandbox]) -> None:
    result = asyncio.run(open_sandbox().arun("echo kept; sleep 100", shell=True, timeout_seconds=0.2))
    assert (result.exit_code, result.stdout, result.timed_out) == (-101, b"kept\n", True)
    result = asyncio.run(open_sandbox(output=Output(silence_seconds=0.2)).arun(["sleep", "100"]))
    assert (result.exit_code, [violation.kind for violation in result.violations]) == (-101, ["silence"])


def test_a_flood_is_bounded_here_too(open_box: Sandbox) -> None:
    result = asyncio.run(open_box.arun(["head", "-c", "50000000", "/dev/zero"]))
    assert (result.exit_code, result.stdout_bytes, result.truncated) == (0, 50_000_000, True)


def test_output_is_read_while_it_is_printed(open_box: Sandbox, project: Path) -> None:
    (project / "steps.py").write_text(
        "import sys\nprint('one', flush=True)\nsys.stdin.readline()\nprint('two', file=sys.stderr, flush=True)\n"
    )

    async def stream() -> list[tuple[str, bytes]]:
        seen = []
        started = open_box.start(["python3", "steps.py"], open_stdin=True)
        async for chunk in started:
            seen.append(chunk)
            if chunk == ("stdout", b"one\n"):
                started.write_stdin(b"go\n")
        assert (await started).exit_code == 0
        return seen

    assert asyncio.run(stream()) == [("stdout", b"one\n"), ("stderr", b"two\n")]


def test_more_input_than_a_pipe_holds_is_written_in_the_loop(open_box: Sandbox) -> None:
    async def feed() -> int:
        started = open_box.start(["cat"], open_stdin=True)
        started.write_stdin(b"x" * 3_000_000)
        started.close_stdin()
        return (await started).stdout_bytes

    assert asyncio.run(feed()) == 3_000_000


def test_awaiting_a_handle_may_be_given_up_while_the_command_runs_on(open_box: Sandbox) -> None:
    seconds = unique_seconds()

    async def impatient() -> None:
        started = open_box.start(["sleep", seconds])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(started, 0.1)
        assert started.poll() is None
        assert len(alive(seconds)) == 1
        started.kill()
        assert (await started).exit_code == 137

    asyncio.run(impatient())
    eventually(lambda: not alive(seconds))
