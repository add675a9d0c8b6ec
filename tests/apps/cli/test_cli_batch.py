"""`corral batch` through a real process: order, flushing, interrupts, memory and the log."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import jsonschema
import pytest
from observe import alive, eventually, unique_seconds
from screen import Screen

import corral

SCHEMA = json.loads((Path(corral.__file__).parent / "model" / "schemas" / "result.schema.json").read_text())
DEADLINE_SECONDS = 60


def batch(*words: str, lines: list[object], cwd: Path, **environ: str) -> tuple[int, list[Any], str]:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-m", "corral", "batch", *words],
        cwd=cwd,
        input=text,
        env=dict(os.environ) | environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def started(*words: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "corral", "batch", *words], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def say(stdin: IO[bytes] | None, line: object) -> None:
    assert stdin is not None
    stdin.write(json.dumps(line).encode() + b"\n")
    stdin.flush()


def test_every_line_gets_the_result_of_run_in_order(project: Path) -> None:
    lines: list[object] = [
        {"id": "a", "argv": ["echo", "one"]},
        {"id": 2, "shell": "echo $X | cat", "env": {"X": "two"}},
        "not json\n",
        {"id": "c", "argv": ["sudo", "ls"]},
        {"id": "d", "argv": ["cat"], "stdin": "three"},
        {"id": "e", "argv": ["sleep", "60"], "timeout_seconds": 0.1},
        {"id": "f", "argv": ["ls"], "colour": 1},
    ]
    status, answers, said = batch("--profile", "strict", "--workers", "2", lines=lines, cwd=project)
    assert (status, said) == (0, "")
    assert [answer["id"] for answer in answers] == ["a", 2, None, "c", "d", "e", "f"]
    for answer in answers:
        if "result" in answer:
            jsonschema.validate(answer["result"], SCHEMA)
    outputs = [answer.get("result", {}).get("stdout") for answer in answers]
    assert outputs == ["one\n", "two\n", None, "", "three", "", None]
    assert [answers[2]["error"], answers[6]["error"]] == [
        "the line is not JSON: Expecting value at character 0",
        "unknown key colour; a line has id, argv, shell, cwd, env, stdin, timeout_seconds, idempotent",
    ]
    assert [answer.get("line") for answer in answers] == [None, None, 3, None, None, None, 7]
    assert (answers[3]["result"]["denied"], answers[5]["result"]["timed_out"]) == (True, True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param({"id": 1, "argv": ["ls"], "env": {"A": 1}}, "env must be an object of strings", id="env"),
        pytest.param({"id": 1, "argv": ["ls"], "stdin": 1}, "stdin must be a string, not a number", id="stdin"),
        pytest.param({"id": 1, "argv": ["ls"], "timeout_seconds": 0}, "timeout_seconds must be a number", id="time"),
        pytest.param(
            {"id": 1, "argv": ["ls"], "timeout_seconds": 31},
            "timeout_seconds is above the limit of 30; to raise the limit, run: corral batch --timeout 31",
            id="more time",
        ),
        pytest.param({"id": 1, "argv": ["ls"], "idempotent": "yes"}, "idempotent must be true or false", id="repeat"),
        pytest.param({"argv": ["ls"]}, "id is missing", id="no id"),
    ],
)
def test_invalid_line_runs_nothing(project: Path, line: object, words: str) -> None:
    _, answers, _ = batch(lines=[line], cwd=project)
    assert answers[0]["error"].startswith(words)


def test_line_may_use_the_time_that_the_user_gave(project: Path) -> None:
    line = {"id": 1, "argv": ["true"], "timeout_seconds": 31}
    for limit in ("31", "0"):
        _, answers, _ = batch("--timeout", limit, lines=[line], cwd=project)
        assert answers[0]["result"]["exit_code"] == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_answer_does_not_wait_for_the_next_line(project: Path, workers: str) -> None:
    with started("--workers", workers, cwd=project) as process:
        for number in range(3):
            say(process.stdin, {"id": number, "argv": ["echo", str(number)]})
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["result"]["stdout"] == f"{number}\n"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_SECONDS) == 0


def test_unordered_answers_come_as_commands_end(project: Path) -> None:
    wait = {"id": "slow", "shell": "until [ -e go ]; do sleep 0.01; done"}
    lines = [wait, {"id": "quick", "argv": ["echo"]}, {"id": "go", "argv": ["touch", "go"]}]
    _, answers, _ = batch("--workers", "2", "--unordered", lines=list(lines), cwd=project)
    assert answers[0]["id"] == "quick"
    assert {answer["id"] for answer in answers} == {"slow", "quick", "go"}


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "terminate"])
def test_interrupt_kills_running_commands(project: Path, workers: str, number: int) -> None:
    seconds = unique_seconds()
    with started("--workers", workers, cwd=project) as process:
        for name in range(int(workers)):
            say(process.stdin, {"id": name, "argv": ["sleep", seconds]})
        eventually(lambda: len(alive(seconds)) == int(workers))
        process.send_signal(number)
        # Its stdin is still open, so corral must not wait for a line.
        assert process.wait(DEADLINE_SECONDS) == 130
    assert alive(seconds) == []


def test_every_call_is_logged(project: Path, tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path / "state")}
    batch("--workers", "2", lines=[{"id": n, "argv": ["echo", str(n)]} for n in range(20)], cwd=project, **home)
    done = subprocess.run(
        [sys.executable, "-m", "corral", "log", "--json", "--event", "batch"],
        env=dict(os.environ) | home,
        capture_output=True,
        text=True,
        check=False,
    )
    logged = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(int(entry["argv"][1]) for entry in logged) == list(range(20))


def test_closed_stdout_ends_the_batch(project: Path) -> None:
    with started("--workers", "2", cwd=project) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stdin is not None
        # Both at once: after the first answer it may be gone.
        process.stdin.write(b'{"id": 1, "argv": ["echo"]}\n{"id": 2, "argv": ["echo"]}\n')
        process.stdin.flush()
        assert process.wait(DEADLINE_SECONDS) == 125


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.real
def test_memory_does_not_grow_with_calls_or_output(project: Path) -> None:
    # Kept, what 900 calls print would be 17 MiB.
    line = {"id": 1, "argv": ["head", "-c", "20000", "/dev/zero"]}
    with started("--workers", "2", cwd=project) as process:
        assert process.stdout is not None
        peaks = []
        feeder = threading.Thread(target=lambda: [say(process.stdin, line) for _ in range(1000)])
        feeder.start()
        for number in range(1000):
            assert json.loads(process.stdout.readline())["result"]["stdout_bytes"] == 20_000
            if number in (100, 999):
                peaks.append(resident_mib(process.pid))
        feeder.join()
        assert process.stdin is not None
        process.stdin.close()
    assert peaks[1] - peaks[0] < 5


MIXED = [
    {"id": 1, "argv": ["echo", "x"]},
    {"id": 2, "argv": ["ls", "no-such-file"]},
    {"id": 3, "argv": ["sudo", "ls"]},
    {"id": 4, "argv": ["sleep", "60"], "timeout_seconds": 0.1},
    {"id": 5},
]
COUNTED = "5 lines: 1 succeeded, 1 failed, 1 refused, 1 timed out, 1 not valid; "


@pytest.mark.parametrize(
    ("key", "ending", "status"),
    [(b"\x04", b"corral: 0 lines; ", 0), (b"\x03", b"corral: interrupted after 0 lines; ", 130)],
)
def test_terminal_on_stdin_gets_a_hint(project: Path, key: bytes, ending: bytes, status: int) -> None:
    screen = Screen([sys.executable, "-m", "corral", "batch"], project, columns=120)
    try:
        screen.until(b"corral: reading calls from the terminal")
        screen.type(key)
        screen.until(ending)
        assert screen.status() == status
    finally:
        screen.close()


@pytest.mark.parametrize("answers_go_to", ["out", "/dev/tty"])
def test_terminal_shows_progress_and_a_summary(project: Path, answers_go_to: str) -> None:
    (project / "calls").write_text("".join(f"{json.dumps(line)}\n" for line in MIXED))
    words = shlex.join([sys.executable, "-m", "corral", "batch", "--profile", "strict", "--workers", "1"])
    screen = Screen(["sh", "-c", f"{words} < calls > {answers_go_to}"], project, columns=120)
    try:
        shown = screen.until(b" s\r\n").decode()
    finally:
        screen.close()
    assert f"corral: {COUNTED}" in shown
    # A line that is drawn over and over would stand among the answers.
    assert ("\x1b[K" in shown) is (answers_go_to == "out")
    assert shown.count("\n") == (1 if answers_go_to == "out" else 1 + len(MIXED))
