"""Runs in an event loop: concurrent, cancellable and without threads."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from observe import DEADLINE_SECONDS, alive, children, descriptors, eventually, unique_seconds, with_enough_time

from corral import Containment, ContainmentError, Handle, Output, Sandbox, SandboxConfig, SandboxResult
from corral.model.call import Call, Verdict
from corral.runtime.pool import Pool
from corral.runtime.processes import WardenClient


def test_arun_returns_the_same_as_run(open_box: Sandbox) -> None:
    text = "echo out; echo err >&2; exit 3"
    awaited = asyncio.run(open_box.arun(text, shell=True, env={"A": "1"}, stdin=b"x", timeout_seconds=20))
    ran = open_box.run(text, shell=True, env={"A": "1"}, stdin=b"x", timeout_seconds=20)
    own = {name: getattr(ran, name) for name in ("id", "started_at", "duration_ms", "usage")}
    assert awaited.replace(**own) == ran


def test_refused_call_is_a_result_at_once(box: Sandbox) -> None:
    assert asyncio.run(box.arun(["rm", "x"])).denied


@pytest.mark.parametrize(
    ("answer", "runs"), [(True, True), (False, False), (1, False), (None, False), (RuntimeError("nobody"), False)]
)
def test_on_ask_may_be_a_coroutine(project: Path, answer: object, runs: bool) -> None:
    ticks: list[int] = []

    async def thinks(call: Call, verdict: Verdict) -> bool:
        await asyncio.sleep(0)
        ticks.append(1)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    async def both() -> list[SandboxResult]:
        config = SandboxConfig(str(project), profile="workspace", containment=Containment(scratch="sandbox"))
        with Sandbox(config, on_ask=thinks) as box:
            started = await box.astart(["git", "reset", "--hard"])
            return [await box.arun(["git", "reset", "--hard"]), await started]

    results = asyncio.run(both())
    assert [result.denied for result in results] == [not runs] * 2
    assert len(ticks) == 2


def test_cancelling_during_on_ask_runs_nothing(project: Path) -> None:
    async def never(call: Call, verdict: Verdict) -> bool:
        await asyncio.Event().wait()
        return True

    async def cancelled() -> None:
        with Sandbox(SandboxConfig(str(project), profile="workspace"), on_ask=never) as box:
            run = asyncio.ensure_future(box.arun(["git", "reset", "--hard"]))
            await asyncio.sleep(0)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

    asyncio.run(cancelled())


def test_hundred_concurrent_aruns_in_one_thread(open_box: Sandbox) -> None:
    async def crowd() -> list[bytes]:
        runs = (open_box.arun(f"sleep 0.3; echo {n}", shell=True) for n in range(100))
        results = await asyncio.gather(*runs)
        assert set(threading.enumerate()) <= before
        return [result.stdout for result in results]

    before = set(threading.enumerate())
    assert asyncio.run(crowd()) == [f"{n}\n".encode() for n in range(100)]


def test_event_loop_is_not_blocked_by_a_command(open_box: Sandbox, project: Path) -> None:
    async def both() -> SandboxResult:
        # The command ends only if the loop runs other code meanwhile.
        run = asyncio.ensure_future(open_box.arun("until [ -e go ]; do sleep 0.01; done; echo went", shell=True))
        for _ in range(3):
            await asyncio.sleep(0.01)
        assert not run.done()
        (project / "go").touch()
        return await run

    assert asyncio.run(both()).stdout == b"went\n"


def test_cancelling_kills_the_process_tree(open_box: Sandbox) -> None:
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


def test_asyncio_timeout_kills_the_process_tree(open_box: Sandbox) -> None:
    seconds = unique_seconds()

    async def late() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(open_box.arun(["sleep", seconds]), 0.2)

    asyncio.run(late())
    assert alive(seconds) == []


def test_timeout_and_silence_limits_hold_in_a_loop(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    result = with_enough_time(
        lambda limit: asyncio.run(box.arun("echo kept; sleep 100", shell=True, timeout_seconds=limit)),
        lambda ended: ended.stdout,
    )
    assert (result.exit_code, result.stdout, result.timed_out) == (-101, b"kept\n", True)
    result = asyncio.run(open_sandbox(output=Output(silence_seconds=0.2)).arun(["sleep", "100"]))
    assert (result.exit_code, [violation.kind for violation in result.violations]) == (-101, ["silence"])


def test_long_output_is_bounded_in_a_loop(open_box: Sandbox) -> None:
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


def test_loop_writes_more_input_than_a_pipe_holds(open_box: Sandbox) -> None:
    async def feed() -> int:
        started = open_box.start(["cat"], open_stdin=True)
        started.write_stdin(b"x" * 3_000_000)
        started.close_stdin()
        return (await started).stdout_bytes

    assert asyncio.run(feed()) == 3_000_000


def test_cancelled_await_leaves_the_command_running(open_box: Sandbox) -> None:
    seconds = unique_seconds()

    async def impatient() -> None:
        started = open_box.start(["sleep", seconds])
        eventually(lambda: alive(seconds))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(started, 0.1)
        assert started.poll() is None
        assert len(alive(seconds)) == 1
        started.kill()
        assert (await started).exit_code == 137

    asyncio.run(impatient())
    eventually(lambda: not alive(seconds))


def test_every_iteration_and_await_gets_all_output(open_box: Sandbox) -> None:
    async def crowd() -> None:
        started = await open_box.astart("for n in 1 2 3 4 5 6; do echo $n; sleep 0.02; done", shell=True)

        async def told(chunks: AsyncIterator[tuple[str, bytes]]) -> bytes:
            return b"".join([data async for _, data in chunks])

        first, second = aiter(started), aiter(started)
        seen = await asyncio.wait_for(
            asyncio.gather(told(first), started, told(second), started, started), DEADLINE_SECONDS
        )
        assert seen == [b"1\n2\n3\n4\n5\n6\n", started.result, b"1\n2\n3\n4\n5\n6\n", *[started.result] * 2]

    before = descriptors()
    open_box.run(["true"])
    grown = len(descriptors()) - len(before)
    asyncio.run(crowd())
    assert len(descriptors()) == len(before) + grown


def test_one_cancelled_waiter_does_not_stop_the_others(open_box: Sandbox) -> None:
    async def crowd() -> bytes:
        started = await open_box.astart("read; echo done", shell=True, open_stdin=True)
        patient = asyncio.ensure_future(_of(started))
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(started, 0.02)
        started.write_stdin(b"\n")
        return (await asyncio.wait_for(patient, DEADLINE_SECONDS)).stdout

    async def _of(started: Handle) -> SandboxResult:
        return await started

    assert asyncio.run(crowd()) == b"done\n"


def test_thread_and_loop_wait_for_the_same_command(open_box: Sandbox) -> None:
    async def both() -> None:
        started = await open_box.astart("for n in 1 2 3 4 5 6; do echo $n; sleep 0.02; done", shell=True)
        chunks = aiter(started)
        in_thread = asyncio.get_running_loop().run_in_executor(None, started.wait)
        seen = b"".join([data async for _, data in chunks])
        assert seen == b"1\n2\n3\n4\n5\n6\n"
        assert await asyncio.wait_for(in_thread, DEADLINE_SECONDS) is await started

    asyncio.run(both())


def test_async_with_kills_a_running_command(open_box: Sandbox) -> None:
    seconds = unique_seconds()

    async def leave() -> None:
        async with await open_box.astart(["sleep", seconds]) as started:
            while not alive(seconds):
                await asyncio.sleep(0.01)
        assert (await started).exit_code == 137

    asyncio.run(leave())
    assert alive(seconds) == []


def test_on_output_is_called_in_a_loop(open_box: Sandbox) -> None:
    heard: list[tuple[str, bytes]] = []
    result = asyncio.run(open_box.arun(["echo", "x"], on_output=lambda *chunk: heard.append(chunk)))
    assert (result.exit_code, heard) == (0, [("stdout", b"x\n")])


def test_loop_reads_and_writes_a_terminal(open_box: Sandbox) -> None:
    async def talk() -> bytes:
        started = await open_box.astart(["cat"], pty=True)
        started.write_stdin(b"x" * 100 + b"\n")
        async for _, data in started:
            if b"\n" in data:
                started.close_stdin()
        return (await started).stdout

    assert asyncio.run(talk()).endswith(b"x" * 100 + b"\r\n")


def test_event_loop_is_not_blocked_by_starting_a_keeper(open_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    ticked = threading.Event()
    make = Pool._make

    def make_when_the_loop_has_run(pool: Pool) -> WardenClient:
        # Set from another thread: the loop's own thread would be blocked.
        assert ticked.wait(DEADLINE_SECONDS)
        return make(pool)

    monkeypatch.setattr(Pool, "_make", make_when_the_loop_has_run)

    async def crowd() -> list[bytes]:
        runs = [asyncio.ensure_future(open_box.arun(f"sleep 0.1; echo {n}", shell=True)) for n in range(20)]
        for _ in range(3):
            await asyncio.sleep(0)
        ticked.set()
        return [(await run).stdout for run in runs]

    assert asyncio.run(crowd()) == [f"{n}\n".encode() for n in range(20)]


def test_cancelling_while_a_warden_starts_leaks_nothing(open_box: Sandbox) -> None:
    async def hurry() -> None:
        runs = [asyncio.ensure_future(open_box.arun(["true"])) for _ in range(5)]
        await asyncio.sleep(0)
        for run in runs[:4]:
            run.cancel()
        assert (await runs[4]).ok

    asyncio.run(hurry())
    eventually(lambda: open_box._pool._makers == 0)
    assert open_box.run(["echo", "next"]).stdout == b"next\n"
    (keeper,) = children(os.getpid())
    idle = {warden.pid for warden in open_box._pool._idle}
    assert set(children(keeper)) == idle


def test_closed_sandbox_raises_in_a_loop(open_box: Sandbox) -> None:
    open_box.close()
    with pytest.raises(ContainmentError, match="closed"):
        asyncio.run(open_box.arun(["true"]))
