"""Keeper, wardens and host processes: deaths, replacements and forks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import CDLL, byref, c_int
from pathlib import Path

import pytest
from observe import (
    DEADLINE_SECONDS,
    alive,
    children,
    descriptors,
    eventually,
    exist,
    unique_seconds,
    with_enough_time,
)

from corral import Containment, ContainmentError, Sandbox, SandboxResult
from corral.containment import protocol
from corral.containment.plan import Plan
from corral.runtime import driver, pool, processes

HOST = """
import os, signal, sys, time
from corral import Sandbox, SandboxConfig
box = Sandbox(SandboxConfig(sys.argv[1]))
seconds = os.environ["LENGTH_OF_SLEEP"]
"""


@contextmanager
def host(project: Path, seconds: str, code: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program that uses corral, and kill it after the test."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST + code, str(project)],
        env={**os.environ, "LENGTH_OF_SLEEP": seconds},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line of a program's output."""
    assert process.stdout is not None
    return process.stdout.readline()


def output_of(project: Path, code: str) -> tuple[int, str, str]:
    """Run a program that uses corral and return its exit code, stdout and stderr."""
    with host(project, unique_seconds(), code) as process:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, out, err


def wardens_of(keeper: int) -> list[int]:
    return children(keeper)


def test_keeper_is_a_bare_interpreter_in_its_own_session(open_box: Sandbox) -> None:
    open_box.run(["true"])
    (keeper,) = children(os.getpid())
    environ = subprocess.run(["cat", f"/proc/{keeper}/environ"], capture_output=True, check=False).stdout
    assert environ == b""
    assert os.getsid(keeper) == os.getpgid(keeper) == keeper
    command = Path(f"/proc/{keeper}/cmdline").read_bytes().split(b"\0")
    base = os.path.realpath(sys._base_executable)
    assert command[:3] == [base.encode(), b"-I", b"-S"]


def test_host_is_not_a_subreaper(open_box: Sandbox) -> None:
    open_box.run(["true"])
    answer = c_int(7)
    assert CDLL(None).prctl(37, byref(answer), 0, 0, 0) == 0
    assert answer.value == 0


@pytest.mark.parametrize("pty", [False, True], ids=["", "on a terminal"])
def test_killing_the_host_ends_everything(project: Path, pty: bool) -> None:
    seconds = unique_seconds()
    code = f"h = box.start(['sleep', seconds], pty={pty}); print(1, flush=True); signal.pause()"
    with host(project, seconds, code) as process:
        assert line_of(process)
        eventually(lambda: alive(seconds))
        (keeper,) = children(process.pid)
        (warden,) = wardens_of(keeper)
    eventually(lambda: not alive(seconds) and not exist(keeper, warden))


def test_killing_a_forked_host_ends_everything(project: Path) -> None:
    seconds = unique_seconds()
    code = """
import ctypes
h = box.start(["sleep", seconds])
# A fork that bypasses Python: the child keeps every socket of the host open.
child = ctypes.CDLL(None).fork()
if child == 0:
    os.close(1), os.close(2)
    signal.pause()
print(child, flush=True)
signal.pause()
"""
    with host(project, seconds, code) as process:
        child = int(line_of(process))
        eventually(lambda: alive(seconds))
        (keeper,) = set(children(process.pid)) - {child}
    try:
        eventually(lambda: not alive(seconds) and not exist(keeper))
        assert exist(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_deadline_holds_while_the_host_is_stopped(project: Path) -> None:
    def run(limit: float) -> bool:
        """Return whether the host was stopped before its command ended."""
        seconds = unique_seconds()
        code = f"h = box.start(['sleep', seconds], timeout_seconds={limit}); print(1, flush=True); print(h.wait().exit_code)"
        with host(project, seconds, code) as process:
            assert line_of(process)
            eventually(lambda: alive(seconds) or process.poll() is not None)
            process.send_signal(signal.SIGSTOP)
            was_alive = bool(alive(seconds))
            eventually(lambda: not alive(seconds))
            process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=DEADLINE_SECONDS) == ("-101\n", "")
        return was_alive

    assert with_enough_time(run, bool)


