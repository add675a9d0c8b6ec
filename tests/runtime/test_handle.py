"""Handle: wait, stream output, write input, send signals, kill."""

import gc
import json
import os
import signal
import struct
import subprocess
import threading
import warnings
from _socket import AF_UNIX, MSG_DONTWAIT, SO_RCVTIMEO, SOCK_SEQPACKET, SOL_SOCKET, socketpair
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from observe import DEADLINE_SECONDS, alive, descriptors, eventually, unique_seconds

from corral import ContainmentError, Handle, Output, Sandbox, SandboxResult
from corral._lib.timestamps import format_utc
from corral.containment import protocol
from corral.model.call import Call, Launch, Verdict
from corral.runtime import dispatch
from corral.runtime.driver import Driver
from corral.runtime.pool import Pool
from corral.runtime.processes import WardenClient
from corral.runtime.run_options import RunContext, RunOptions

ECHO = "import sys\nfor line in sys.stdin:\n    print('got', line.strip(), flush=True)\nprint('end')\n"


def test_wait_returns_the_same_result_again(open_box: Sandbox) -> None:
    started = open_box.start(["echo", "hello"])
    result = started.wait()
    assert (result.exit_code, result.stdout) == (0, b"hello\n")
    assert started.wait() is started.result is started.poll() is result


def test_wait_timeout_raises_and_the_command_runs_on(open_box: Sandbox) -> None:
    started = open_box.start("read; echo done", shell=True, open_stdin=True)
    with pytest.raises(TimeoutError, match=r"still runs after 0\.05 seconds"):
        started.wait(0.05)
    assert started.result is None
    started.write_stdin(b"\n")
    assert started.wait(DEADLINE_SECONDS).stdout == b"done\n"


def test_poll_does_not_wait(open_box: Sandbox) -> None:
    started = open_box.start("read", shell=True, open_stdin=True)
    assert started.poll() is None
    started.write_stdin(b"\n")
    eventually(lambda: started.poll() is not None)
    assert started.wait().exit_code == 0


def test_output_is_read_while_it_is_printed(open_box: Sandbox, project: Path) -> None:
    (project / "steps.py").write_text(
        "import sys\nprint('one', flush=True)\nsys.stdin.readline()\nprint('two', file=sys.stderr, flush=True)\n"
    )
    seen = []
    started = open_box.start(["python3", "steps.py"], open_stdin=True)
    for stream, data in started:
        seen.append((stream, data))
        if data == b"one\n":
            started.write_stdin(b"go\n")
    assert seen == [("stdout", b"one\n"), ("stderr", b"two\n")]
    result = started.wait()
    assert (result.stdout, result.stderr) == (b"one\n", b"two\n")


def test_iteration_yields_all_output_of_a_truncated_result(open_sandbox: Callable[..., Sandbox]) -> None:
    started = open_sandbox(max_output_bytes=100).start(["head", "-c", "3000000", "/dev/zero"])
    assert sum(len(data) for _, data in started) == 3_000_000
    assert (started.wait().truncated, started.wait().stdout_bytes) == (True, 3_000_000)


def test_iterating_over_a_finished_command_yields_nothing(open_box: Sandbox) -> None:
    started = open_box.start(["echo", "x"])
    started.wait()
    assert list(started) == []


