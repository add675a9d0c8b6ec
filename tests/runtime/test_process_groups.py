"""Real processes: exit codes, deadlines, leftover processes, floods, many runs, leaks."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from observe import (
    alive,
    children,
    descriptors,
    eventually,
    exist,
    seen_before_its_end,
    unique_seconds,
    with_enough_time,
)

from corral import Limits, Output, Sandbox, SandboxResult, Violation
from corral.containment.network.proxy_client import variables
from corral.runtime.pool import MAX_IDLE_WARDENS

# Forks and exits for ever: every list of processes is out of date when it is read.
HOPPER = """
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
print("hopping", flush=True)
time.sleep(float(sys.argv[1]))
"""
# Doubles until it is killed or there are 64 processes.
BOMB = """
import os, sys, time
for _ in range(6):
    os.fork()
time.sleep(float(sys.argv[1]))
"""


def script(project: Path, name: str, text: str) -> list[str]:
    (project / name).write_text(text)
    return ["python3", name]


def told(result: SandboxResult) -> tuple[int, bytes, bytes]:
    return result.exit_code, result.stdout, result.stderr


def signal_masks(box: Sandbox) -> tuple[int, int]:
    """Return the blocked and ignored signals of a command, without the two that the C library uses."""
    status = dict(line.split(":\t") for line in box.run(["cat", "/proc/self/status"]).stdout_text.splitlines())
    return int(status["SigBlk"], 16) & ~0x180000000, int(status["SigIgn"], 16) & ~0x180000000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", (0, None)),
        ("exit 3", (3, None)),
        ("exit 255", (255, None)),
        ("kill -TERM $$", (143, 15)),
        ("kill -KILL $$", (137, 9)),
        ("kill -INT $$", (130, 2)),
        ("(kill -TERM $BASHPID)", (143, None)),
    ],
)
def test_exit_code_is_the_commands_or_128_plus_signal(
    open_box: Sandbox, text: str, expected: tuple[int, int | None]
) -> None:
    result = open_box.run(text, shell=True)
    assert (result.exit_code, result.signal) == expected
    assert result.ok == (expected == (0, None))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["nonesuch"], (127, b"", b"corral: nonesuch: command not found\n"), id="no such name"),
        pytest.param(["./nonesuch"], (127, b"", b"corral: ./nonesuch: command not found\n"), id="no such file"),
        pytest.param(["./plain/x"], (127, b"", b"corral: ./plain/x: command not found\n"), id="below a file"),
        pytest.param(["./plain"], (126, b"", b"corral: ./plain: Permission denied\n"), id="not executable"),
        pytest.param(["./folder"], (126, b"", b"corral: ./folder: Permission denied\n"), id="a directory"),
        pytest.param(["./noformat"], (126, b"", b"corral: ./noformat: Exec format error\n"), id="no format"),
        pytest.param(
            ["./orphan"],
            (126, b"", b"corral: ./orphan: the interpreter in its first line does not exist\n"),
            id="no interpreter",
        ),
        pytest.param(
            ["/bin/echo", "x" * 200_000], (126, b"", b"corral: /bin/echo: Argument list too long\n"), id="E2BIG"
        ),
    ],
)
def test_start_failure_is_explained(
    open_box: Sandbox, project: Path, argv: list[str], expected: tuple[int, bytes, bytes]
) -> None:
    (project / "plain").write_text("")
    (project / "folder").mkdir()
    for name, text in (("noformat", "no format"), ("orphan", "#!/nonexistent/x\n")):
        (project / name).write_text(text)
        (project / name).chmod(0o755)
    assert told(open_box.run(argv)) == expected


def test_missing_working_directory_is_126(open_box: Sandbox, project: Path) -> None:
    assert told(open_box.run(["pwd"], cwd="missing")) == (
        126,
        b"",
        f"corral: cannot enter {project}/missing: No such file or directory\n".encode(),
    )


def test_command_starts_in_its_directory(open_box: Sandbox, project: Path) -> None:
    (project / "sub").mkdir()
    results = [open_box.run(["pwd"], cwd=cwd) for cwd in (None, "sub", str(project / "sub"), project / "sub")]
    expected = [(f"{path}\n".encode(), str(path)) for path in (project, *[project / "sub"] * 3)]
    assert [(result.stdout, result.cwd) for result in results] == expected


def test_nine_thousand_arguments_arrive(open_box: Sandbox, project: Path) -> None:
    argv = ["python3", "count.py", *(f"{number:0100d}" for number in range(9000))]
    (project / "count.py").write_text("import sys; print(len(sys.argv), sum(map(int, sys.argv[1:])))")
    assert told(open_box.run(argv)) == (0, f"9001 {sum(range(9000))}\n".encode(), b"")


def test_huge_environment_is_a_result(open_box: Sandbox) -> None:
    result = open_box.run(["true"], env={"HUGE": "x" * 500_000})
    assert told(result) == (126, b"", b"corral: true: Argument list too long\n")


def test_invalid_utf8_bytes_pass_through(open_box: Sandbox) -> None:
    assert open_box.run(["printf", "%s", "a\udcffb"]).stdout == b"a\xffb"


def test_environment_is_scrubbed(open_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", ":.:/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("LC_TIME", "C")
    for name in ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "BASH_ENV"):
        monkeypatch.setenv(name, "/x")
    seen = open_box.run(["env"], env={"GIVEN": "1"}).stdout_text.split("\n")
    # Where the kernel holds the network, commands find the proxy that refuses every host.
    proxy = {f"{name}={value}" for name, value in variables(refuses_all=True).items()}
    assert sorted({*seen} - proxy) == ["", "GIVEN=1", "HOME=/home/u", "LC_TIME=C", "PATH=/usr/bin:/bin"]


def test_stdin_is_empty_by_default(open_box: Sandbox) -> None:
    assert open_box.run(["wc", "-c"]).stdout == b"0\n"
    assert open_box.run(["cat"], stdin=b"a\0b\xff").stdout == b"a\0b\xff"
    assert open_box.run(["cat"], stdin=b"").stdout == b""


def test_large_input_arrives_although_the_command_prints_first(open_box: Sandbox, project: Path) -> None:
    text = "import sys; print('x' * 1000000); print(len(sys.stdin.buffer.read()))"
    result = open_box.run(script(project, "late.py", text), stdin=b"y" * 5_000_000)
    assert (result.exit_code, result.stdout[-8:], result.stdout_bytes) == (0, b"5000000\n", 1_000_009)


def test_command_may_ignore_its_input(open_box: Sandbox) -> None:
    assert told(open_box.run(["true"], stdin=b"x" * 1_000_000)) == (0, b"", b"")


def test_command_gets_three_descriptors_and_default_signals(open_box: Sandbox, project: Path) -> None:
    leaked = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    text = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    try:
        assert open_box.run(script(project, "fds.py", text)).stdout == b"[0, 1, 2]\n"
    finally:
        os.close(leaked)
    assert signal_masks(open_box) == (0, 0)


def test_timeout_kills_the_tree_and_keeps_output(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    text = f"echo before; echo problem >&2; sleep {seconds} & (sleep {seconds} & sleep {seconds}; :) & wait"
    result = with_enough_time(
        lambda limit: seen_before_its_end(
            open_box.start(text, shell=True, timeout_seconds=limit), lambda: len(alive(seconds)) == 3
        ),
        bool,
    )
    assert alive(seconds) == []
    assert told(result) == (-101, b"before\n", b"problem\n")
    assert (result.timed_out, result.ok, result.signal, result.killed) == (True, False, 9, 5)


@pytest.mark.parametrize(
    ("text", "killed"),
    [
        pytest.param("sleep {0} & echo done", 1, id="a child that holds the pipe"),
        pytest.param("sleep {0} >/dev/null 2>&1 & echo done", 1, id="a child with its own output"),
        pytest.param("setsid sleep {0} & echo done", 1, id="a new session"),
        pytest.param("(setsid sleep {0} >/dev/null 2>&1 </dev/null &) & echo done; wait", 1, id="a daemon"),
        pytest.param("sleep {0} & kill -STOP $!; echo done", 1, id="a stopped process"),
        pytest.param("(trap '' TERM INT HUP; exec sleep {0}) & echo done", 1, id="a process that ignores signals"),
        pytest.param("for i in 1 2 3 4 5; do sleep {0} & done; echo done", 5, id="five"),
    ],
)
def test_leftover_processes_are_killed_and_counted(open_box: Sandbox, text: str, killed: int) -> None:
    seconds = unique_seconds()
    result = open_box.run(text.format(seconds), shell=True)
    assert alive(seconds) == []
    assert (*told(result), result.killed, result.timed_out) == (0, b"done\n", b"", killed, False)


def test_output_of_a_background_child_is_drained(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(output=Output(drain_seconds=10))
    result = box.run("(sleep 0.2; echo late) & echo early", shell=True)
    assert (told(result), result.killed) == ((0, b"early\nlate\n", b""), 0)


def test_fast_forking_processes_are_killed(open_box: Sandbox, project: Path) -> None:
    seconds = unique_seconds()
    command = [*script(project, "hopper.py", HOPPER), seconds]
    result = with_enough_time(lambda limit: open_box.run(command, timeout_seconds=limit), lambda ended: ended.stdout)
    assert alive(seconds) == []
    assert told(result) == (-101, b"hopping\n", b"")


def test_fork_bomb_ends_at_the_deadline(open_box: Sandbox, project: Path) -> None:
    seconds = unique_seconds()
    command = [*script(project, "bomb.py", BOMB), seconds]
    result = with_enough_time(
        lambda limit: seen_before_its_end(
            open_box.start(command, timeout_seconds=limit), lambda: len(alive(seconds)) == 64
        ),
        bool,
    )
    assert alive(seconds) == []
    assert (result.exit_code, result.killed) == (-101, 64)


def test_orphans_are_reaped_while_the_command_runs(open_box: Sandbox, project: Path) -> None:
    text = """
