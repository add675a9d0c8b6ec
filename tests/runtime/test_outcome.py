"""Outcome messages of a warden become the fields of a result."""

from errno import E2BIG, EACCES, ENOENT, ENOEXEC, ENOTDIR
from pathlib import Path

import pytest

from corral import Limits, Usage, Violation
from corral.containment import protocol
from corral.containment.violations.detect import limit_hit
from corral.model.call import Call, Launch, Verdict
from corral.runtime.outcome import (
    Ending,
    call_fields,
    limit_violations,
    parse_outcome,
    silence_ending,
    warden_lost_ending,
)

LAUNCH = Launch("/nonexistent/tool", ("tool", "x"), "/project", {})
USAGE = Usage(1.5, 0.25, 4096, 512, 1024)


def outcome(flags: int = 0, status: int = 0, error: int = 0, killed: int = 0) -> bytearray:
    return bytearray(
        protocol.OUTCOME.pack(
            protocol.ENDED, b"n" * protocol.NONCE_BYTES, flags, status, error, killed, 1.5, 0.25, 4096, 512, 1024, 0, 0
        )
    )


def hit(kind: str, field: str, value: str, *, inferred: bool = False) -> Violation:
    limits = Limits(**{field: int(value)}) if value.isdigit() else Limits()
    violation = limit_hit(kind, field, limits, inferred=inferred)
    assert f"limits.{field} is {value}" in violation.detail
    return violation


@pytest.mark.parametrize(
    ("said", "ending"),
    [
        pytest.param(outcome(), Ending(0, usage=USAGE), id="success"),
        pytest.param(outcome(status=3 << 8), Ending(3, usage=USAGE), id="an exit code"),
        pytest.param(outcome(status=255 << 8), Ending(255, usage=USAGE), id="the largest exit code"),
        pytest.param(outcome(status=15), Ending(143, 15, usage=USAGE), id="a signal"),
        pytest.param(outcome(status=11 | 0x80), Ending(139, 11, usage=USAGE), id="a signal with a core dump"),
        pytest.param(
            outcome(protocol.TIMED_OUT, 9, 0, 3), Ending(-101, 9, True, killed=3, usage=USAGE), id="a timeout"
        ),
        pytest.param(
            outcome(protocol.TIMED_OUT, 3 << 8), Ending(-101, None, True, usage=USAGE), id="a timeout during an exit"
        ),
    ],
)
def test_outcome_gives_exit_code_signal_and_flags(said: bytearray, ending: Ending) -> None:
    assert parse_outcome(said, LAUNCH, Limits()) == ending


@pytest.mark.parametrize(
    ("flags", "error", "code", "message"),
    [
        (0, ENOENT, 127, "corral: tool: command not found\n"),
        (0, ENOTDIR, 127, "corral: tool: command not found\n"),
        (0, EACCES, 126, "corral: tool: Permission denied\n"),
        (0, ENOEXEC, 126, "corral: tool: Exec format error\n"),
        (0, E2BIG, 126, "corral: tool: Argument list too long\n"),
        (protocol.NO_DIRECTORY, ENOENT, 126, "corral: cannot enter /project: No such file or directory\n"),
        (protocol.NO_DIRECTORY, EACCES, 126, "corral: cannot enter /project: Permission denied\n"),
    ],
)
def test_start_errors_give_exit_code_and_message(flags: int, error: int, code: int, message: str) -> None:
    assert parse_outcome(outcome(flags, 0, error), LAUNCH, Limits()) == Ending(code, message=message, usage=USAGE)