def test_host_exit_without_close_leaves_nothing(project: Path) -> None:
    seconds = unique_seconds()
    with host(project, seconds, "h = box.start(['sleep', seconds]); box.run(['true'])") as process:
        assert (*process.communicate(timeout=DEADLINE_SECONDS), process.returncode) == ("", "", 0)
    eventually(lambda: not alive(seconds))


def test_fork_of_the_host_starts_its_own_keeper(project: Path) -> None:
    code = """
assert box.run(["echo", "parent"]).stdout == b"parent\\n"
pid = os.fork()
if pid == 0:
    # The child has only its own descriptors open, none of the parent's keeper.
    open_ = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")]
    inherited = [name for name in open_ if "socket" in name or "pidfd" in name]
    first = box.run("echo $PPID", shell=True)
    os._exit(0 if first.ok and not inherited else 1)
assert os.waitpid(pid, 0)[1] == 0
assert box.run(["echo", "parent"]).stdout == b"parent\\n"
box.close()
print("done")
"""
    assert output_of(project, code) == (0, "done\n", "")


def test_fork_does_not_own_its_parents_command(project: Path) -> None:
    code = """
from corral import ContainmentError
started = box.start("sleep 0.3; echo done", shell=True)
pid = os.fork()
if pid == 0:
    try:
        started.wait()
    except ContainmentError as error:
        started.kill()
        del started
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
assert os.waitpid(pid, 0)[1] == 0
print(started.wait().stdout.decode(), end="")
box.close()
"""
    assert output_of(project, code) == (0, "done\n", "")


def test_forks_and_threads_together_do_not_hang(project: Path) -> None:
    code = """
import threading, warnings
warnings.simplefilter("ignore")
stop = threading.Event()
def busy():
    while not stop.is_set():
        assert box.run(["true"]).ok
threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads: thread.start()
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if box.run(["true"]).ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
box.close()
print("done")
"""
    assert output_of(project, code) == (0, "done\n", "")


def test_fork_waits_for_the_imports_of_the_first_command(project: Path) -> None:
    code = """
import importlib.abc, threading, warnings
warnings.simplefilter("ignore")
begun = threading.Event()
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        # What proxy_client imports itself: it is half imported then.
        if "corral.containment.network.proxy_client" in sys.modules:
            begun.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: box.run(["true"]))
thread.start()
begun.wait()
pid = os.fork()
if pid == 0:
    os._exit(0 if box.run(["true"]).ok else 1)
print(os.waitpid(pid, 0)[1])
thread.join()
box.close()
"""
    assert output_of(project, code) == (0, "0\n", "")


def test_host_that_ignores_sigchld_gets_results(project: Path) -> None:
    code = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(box.run("exit 3", shell=True).exit_code)
box.close()
"""
    assert output_of(project, code) == (0, "3\n", "")


def test_host_that_reaps_all_children_gets_results(project: Path) -> None:
    code = """
box.run(["true"])
keeper, warden = box._pool._keeper.pid, box._pool._idle[0].pid
os.kill(keeper, signal.SIGKILL)
assert os.wait()[0] == keeper
while os.path.exists(f"/proc/{warden}"):
    time.sleep(0.01)
print(box.run("exit 3", shell=True).exit_code)
box.close()
"""
    assert output_of(project, code) == (0, "3\n", "")


def test_host_without_standard_streams_gets_results(project: Path) -> None:
    code = """
keep = os.dup(1)
for number in (0, 1, 2): os.close(number)
result = box.run("echo out; echo err >&2; cat", shell=True, stdin=b"in")
box.close()
os.write(keep, repr((result.stdout, result.stderr)).encode())
"""
    assert output_of(project, code) == (0, r"(b'out\nin', b'err\n')", "")


def test_host_in_a_deleted_directory_gets_results(project: Path, tmp_path: Path) -> None:
    code = f"""
os.mkdir({str(tmp_path / "gone")!r}); os.chdir({str(tmp_path / "gone")!r}); os.rmdir({str(tmp_path / "gone")!r})
print(box.run(["pwd"]).stdout.decode(), end="")
box.close()
"""
    assert output_of(project, code) == (0, f"{project}\n", "")


def test_keyboard_interrupt_kills_the_command_and_propagates(project: Path) -> None:
    seconds = unique_seconds()
    code = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
try:
    box.run(["sleep", seconds])
except KeyboardInterrupt:
    print("interrupted", box.run(["echo", "next"]).stdout, flush=True)
box.close()
"""
    with host(project, seconds, code) as process:
        eventually(lambda: alive(seconds))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE_SECONDS) == ("interrupted b'next\\n'\n", "")
    assert alive(seconds) == []