import os, subprocess
for _ in range(30):
    subprocess.run(["sh", "-c", "true &"])
warden = os.getppid()
def state(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
def parent(pid):
    try:
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
def zombies():
    return [state(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == warden].count("Z")
import time
end = time.monotonic() + 60
while (count := zombies()) and time.monotonic() < end:
    time.sleep(0.01)
print(count)
"""
    assert told(open_box.run(script(project, "orphans.py", text), timeout_seconds=100)) == (0, b"0\n", b"")


def test_silence_limit_kills_a_command_that_prints_nothing(open_sandbox: Callable[..., Sandbox]) -> None:
    seconds = unique_seconds()

    def run(limit: float) -> tuple[float, SandboxResult]:
        box = open_sandbox(output=Output(silence_seconds=limit))
        return limit, box.run(f"echo once; sleep {seconds}", shell=True)

    limit, result = with_enough_time(run, lambda ended: ended[1].stdout)
    assert alive(seconds) == []
    assert (told(result), result.timed_out) == ((-101, b"once\n", b""), True)
    assert result.violations == (Violation("silence", detail=f"nothing was printed for {limit:g} seconds"),)


def test_steady_output_resets_the_silence_limit(open_sandbox: Callable[..., Sandbox]) -> None:
    def run(limit: float) -> SandboxResult:
        # The total time exceeds the limit; the time between two lines is far below it.
        text = f"for i in 1 2 3 4 5 6 7 8; do echo $i; sleep {limit / 5}; done"
        return open_sandbox(output=Output(silence_seconds=limit)).run(text, shell=True)

    result = with_enough_time(run, lambda ended: ended.ok)
    assert (result.exit_code, result.stdout, result.violations) == (0, b"1\n2\n3\n4\n5\n6\n7\n8\n", ())


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("both", b"12345[corral: truncated, 10 bytes omitted]67890"),
        ("head", b"1234512345[corral: truncated, 10 bytes omitted]"),
        ("tail", b"[corral: truncated, 10 bytes omitted]6789067890"),
    ],
)
def test_output_keep_selects_head_tail_or_both(open_sandbox: Callable[..., Sandbox], keep: str, kept: bytes) -> None:
    box = open_sandbox(max_output_bytes=10, output=Output(keep=keep))
    result = box.run("printf 12345; printf 12345; printf 67890; printf 67890", shell=True)
    assert (result.stdout.replace(b"\n", b""), result.truncated, result.stdout_bytes) == (kept, True, 20)


@pytest.mark.real
def test_gigabyte_of_output_takes_bounded_memory(project: Path) -> None:
    host = """
import resource, sys
from corral import Sandbox, SandboxConfig
with Sandbox(SandboxConfig(sys.argv[1])) as box:
    assert box.run(["head", "-c", "200000", "/dev/zero"]).stdout_bytes == 200000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = box.run(["cat", "zero"])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(result.exit_code, result.stdout_bytes, result.truncated, len(result.stdout) < 70000, grown < 8 * 1024)
"""
    host = host.replace('"/dev/zero"', '"zero"')
    with (project / "zero").open("wb") as sparse:
        sparse.truncate(1_000_000_000)
    done = subprocess.run([sys.executable, "-c", host, str(project)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0 1000000000 True True True\n", "")


@pytest.mark.real
def test_two_hundred_concurrent_runs(open_box: Sandbox) -> None:
    before = descriptors()
    with ThreadPoolExecutor(200) as threads:
        results = list(
            threads.map(lambda n: open_box.run(f"echo {n}; sleep 0.3; echo {n} >&2", shell=True), range(200))
        )
    assert [told(result) for result in results] == [(0, f"{n}\n".encode(), f"{n}\n".encode()) for n in range(200)]
    assert len({result.id for result in results}) == 200
    (keeper,) = children(os.getpid())
    # Of the keeper: its socket, pidfd, error file, crash marker, the marker's directory and the proxy's log. Of each warden: its
    # socket, its pidfd and two reserved descriptors.
    eventually(lambda: len(descriptors()) - len(before) <= 12 + 6 * MAX_IDLE_WARDENS)
    eventually(lambda: len([pid for pid in children(keeper) if exist(pid)]) <= MAX_IDLE_WARDENS)
    open_box.close()
    # The process keeps its watches of credentials.
    left = {number: target for number, target in descriptors().items() if "inotify" not in target}
    assert (left.keys() - before.keys(), children(os.getpid())) == (set(), [])


@pytest.mark.real
def test_three_hundred_runs_leak_nothing(open_box: Sandbox, project: Path) -> None:
    open_box.run(["true"])
    open_box.run("sleep 100 & echo x", shell=True)
    before, mine = descriptors(), children(os.getpid())
    for number in range(300):
        assert open_box.run(["true"]).ok
        if number % 50 == 0:
            assert open_box.run(["nonesuch"]).exit_code == 127
            assert open_box.run(["cat"], stdin=b"x").stdout == b"x"
            assert open_box.run("sleep 100 & sleep 100", shell=True, timeout_seconds=0.05).timed_out
    assert (descriptors(), children(os.getpid())) == (before, mine)
    assert [path.name for path in project.iterdir()] == []
    open_box.close()
    assert not Path(open_box._holding.scratch).exists()


def test_warden_is_reused_after_a_timeout(open_box: Sandbox) -> None:
    text = "echo $PPID"
    first = open_box.run(text, shell=True).stdout
    assert open_box.run("sleep 100", shell=True, timeout_seconds=0.1).timed_out
    assert open_box.run(text, shell=True).stdout == first


def test_usage_reports_cpu_and_memory(open_box: Sandbox, project: Path) -> None:
    text = (
        "data = b'x' * 50_000_000\nimport time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    )
    usage = open_box.run(script(project, "use.py", text)).usage
    assert usage.user_seconds + usage.system_seconds >= 0.2
    assert usage.peak_memory_bytes >= 50_000_000


def test_limits_apply_to_all_descendants(open_sandbox: Callable[..., Sandbox]) -> None:
    limits = Limits(open_files=77, file_size_bytes=4096 * 1024)
    result = open_sandbox(limits=limits).run('bash -c "ulimit -n; ulimit -f; ulimit -Hn"', shell=True)
    assert told(result) == (0, b"77\n4096\n77\n", b"")


def test_exceeded_limit_is_a_violation(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    box = open_sandbox(limits=Limits(file_size_bytes=1000))
    writing = box.run(["dd", "if=/dev/zero", "of=big", "bs=2000", "count=1"])
    assert (writing.exit_code, [violation.kind for violation in writing.violations]) == (153, ["file-size-limit"])
    assert (project / "big").stat().st_size == 1000


def test_start_failure_is_explained_under_limits(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(limits=Limits(open_files=100))
    assert told(box.run(["./nonesuch"])) == (127, b"", b"corral: ./nonesuch: command not found\n")
    assert told(box.run(["cat"], stdin=b"x")) == (0, b"x", b"")
    assert signal_masks(box) == (0, 0)