def test_kill_ends_the_process_tree(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    started = open_box.start(f"sleep {seconds} & sleep {seconds} & wait", shell=True)
    eventually(lambda: len(alive(seconds)) == 2)
    started.kill()
    result = started.wait()
    assert alive(seconds) == []
    assert (result.exit_code, result.signal, result.timed_out, result.killed) == (137, 9, False, 3)


def test_kill_from_another_thread_wakes_wait(open_box: Sandbox) -> None:
    started = open_box.start(["sleep", unique_seconds()], timeout_seconds=100)
    threading.Timer(0.1, started.kill).start()
    assert started.wait().exit_code == 137


def test_late_kill_does_not_hit_the_next_command(open_box: Sandbox) -> None:
    first = open_box.start(["echo", "$PPID"])
    warden = first._driver._warden
    first.wait()
    second = open_box.start("sleep 0.2; echo alive", shell=True)
    assert second._driver._warden is warden
    first.kill()
    first.signal(signal.SIGKILL)
    warden.say(protocol.KILL, first._driver._sent.nonce, 0)
    assert second.wait().stdout == b"alive\n"


def test_signal_reaches_the_process_group(open_box: Sandbox) -> None:
    started = open_box.start("trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done", shell=True)
    for _, data in started:
        if data == b"ready\n":
            started.signal(signal.SIGINT)
    assert (started.wait().exit_code, started.wait().stdout) == (5, b"ready\ncaught\n")


@pytest.mark.parametrize("number", [0, -1, 65, 300, "TERM", None])
def test_invalid_signal_number_raises_value_error(open_box: Sandbox, number: Any) -> None:
    started = open_box.start(["true"])
    with pytest.raises(ValueError, match=f"{number!r} is no signal"):
        started.signal(number)
    assert started.wait().exit_code == 0


def test_stdin_can_be_written_until_closed(open_box: Sandbox, project: Path) -> None:
    (project / "echo.py").write_text(ECHO)
    started = open_box.start(["python3", "echo.py"], open_stdin=True)
    assert started.write_stdin(b"one\n")
    assert started.write_stdin(b"two\n")
    started.close_stdin()
    assert not started.write_stdin(b"three\n")
    assert started.wait().stdout == b"got one\ngot two\nend\n"


def test_input_larger_than_a_pipe_is_written_while_reading(open_box: Sandbox) -> None:
    started = open_box.start(["cat"], open_stdin=True)
    assert started.write_stdin(b"x" * 3_000_000)
    started.close_stdin()
    assert started.wait().stdout_bytes == 3_000_000


def test_another_thread_may_write_stdin_during_wait(open_box: Sandbox) -> None:
    started = open_box.start(["cat"], open_stdin=True)

    def feed() -> None:
        for _ in range(10):
            started.write_stdin(b"x" * 100_000)
        started.close_stdin()

    writer = threading.Thread(target=feed)
    writer.start()
    assert started.wait().stdout_bytes == 1_000_000
    writer.join()


def test_write_stdin_is_false_after_the_command_ended(open_box: Sandbox) -> None:
    started = open_box.start(["true"], open_stdin=True)
    started.wait()
    assert not started.write_stdin(b"x")
    started.close_stdin()


def test_write_stdin_is_false_without_open_stdin(open_box: Sandbox) -> None:
    started = open_box.start(["cat"])
    assert not started.write_stdin(b"x")
    assert started.wait().stdout == b""


def test_with_block_kills_a_running_command(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    with open_box.start(["sleep", seconds]) as started:
        eventually(lambda: alive(seconds))
    assert alive(seconds) == []
    assert started.wait().exit_code == 137


def test_dropped_handle_kills_its_command_and_leaks_nothing(open_box: Sandbox) -> None:
    open_box.run(["true"])
    open_box.start(["true"]).wait()
    seconds = unique_seconds()
    started = open_box.start(["sleep", seconds], open_stdin=True)
    eventually(lambda: alive(seconds))
    del started
    gc.collect()
    eventually(lambda: not alive(seconds))
    assert open_box.run(["echo", "next"]).stdout == b"next\n"
    before = descriptors()
    started = open_box.start(["sleep", seconds])
    del started
    gc.collect()
    open_box.run(["true"])
    assert len(descriptors()) <= len(before)


def test_several_threads_wait_for_one_command(open_box: Sandbox) -> None:
    started = open_box.start(["sleep", "0.2"])
    results: list[SandboxResult] = []
    waiting = [threading.Thread(target=lambda: results.append(started.wait())) for _ in range(5)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert results == [started.result] * 5


def test_refused_call_has_a_finished_handle(box: Sandbox) -> None:
    refused = box.start(["rm", "-rf", "x"])
    assert refused.result is not None
    assert (refused.result.denied, refused.result.exit_code) == (True, -100)
    assert refused.wait() is refused.poll() is refused.result
    refused.kill()
    refused.signal(2)
    refused.close_stdin()
    assert (list(refused), refused.write_stdin(b"x")) == ([], False)
    with refused as same:
        assert same is refused


def test_caller_can_lend_its_streams(open_box: Sandbox, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = open_box.start("echo out; echo err >&2", shell=True, inherit_stdio=True).wait()
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"", b"")
    assert capfd.readouterr() == ("out\n", "err\n")


class _FakePool:
    """A pool with one warden: a sleeping process. The test holds the other end of its socket."""

    def __init__(self) -> None:
        ours, self.theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.process = subprocess.Popen(["sleep", "100"])
        self.warden = WardenClient(ours, self.process.pid, os.pidfd_open(self.process.pid))
        self.released: list[WardenClient] = []

    def acquire(self) -> WardenClient:
        return self.warden

    def settle(self) -> None:
        """Nothing else runs."""

    def dispatch(self, warden: WardenClient, message: bytes, descriptors: list[int]) -> WardenClient:
        return warden

    def release(self, warden: WardenClient) -> None:
        self.released.append(warden)

    def sweep(self, lost: WardenClient) -> tuple[int, int]:
        return 7, 0


@pytest.fixture
def forged(box: Sandbox) -> Iterator[tuple[_FakePool, Handle]]:
    pool = _FakePool()
    launch = Launch("/bin/true", ("true",), "/", {}, None, 100.0)
    yield pool, dispatch.start(pool, RunContext(box.config), launch, RunOptions(Call(("true",))), Verdict())  # type: ignore[arg-type]
    pool.process.kill()
    pool.process.wait()
    pool.theirs.close()
    pool.warden.close()


def outcome(nonce: bytes, status: int = 0, kind: int = protocol.ENDED) -> bytes:
    return protocol.OUTCOME.pack(kind, nonce, 0, status, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0)


def test_outcome_with_another_nonce_is_ignored(forged: tuple[_FakePool, Handle]) -> None:
    pool, started = forged
    pool.theirs.send(outcome(b"f" * protocol.NONCE_BYTES, 0))
    assert started.poll() is None
    pool.theirs.send(outcome(started._driver._sent.nonce, 3 << 8))
    assert started.wait().exit_code == 3
    assert pool.released == [pool.warden]


@pytest.mark.parametrize(
    "message",
    [b"", b"x", outcome(b"f" * protocol.NONCE_BYTES) + b"x", b"x" * 1000],
    ids=["empty", "short", "one byte too long", "long"],
)
def test_malformed_message_gives_warden_lost(forged: tuple[_FakePool, Handle], message: bytes) -> None:
    pool, started = forged
    pool.theirs.send(message)
    result = started.wait()
    assert (result.exit_code, result.signal, result.killed) == (137, 9, 7)
    assert [violation.kind for violation in result.violations] == ["warden-lost"]
    assert (pool.released, pool.process.wait()) == ([], -9)


@pytest.mark.parametrize("kind", [protocol.EXITED, protocol.OUTPUT, 0], ids=["exited", "output", "another nonce"])
def test_warden_that_floods_and_reads_nothing_is_killed(forged: tuple[_FakePool, Handle], kind: int) -> None:
    pool, started = forged
    nonce = started._driver._sent.nonce if kind else b"f" * protocol.NONCE_BYTES
    message = (
        protocol.CONTROL.pack(kind, nonce, 0)
        if kind == protocol.OUTPUT
        else outcome(nonce, kind=kind or protocol.EXITED)
    )
    is_over = threading.Event()

    def flood() -> None:
        # The handle closes its end at last.
        with suppress(OSError):
            while not is_over.is_set():
                pool.theirs.send(message)

    thread = threading.Thread(target=flood)
    thread.start()
    result = started.wait()
    is_over.set()
    thread.join()
    assert [violation.kind for violation in result.violations] == ["warden-lost"]
    assert pool.released == []


def test_message_to_a_warden_that_reads_nothing_does_not_block(forged: tuple[_FakePool, Handle]) -> None:
    pool, started = forged
    # More than the socket holds.
    for _ in range(5000):
        started.signal(signal.SIGUSR1)
    pool.theirs.send(outcome(started._driver._sent.nonce, 3 << 8))
    assert started.wait().exit_code == 3


def test_deadline_holds_while_a_lost_warden_prints_for_ever(box: Sandbox) -> None:
    pool = _FakePool()
    launch = Launch("/bin/true", ("true",), "/", {}, None, 0.1)
    started = dispatch.start(pool, RunContext(box.config), launch, RunOptions(Call(("true",))), Verdict())  # type: ignore[arg-type]
    pipes = [os.pipe(), os.pipe()]
    hand_over(pool, started._driver._sent.nonce, [ours for ours, _ in pipes])
    with subprocess.Popen(["yes"], stdout=pipes[0][1]) as writer:
        protocol.close_all([end for pipe in pipes for end in pipe])
        try:
            result = started.wait()
            assert (result.timed_out, pool.released) == (True, [])
        finally:
            writer.kill()
            pool.process.kill()
            pool.process.wait()
            pool.theirs.close()
            pool.warden.close()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
@pytest.mark.parametrize("field", ["user", "system"])
def test_impossible_processor_time_gives_warden_lost(
    forged: tuple[_FakePool, Handle], field: str, seconds: float
) -> None:
    pool, started = forged
    times = (seconds, 0.0) if field == "user" else (0.0, seconds)
    nonce = started._driver._sent.nonce
    pool.theirs.send(protocol.OUTCOME.pack(protocol.ENDED, nonce, 0, 0, 0, 0, *times, 0, 0, 0, 0, 0))
    result = started.wait()
    assert [violation.kind for violation in result.violations] == ["warden-lost"]
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))


@pytest.mark.parametrize("status", [-1, -256, 0x10000, 1 << 30])
def test_impossible_wait_status_gives_warden_lost(forged: tuple[_FakePool, Handle], status: int) -> None:
    pool, started = forged
    pool.theirs.send(outcome(started._driver._sent.nonce, status))
    assert [violation.kind for violation in started.wait().violations] == ["warden-lost"]


def printed(nonce: bytes, out: int, err: int, data: bytes) -> bytes:
    return outcome(nonce)[:-8] + out.to_bytes(4, "little") + err.to_bytes(4, "little") + data


def test_output_inside_the_outcome_is_used(forged: tuple[_FakePool, Handle]) -> None:
    pool, started = forged
    pool.theirs.send(printed(started._driver._sent.nonce, 3, 2, b"outer"))
    result = started.wait()
    assert (result.stdout, result.stderr, result.stdout_bytes, result.exit_code) == (b"out", b"er", 3, 0)


@pytest.mark.parametrize(("out", "err"), [(3, 3), (2, 2), (5, 1 << 31), ((1 << 32) - 1, 6)])
def test_outcome_with_a_wrong_size_gives_warden_lost(forged: tuple[_FakePool, Handle], out: int, err: int) -> None:
    pool, started = forged
    pool.theirs.send(printed(started._driver._sent.nonce, out, err, b"outer"))
    assert [violation.kind for violation in started.wait().violations] == ["warden-lost"]


def hand_over(pool: _FakePool, nonce: bytes, ends: list[int], kind: int = protocol.OUTPUT) -> None:
    said = protocol.CONTROL.pack(kind, nonce, 0)
    protocol.send(pool.theirs, said)
    protocol.send(pool.theirs, said, ends)


def test_received_pipes_are_read(forged: tuple[_FakePool, Handle]) -> None:
    pool, started = forged
    pipes = [os.pipe(), os.pipe()]
    hand_over(pool, started._driver._sent.nonce, [ours for ours, _ in pipes])
    os.write(pipes[0][1], b"out")
    os.write(pipes[1][1], b"err")
    protocol.close_all([end for pipe in pipes for end in pipe])
    pool.theirs.send(outcome(started._driver._sent.nonce))
    result = started.wait()
    assert (result.stdout, result.stderr) == (b"out", b"err")


def test_pipes_received_after_the_exit_are_read(forged: tuple[_FakePool, Handle]) -> None:
    pool, started = forged
    said = protocol.CONTROL.pack(protocol.OUTPUT, started._driver._sent.nonce, 0)
    protocol.send(pool.theirs, said)
    # A background child still prints, and its pipes were not sent yet.
    pool.theirs.send(outcome(started._driver._sent.nonce, kind=protocol.EXITED))
    for _ in range(2):
        assert started.poll() is None
    with pytest.raises(BlockingIOError):
        pool.theirs.recv(100, MSG_DONTWAIT)
    pipes = [os.pipe(), os.pipe()]
    protocol.send(pool.theirs, said, [ours for ours, _ in pipes])
    os.write(pipes[0][1], b"late")
    protocol.close_all([end for pipe in pipes for end in pipe])
    for _ in range(3):
        assert started.poll() is None
    assert pool.theirs.recv(100, MSG_DONTWAIT) == protocol.CONTROL.pack(
        protocol.DRAINED, started._driver._sent.nonce, 0
    )
    pool.theirs.send(outcome(started._driver._sent.nonce))
    assert started.wait().stdout == b"late"


def test_wait_continues_after_a_socket_timeout(forged: tuple[_FakePool, Handle]) -> None:
    pool, started = forged
    pool.warden.sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack("@ll", 0, 10_000))
    late = threading.Timer(0.1, pool.theirs.send, (outcome(started._driver._sent.nonce, 3 << 8),))
    late.start()
    assert started.wait().exit_code == 3
    late.join()