def test_missing_interpreter_is_not_command_not_found(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nonexistent/interpreter\n")
    launch = LAUNCH.replace(executable=str(script))
    message = "corral: tool: the interpreter in its first line does not exist\n"
    assert parse_outcome(outcome(error=ENOENT), launch, Limits()) == Ending(126, message=message, usage=USAGE)


@pytest.mark.parametrize(
    ("number", "limits", "violations"),
    [
        (25, Limits(file_size_bytes=9), (hit("file-size-limit", "file_size_bytes", "9", inferred=True),)),
        (25, Limits(cpu_seconds=2), ()),
    ],
)  # fmt: skip
def test_sigxfsz_is_a_violation_only_with_a_file_size_limit(
    number: int, limits: Limits, violations: tuple[Violation, ...]
) -> None:
    assert parse_outcome(outcome(status=number), LAUNCH, limits) == Ending(
        128 + number, number, False, violations, usage=USAGE
    )


@pytest.mark.parametrize(
    ("flag", "limits", "violation"),
    [
        (protocol.TOO_MUCH_CPU, Limits(cpu_seconds=2), hit("cpu-limit", "cpu_seconds", "2")),
        (protocol.TOO_MUCH_MEMORY, Limits(memory_bytes=9), hit("memory-limit", "memory_bytes", "9")),
        (protocol.TOO_MUCH_MEMORY, Limits(), hit("memory-limit", "memory_bytes", "0.75 of the machine's memory")),
        (protocol.TOO_MANY_PROCESSES, Limits(processes=9), hit("process-limit", "processes", "9")),
        (protocol.PROCESS_LIMIT_REACHED, Limits(processes=9), hit("process-limit", "processes", "9", inferred=True)),
        (protocol.TOO_MUCH_WRITTEN, Limits(disk_bytes=9), hit("disk-limit", "disk_bytes", "9")),
        (protocol.DISK_NEARLY_FULL, Limits(free_disk_bytes=9), hit("disk-full", "free_disk_bytes", "9")),
        (protocol.INODES_NEARLY_USED_UP, Limits(free_inodes=9), hit("disk-full", "free_inodes", "9")),
    ],
)  # fmt: skip
def test_exceeded_limit_is_named_with_its_value(flag: int, limits: Limits, violation: Violation) -> None:
    assert parse_outcome(outcome(flag, 9), LAUNCH, limits) == Ending(137, 9, False, (violation,), usage=USAGE)


def test_unkillable_processes_are_reported_and_warden_not_reused() -> None:
    ending = parse_outcome(outcome(protocol.UNKILLABLE_LEFT, 0), LAUNCH, Limits())
    assert ([violation.kind for violation in ending.violations], ending.reusable) == (["left-running"], False)


def test_lost_warden_is_reported_as_sigkill() -> None:
    ending = warden_lost_ending(4, timed_out=False)
    assert ending == Ending(137, 9, False, ending.violations, 4, reusable=False)
    assert [violation.kind for violation in ending.violations] == ["warden-lost"]


def test_lost_warden_reports_the_memory_limit_too() -> None:
    ending = warden_lost_ending(4, limit_violations(protocol.TOO_MUCH_MEMORY, Limits(memory_bytes=9)), timed_out=False)
    first, second = ending.violations
    assert first == hit("memory-limit", "memory_bytes", "9", inferred=True)
    assert second.kind == "warden-lost"


def test_warden_lost_after_the_deadline_is_a_timeout() -> None:
    ending = warden_lost_ending(4, timed_out=True)
    assert ending == Ending(-101, 9, True, ending.violations, 4, reusable=False)


def test_silence_is_reported_as_a_timeout() -> None:
    violation = Violation("silence", detail="nothing was printed for 1.5 seconds")
    assert silence_ending(Ending(137, 9, killed=1), 1.5) == Ending(-101, 9, True, (violation,), 1)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("ls", "-l"), ("ls", "-l")),
        ("ls | wc", ("ls | wc",)),
        (("ls", 3, None), ("ls", "3", "None")),
        (None, ("None",)),
        (b"ls", ("b'ls'",)),
        ({"a": 1}, ("{'a': 1}",)),
    ],
)
def test_call_fields_turn_every_word_into_text(argv: object, told: tuple[str, ...]) -> None:
    assert call_fields(Call(argv), Verdict(), "/project", b"\x01\xff", 1_700_000_000.25) == {
        "argv": told,
        "shell": False,
        "cwd": "/project",
        "verdict": Verdict(),
        "id": "01ff",
        "started_at": "2023-11-14T22:13:20.250Z",
    }