def test_killed_keeper_is_replaced(open_box: Sandbox) -> None:
    for _ in range(3):  # from the third command on, the sandbox watches for new credentials
        open_box.run(["true"])
    (keeper,) = children(os.getpid())
    (warden,) = wardens_of(keeper)
    before = descriptors()
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: not exist(warden))
    assert open_box.run(["echo", "next"]).stdout == b"next\n"
    (other,) = children(os.getpid())
    assert other != keeper
    assert len(descriptors()) == len(before)


def test_killing_the_keeper_ends_the_run_as_warden_lost(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    started = open_box.start(f"echo before; sleep {seconds} & sleep {seconds}", shell=True)
    # Output that the warden still holds would be lost with it.
    assert next(iter(started)) == ("stdout", b"before\n")
    eventually(lambda: len(alive(seconds)) == 2)
    (keeper,) = children(os.getpid())
    os.kill(keeper, signal.SIGKILL)
    result = started.wait()
    assert (result.exit_code, result.signal, result.stdout) == (137, 9, b"before\n")
    assert [violation.kind for violation in result.violations] == ["warden-lost"]
    eventually(lambda: not alive(seconds))
    assert open_box.run(["echo", "next"]).stdout == b"next\n"


def test_killing_the_warden_ends_the_run_as_warden_lost(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    started = open_box.start(f"echo before; sleep {seconds} & setsid sleep {seconds} & wait", shell=True)
    eventually(lambda: len(alive(seconds)) == 2)
    (keeper,) = children(os.getpid())
    (warden,) = wardens_of(keeper)
    os.kill(warden, signal.SIGKILL)
    result = started.wait()
    assert alive(seconds) == []
    assert (result.exit_code, result.signal, result.stdout) == (137, 9, b"before\n")
    assert [violation.kind for violation in result.violations] == ["warden-lost"]
    assert open_box.run(["echo", "next"]).stdout == b"next\n"
    assert children(os.getpid()) == [keeper]
    eventually(lambda: warden not in wardens_of(keeper))


def test_warden_that_died_idle_is_replaced(open_box: Sandbox) -> None:
    open_box.run(["true"])
    (keeper,) = children(os.getpid())
    (warden,) = wardens_of(keeper)
    os.kill(warden, signal.SIGKILL)
    eventually(lambda: wardens_of(keeper) == [])
    result = open_box.run(["echo", "next"])
    assert (result.stdout, result.violations) == (b"next\n", ())


def test_stopped_warden_does_not_block_the_run(open_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "GRACE_SECONDS", 0.3)
    seconds = unique_seconds()

    def run(limit: float) -> SandboxResult | None:
        """Return the result of a command that still ran when its warden was stopped."""
        started = open_box.start(["sleep", seconds], timeout_seconds=limit)
        eventually(lambda: alive(seconds) or started.poll())
        (keeper,) = children(os.getpid())
        (warden,) = wardens_of(keeper)
        os.kill(warden, signal.SIGSTOP)
        if alive(seconds):
            return started.wait()
        os.kill(warden, signal.SIGCONT)
        return None

    result = with_enough_time(run, bool)
    assert alive(seconds) == []
    assert (result.exit_code, result.timed_out) == (-101, True)
    assert [violation.kind for violation in result.violations] == ["warden-lost"]
    assert open_box.run(["echo", "next"]).stdout == b"next\n"


def test_command_that_kills_its_warden_dies_too(open_sandbox: Callable[..., Sandbox]) -> None:
    seconds = unique_seconds()
    uncontained = open_sandbox(containment=Containment(backend="none"))
    result = uncontained.run(f"setsid sleep {seconds} & kill -KILL $PPID; sleep {seconds}", shell=True)
    assert alive(seconds) == []
    assert (result.exit_code, [violation.kind for violation in result.violations]) == (137, ["warden-lost"])


def test_idle_wardens_exit(open_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_IDLE_WARDENS", 2)
    started = [open_box.start(["cat"], open_stdin=True) for _ in range(6)]
    (keeper,) = children(os.getpid())
    assert len(wardens_of(keeper)) == 6
    for one in started:
        one.close_stdin()
        one.wait()
    eventually(lambda: len(wardens_of(keeper)) == 2)
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.0)
    open_box.run(["true"])
    eventually(lambda: len(wardens_of(keeper)) == 1)
    assert open_box.run(["true"]).ok


def test_dropped_sandbox_ends_its_keeper(open_sandbox: Callable[..., Sandbox]) -> None:
    config = open_sandbox().config
    before = descriptors()
    Sandbox(config).run(["true"])
    assert (children(os.getpid()), descriptors()) == ([], before)


def test_new_keeper_with_fewer_layers_runs_nothing(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    box = open_sandbox(profile="workspace")
    assert box.run(["true"]).enforcement == "full"
    pooled = box._state.pool
    whole = pooled._plan
    # The keeper dies, and the next one contains nothing.
    pooled._plan = lambda: Plan().pack()
    for is_canary in (False, True):
        if is_canary:
            # Without the check the command runs uncontained.
            pooled._status = ("none", "none", ())
        assert pooled._keeper is not None
        os.kill(pooled._keeper.pid, signal.SIGKILL)
        eventually(lambda: all(warden.poller.poll(0) for warden in pooled._known()))
        if is_canary:
            assert box.run(["touch", "ran"]).enforcement == "none"
            continue
        with pytest.raises(ContainmentError, match="changed while the sandbox was open"):
            box.run(["touch", "ran"])
        # The next call is checked against the policy again.
        with pytest.raises(ContainmentError, match="needs the kernel to contain"):
            box.run(["touch", "ran"])
        assert not (project / "ran").exists()
        pooled._plan = whole
        assert box.run(["true"]).enforcement == "full"
        pooled._plan = lambda: Plan().pack()
    assert (project / "ran").exists()


@pytest.mark.parametrize("sent", ["one", "three", "no socket", "another kind"])
def test_keeper_that_answers_wrongly_is_replaced(sent: str) -> None:
    before = descriptors()
    hostile = processes.KeeperClient()
    made = pool.Pool(lambda: Plan().pack())
    made._keeper = hostile
    theirs = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    count = {"one": 1, "three": 3, "no socket": 2, "another kind": 2}[sent]
    kind = protocol.SWEEP if sent == "another kind" else protocol.NEW
    # The answer waits in the socket before the question comes.
    protocol.send(hostile.theirs, protocol.COUNT.pack(kind, 1), theirs[:count])
    warden = made.acquire()
    assert (warden.backend, made._keeper is hostile) == ("none", False)
    warden.close()
    made.close()
    protocol.close_all(theirs)
    assert descriptors() == before


def test_keeper_start_failure_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    made = pool.Pool(lambda: Plan().pack())
    monkeypatch.setattr(sys, "_base_executable", "/nonexistent/python")
    with pytest.raises(ContainmentError, match=r"did not start: .*No such file"):
        made.acquire()
    monkeypatch.setattr(sys, "_base_executable", "/bin/true")
    with pytest.raises(ContainmentError, match="did not start: it exited at once"):
        made.acquire()
    monkeypatch.undo()
    monkeypatch.setattr("corral.containment.processes.keeper_command._PROGRAM", "raise SystemError('no such luck')")
    with pytest.raises(ContainmentError, match="did not start: SystemError: no such luck"):
        made.acquire()
    assert (children(os.getpid()), descriptors()) == ([], before)


def test_descriptor_exhaustion_raises_and_leaks_nothing(project: Path) -> None:
    code = """
import resource
from corral import ContainmentError
assert box.run(["true"]).ok
free = os.dup(0)
os.close(free)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
for _ in range(3):
    # These use the descriptors that the first command has reserved.
    assert box.run(["echo", "hi"]).stdout == b"hi\\n"
    assert box.run("sleep 0.05; echo later", shell=True).stdout == b"later\\n"
    try:
        box.run(["sleep", "0.1"], on_output=print)
    except ContainmentError as error:
        print("Too many open files. Here this process may open no more than" in str(error))
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 100, hard))
assert box.run(["sleep", "0.1"]).ok
box.close()
"""
    assert output_of(project, code) == (0, "True\n" * 3, "")


def test_keeper_is_kept_while_runs_come(open_box: Sandbox) -> None:
    open_box.run(["true"])
    keepers = children(os.getpid())
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        assert open_box.run(["true"]).ok
    assert children(os.getpid()) == keepers


def test_stopped_keeper_is_killed_with_its_orphans(open_sandbox: Callable[..., Sandbox]) -> None:
    seconds = unique_seconds()
    box = open_sandbox(containment=Containment(backend="none"))
    server = box.start(["sleep", seconds])
    started = box.start(f"setsid sleep {seconds} & sleep {seconds}", shell=True)
    eventually(lambda: len(alive(seconds)) == 3)
    (keeper,) = children(os.getpid())
    warden = started._driver._warden
    assert warden is not None
    os.kill(keeper, signal.SIGSTOP)
    os.kill(warden.pid, signal.SIGKILL)
    result = started.wait()
    assert [violation.kind for violation in result.violations] == ["warden-lost"]
    assert alive(seconds) == []
    assert [violation.kind for violation in server.wait().violations] == ["warden-lost"]
    assert box.run(["echo", "next"]).stdout == b"next\n"
    assert keeper not in children(os.getpid())


def test_stopped_keeper_is_replaced_when_a_warden_is_needed(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    with open_box.start(["sleep", seconds]) as started:
        eventually(lambda: alive(seconds))
        (keeper,) = children(os.getpid())
        os.kill(keeper, signal.SIGSTOP)
        # Far below the time that a slow keeper is given.
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(open_box.run, ["echo", "next"]).result(DEADLINE_SECONDS).stdout == b"next\n"
        assert [violation.kind for violation in started.wait().violations] == ["warden-lost"]


def test_stopped_keeper_does_not_block_close(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    started = open_box.start(["sleep", seconds])
    eventually(lambda: alive(seconds))
    (keeper,) = children(os.getpid())
    os.kill(keeper, signal.SIGSTOP)
    open_box.close()
    assert (alive(seconds), children(os.getpid())) == ([], [])
    assert started.wait().exit_code == 137


@pytest.mark.real
def test_interrupt_while_a_keeper_starts_leaks_nothing(project: Path) -> None:
    code = """
import gc
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
def known(): return sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}"))
for _ in range(4):
    with Sandbox(SandboxConfig(sys.argv[1])) as warm: warm.run(["true"])  # a process keeps its watches of credentials
del warm
before = len(known())
interrupted = 0
for turn in range(40):
    box = Sandbox(SandboxConfig(sys.argv[1]))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + turn * 0.0015)
        box.run(["true"])
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Late:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    box.close()
    while box._pool._makers: time.sleep(0.001)
    box.close()
del box
gc.collect()
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child is left")
except ChildProcessError:
    print(len(known()) - before, interrupted > 5)
"""
    assert output_of(project, code) == (0, "0 True\n", "")


def test_idle_pool_shrinks_to_one_warden() -> None:
    made = pool.Pool(lambda: Plan(idle_seconds=0.2).pack())
    try:
        wardens = [made.acquire() for _ in range(4)]
        (keeper,) = children(os.getpid())
        assert len(wardens_of(keeper)) == 4
        for warden in wardens:
            made.release(warden)
        eventually(lambda: wardens_of(keeper) == [wardens[0].pid])
        # Dead wardens are noticed when they are needed.
        assert made.dispatch(made.acquire(), b"x", ()) is wardens[0]
    finally:
        made.close()


def test_exited_idle_wardens_are_replaced(open_box: Sandbox) -> None:
    plan = open_box._holding.plan
    open_box._pool._plan = lambda: Plan.unpack(plan()).replace(idle_seconds=0.1).pack()
    for _ in range(2):
        started = [open_box.start(["sleep", "0.1"]) for _ in range(4)]
        assert [one.wait().ok for one in started] == [True] * 4
        (keeper,) = children(os.getpid())
        eventually(lambda keeper=keeper: len(wardens_of(keeper)) == 1)
    assert open_box.run(["echo", "next"]).stdout == b"next\n"


def test_many_threads_share_the_wardens(open_box: Sandbox) -> None:
    with ThreadPoolExecutor(16) as threads:
        results = list(threads.map(lambda n: open_box.run(["echo", str(n)]).stdout, range(64)))
    assert results == [f"{n}\n".encode() for n in range(64)]
    assert len(children(os.getpid())) == 1