def test_silent_warden_is_killed_after_the_deadline(forged: tuple[_FakePool, Handle]) -> None:
    pool, started = forged
    pool.warden.sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack("@ll", 0, 10_000))
    impatient = threading.Timer(0.1, setattr, (started._driver, "_patience_ends_at", 0.0))
    impatient.start()
    assert [violation.kind for violation in started.wait().violations] == ["warden-lost"]
    assert pool.released == []
    impatient.join()


def test_released_warden_is_not_touched(forged: tuple[_FakePool, Handle]) -> None:
    pool, started = forged

    def take(result: object) -> None:
        # Another thread has used the warden meanwhile, and its answer has arrived.
        pool.warden.inbox[0] = protocol.ENDED

    started.when_done(take)
    pool.theirs.send(outcome(started._driver._sent.nonce))
    started.wait()
    assert pool.released == [pool.warden]
    assert pool.warden.inbox[0] == protocol.ENDED


@pytest.mark.parametrize("forgery", ["files", "one", "three", "another kind", "twice", "none"])
def test_unexpected_descriptors_give_warden_lost(
    forged: tuple[_FakePool, Handle], tmp_path: Path, forgery: str
) -> None:
    pool, started = forged
    before = descriptors()
    pipes = [os.pipe(), os.pipe()]
    ends = [ours for ours, _ in pipes]
    nonce = started._driver._sent.nonce
    kind = protocol.TERMINAL if forgery == "another kind" else protocol.OUTPUT
    if forgery == "files":
        (tmp_path / "file").touch()
        with (tmp_path / "file").open() as file:
            hand_over(pool, nonce, [file.fileno(), ends[1]])
    else:
        hand_over(pool, nonce, {"one": ends[:1], "three": [*ends, ends[0]], "none": []}.get(forgery, ends), kind)
    if forgery == "twice":
        hand_over(pool, nonce, ends)
    assert [violation.kind for violation in started.wait().violations] == ["warden-lost"]
    protocol.close_all([end for pipe in pipes for end in pipe])
    assert descriptors().items() <= before.items()


def test_interrupt_after_receiving_keeps_the_outcome(open_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    started = open_box.start(["echo", "x"])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "_handle_message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            started.wait()
    assert started.wait(DEADLINE_SECONDS).stdout == b"x\n"


def test_handle_outlives_its_dropped_sandbox(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    config = open_sandbox().config
    started = Sandbox(config).start("sleep 0.1; echo done", shell=True)
    gc.collect()
    assert started.wait().stdout == b"done\n"


def test_closing_the_sandbox_kills_running_commands(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    started = open_box.start(["sleep", seconds])
    eventually(lambda: alive(seconds))
    open_box.close()
    assert alive(seconds) == []
    result = started.wait()
    assert (result.exit_code, [violation.kind for violation in result.violations]) == (137, ["warden-lost"])
    with pytest.raises(ContainmentError, match="closed"):
        open_box.run(["true"])


def test_on_output_gets_output_as_it_arrives(open_box: Sandbox) -> None:
    heard: list[tuple[str, bytes]] = []
    text = "echo one; read; echo two >&2"

    def hear(name: str, data: bytes) -> None:
        heard.append((name, data))
        if data == b"one\n":
            started.write_stdin(b"\n")
            assert started.poll() is None

    started = open_box.start(text, shell=True, open_stdin=True, on_output=hear)
    assert started.wait().exit_code == 0
    assert heard == [("stdout", b"one\n"), ("stderr", b"two\n")]
    heard.clear()
    assert open_box.run("echo x", shell=True, on_output=lambda *chunk: heard.append(chunk)).stdout == b"x\n"
    assert heard == [("stdout", b"x\n")]


def test_failing_on_output_kills_the_command(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    calls: list[bytes] = []

    def fail(_: str, data: bytes) -> None:
        calls.append(data)
        raise LookupError("of the caller's own")

    with pytest.raises(LookupError):
        open_box.run(f"echo x; sleep {seconds}", shell=True, on_output=fail)
    assert (calls, alive(seconds)) == ([b"x\n"], [])
    started = open_box.start(["echo", "y"], on_output=fail)
    with pytest.raises(LookupError):
        started.wait()
    assert calls == [b"x\n", b"y\n"]
    assert started.wait().stdout == b"y\n"
    assert open_box.run(["echo", "next"]).stdout == b"next\n"


def test_signal_handler_may_call_kill_at_any_time(open_box: Sandbox) -> None:
    started = open_box.start(["sleep", unique_seconds()], open_stdin=True)
    before = signal.signal(signal.SIGUSR2, lambda *_: started.kill())
    try:
        with started._driver._control:
            # The signal arrives while a message to the warden is being sent.
            signal.raise_signal(signal.SIGUSR2)
        assert started.wait().exit_code == 137
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_on_output_cannot_wait_for_its_own_command(open_box: Sandbox) -> None:
    def wait(*_: object) -> None:
        started.wait()

    started = open_box.start(["echo", "x"], on_output=wait)
    with pytest.raises(RuntimeError, match="waiting for the command already"):
        started.wait()
    assert started.wait().stdout == b"x\n"


def in_threads(*functions: Callable[[], object]) -> list[object]:
    """Call functions concurrently, each in a thread, and return their results."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(DEADLINE_SECONDS) for future in [pool.submit(function) for function in functions]]


def test_every_iteration_gets_all_output_while_others_wait(open_box: Sandbox) -> None:
    started = open_box.start("for n in 1 2 3 4 5 6 7 8; do echo $n; echo $n >&2; sleep 0.02; done", shell=True)
    first, second, third = iter(started), iter(started), iter(started)

    def told(chunks: Iterator[tuple[str, bytes]]) -> tuple[bytes, bytes]:
        seen = list(chunks)
        return tuple(b"".join(data for name, data in seen if name == stream) for stream in ("stdout", "stderr"))

    everything = b"1\n2\n3\n4\n5\n6\n7\n8\n"
    results = in_threads(lambda: told(first), started.wait, lambda: told(second), started.wait, started.wait)
    assert results == [(everything, everything), started.result, (everything, everything), *[started.result] * 2]
    assert told(third) == (everything, everything)
    assert list(started) == []


def test_second_waiter_keeps_its_own_timeout(open_box: Sandbox) -> None:
    started = open_box.start("read; echo done", shell=True, open_stdin=True)
    with ThreadPoolExecutor(1) as pool:
        driving = pool.submit(started.wait)
        eventually(lambda: not started._driver._driving.acquire(False) or started._driver._driving.release())
        with pytest.raises(TimeoutError):
            started.wait(0.05)
        assert started.poll() is None
        started.write_stdin(b"\n")
        assert started.wait(DEADLINE_SECONDS).stdout == b"done\n"
        assert driving.result(DEADLINE_SECONDS) is started.result


def test_another_waiter_takes_over_driving(open_box: Sandbox) -> None:
    started = open_box.start("read; echo done", shell=True, open_stdin=True)
    with ThreadPoolExecutor(2) as pool:
        impatient = pool.submit(started.wait, 0.3)
        patient = pool.submit(started.wait)
        with pytest.raises(TimeoutError):
            impatient.result(DEADLINE_SECONDS)
        started.write_stdin(b"\n")
        assert patient.result(DEADLINE_SECONDS).stdout == b"done\n"


def test_dropped_iteration_holds_no_output(open_box: Sandbox) -> None:
    started = open_box.start(["head", "-c", "3000000", "/dev/zero"])
    for _ in range(3):
        iter(started)
    assert next(iter(started))[0] == "stdout"
    started.wait()
    assert started._driver._waiters is not None
    assert started._driver._waiters._queues == []


def test_silence_limit_ends_with_the_command(
    open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    watch = Driver._check_deadlines
    monkeypatch.setattr(Driver, "_check_deadlines", lambda self, warden: (looks.append(0), watch(self, warden)))
    box = open_sandbox(output=Output(silence_seconds=0.05, drain_seconds=0.5))
    result = box.run(f"sleep {unique_seconds()} & true", shell=True)
    assert (result.exit_code, result.killed, result.violations) == (0, 1, ())
    # One check per wait that timed out. A busy loop would make thousands.
    assert len(looks) < 50


def test_fork_cannot_wait_for_its_parents_command(open_box: Sandbox) -> None:
    started = open_box.start(["sleep", unique_seconds()])
    driver = threading.Thread(target=started.wait)
    driver.start()
    eventually(lambda: not started._driver._driving.acquire(False) or started._driver._driving.release())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        failures = 0
        signal.alarm(int(DEADLINE_SECONDS))
        for ask in (started.wait, started.poll, started.__iter__, lambda: started.write_stdin(b"x"), started.close):
            try:
                ask()
            except ContainmentError as error:
                failures += "fork" in str(error)
        started.kill()
        os._exit(failures)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    started.kill()
    driver.join(DEADLINE_SECONDS)
    assert started.wait().exit_code == 137


@pytest.mark.parametrize(("rows", "columns"), [(0, 80), (24, 65536), (-1, 80), (24.0, 80), ("24", 80), (True, 80)])
def test_invalid_terminal_size_raises_value_error(open_box: Sandbox, rows: Any, columns: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number from 1 to 65535"):
        open_box.start(["true"], pty=True, rows=rows, columns=columns)
    with open_box.start(["cat"], pty=True) as started, pytest.raises(ValueError, match="must be a whole number"):
        started.resize(rows, columns)


def test_pty_and_inherited_streams_exclude_each_other(open_box: Sandbox) -> None:
    for lent in ("inherit_stdin", "inherit_stdio"):
        with pytest.raises(ValueError, match="not both"):
            open_box.start(["true"], pty=True, **{lent: True})  # type: ignore[arg-type]


def test_terminal_leaks_no_descriptor_on_the_host(open_box: Sandbox) -> None:
    open_box.run(["true"])
    before = descriptors()
    for _ in range(3):
        open_box.start(["echo", "x"], pty=True).wait()
        with open_box.start(["cat"], pty=True):
            pass
        open_box.start(["nothing-like-this"], pty=True).wait()
    plain = open_box.start(["true"])
    plain.resize(1, 1)
    plain.wait()
    assert descriptors() == before


def test_relay_copies_a_descriptor_to_stdin(open_box: Sandbox) -> None:
    theirs, ours = os.pipe()
    started = open_box.start(["cat"], open_stdin=True)
    started.relay(theirs)
    writer = threading.Thread(target=lambda: (os.write(ours, b"x" * 1_000_000), os.close(ours)))
    writer.start()
    assert started.wait().stdout_bytes == 1_000_000
    writer.join()
    os.close(theirs)


def test_fake_terminal_from_a_warden_is_refused(box: Sandbox) -> None:
    launch = Launch("/bin/true", ("true",), "/", {}, None, 100.0)
    for given in ("/dev/null", "/dev/zero", "/etc/passwd"):
        pool = _FakePool()
        descriptor = os.open(given, os.O_RDONLY)
        before = descriptors()

        def answer(
            warden: WardenClient, message: bytes, _: list[int], pool: _FakePool = pool, held: int = descriptor
        ) -> WardenClient:
            nonce = protocol.REQUEST.unpack_from(message)[1]
            protocol.send(pool.theirs, protocol.CONTROL.pack(protocol.TERMINAL, nonce, 0), (held,))
            return warden

        pool.dispatch = answer  # type: ignore[method-assign]
        with pytest.raises(ContainmentError, match="no terminal"):
            dispatch.start(pool, RunContext(box.config), launch, RunOptions(Call(("true",)), pty=True), Verdict())  # type: ignore[arg-type]
        assert len(descriptors()) == len(before) - 2
        os.close(descriptor)
        pool.theirs.close()
        pool.process.kill()
        pool.process.wait()


def test_started_at_is_before_the_commands_first_effect(
    open_box: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Connections and kernel audit records are assigned to a command by time.
    send = Pool.dispatch

    def descheduled(self: Pool, *arguments: Any) -> Any:
        warden = send(self, *arguments)
        eventually((project / "made").exists)
        return warden

    monkeypatch.setattr(Pool, "dispatch", descheduled)
    result = open_box.run(["sh", "-c", "sleep 0.05; touch made"])
    assert result.started_at < format_utc((project / "made").stat().st_mtime)
