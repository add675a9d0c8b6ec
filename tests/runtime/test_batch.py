"""Sandbox.map: results, repeated calls, closing the iterator, and work on a copy of the project."""

import os
import pickle
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from observe import alive, eventually, unique_seconds

from corral import ContainmentError, Limits, Sandbox, SandboxConfig, SandboxResult
from corral.model.call import Call, Violation
from corral.runtime.batch import BatchCall, CallError, LocalWork, pack, parse_batch_call, unpack, was_lost

WAIT = "until [ -e go ]; do sleep 0.01; done"


def told(result: SandboxResult) -> tuple[int, bytes, bytes]:
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_map_returns_results_in_order(box: Sandbox, workers: int) -> None:
    results = list(box.map([["echo", str(n)] for n in range(40)], workers=workers))
    assert [told(result) for result in results] == [(0, f"{n}\n".encode(), b"") for n in range(40)]


def test_batch_call_accepts_the_options_of_run(box: Sandbox, project: Path) -> None:
    (project / "sub").mkdir()
    calls: list[object] = [
        {"argv": ["pwd"], "cwd": "sub"},
        {"shell": "echo $A | cat", "env": {"A": "b"}},
        {"argv": ["cat"], "stdin": b"\xff"},
        {"argv": ["cat"], "stdin": "text"},
        {"argv": ["sleep", "60"], "timeout_seconds": 0.1},
        Call(["echo", "a call"]),
        ["rm", "x"],
    ]
    results = list(box.map(calls, workers=2))
    assert [result.stdout for result in results[:4]] == [f"{project}/sub\n".encode(), b"b\n", b"\xff", b"text"]
    assert [(r.timed_out, r.denied) for r in results[4:]] == [
        (True, False),
        (False, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        pytest.param("ls", ("['ls']", "{'shell': 'ls'}"), id="a string"),
        pytest.param(7, ("argv", "shell", "7"), id="a number"),
        pytest.param({"argv": ["ls"], "cdw": "x"}, ("'cdw'", "argv", "cwd"), id="an unknown key"),
        pytest.param({"argv": ["ls"], "shell": "ls"}, ("argv", "shell"), id="both"),
        pytest.param({"cwd": "x"}, ("argv", "shell"), id="neither"),
        pytest.param({"shell": ["ls"]}, ("shell", "['ls']"), id="shell as a list"),
        pytest.param({"argv": ["ls"], "idempotent": 1}, ("idempotent", "1"), id="not a boolean"),
    ],
)
def test_invalid_call_is_reported_by_number_after_earlier_results(
    box: Sandbox, given: Any, named: tuple[str, ...]
) -> None:
    results = box.map([["true"], ["true"], given, ["true"]], workers=2)
    assert [next(results).exit_code, next(results).exit_code] == [0, 0]
    with pytest.raises(CallError) as error:
        next(results)
    assert str(error.value).startswith("call 2: ")
    assert [text for text in named if text not in str(error.value)] == []


def test_unordered_map_yields_the_first_to_end_with_its_number(open_box: Sandbox) -> None:
    calls = [{"shell": WAIT}, {"argv": ["echo", "quick"]}, {"argv": ["touch", "go"]}]
    found = list(open_box.map(calls, workers=2, ordered=False).numbered())
    assert [number for number, _ in found] == [1, 2, 0] or [number for number, _ in found] == [1, 0, 2]
    assert all(result.ok for _, result in found)


def test_workers_is_the_number_of_concurrent_commands(open_box: Sandbox, project: Path) -> None:
    # Each command waits for all four: with three at a time none would end.
    wait = "until [ $(ls here.* | wc -l) -ge 4 ]; do sleep 0.01; done"
    results = list(open_box.map([{"shell": f"touch here.{n}; {wait}"} for n in range(4)], workers=4))
    assert [result.exit_code for result in results] == [0, 0, 0, 0]


@pytest.mark.parametrize("way", ["close", "with", "drop"])
def test_closing_the_iterator_kills_running_commands(open_box: Sandbox, way: str) -> None:
    seconds = unique_seconds()
    results = open_box.map([["true"], *[["sleep", seconds]] * 40], workers=3)
    assert next(results).ok
    eventually(lambda: len(alive(seconds)) == 3)
    if way == "close":
        results.close()
    elif way == "with":
        with results:
            pass
    else:
        del results
    assert alive(seconds) == []
    assert open_box.run(["echo", "on"]).stdout == b"on\n"


def test_closing_the_sandbox_ends_its_batch(open_box: Sandbox) -> None:
    seconds = unique_seconds()
    results = open_box.map([["sleep", seconds]] * 4, workers=2)
    eventually(lambda: len(alive(seconds)) == 2)
    open_box.close()
    with pytest.raises(ContainmentError, match="closed"):
        list(results)
    assert alive(seconds) == []


@pytest.mark.parametrize("workers", ["2", 0, -1, True, 1.5])
def test_workers_must_be_positive(box: Sandbox, workers: Any) -> None:
    with pytest.raises(ValueError, match="workers must be a whole number of at least 1"):
        box.map([], workers=workers)


def _busy(box: Sandbox) -> list[Any]:
    return [warden for warden in box._pool._wardens if warden.streams is not None]


def _lose_the_first_try(box: Sandbox, project: Path, call: dict[str, Any], **settings: Any) -> SandboxResult:
    """Kill the warden of a running call, then let the remaining processes end."""
    tries = project / "tries"
    tries.write_text("")
    results = box.map([{"shell": f"echo x >> tries; {WAIT}", **call}, ["touch", "other"]], workers=2, **settings)
    eventually(lambda: tries.read_text() == "x\n")
    # The other call has ended, so the busy warden belongs to the first one.
    eventually(lambda: (project / "other").exists() and len(_busy(box)) == 1)
    _busy(box)[0].kill()
    (project / "go").touch()
    return next(results)


@pytest.mark.parametrize(
    ("call", "settings"),
    [
        pytest.param({"idempotent": True}, {}, id="set by the call"),
        pytest.param({}, {"idempotent": True}, id="set for all calls"),
    ],
)
def test_idempotent_call_is_repeated_after_its_warden_died(
    open_box: Sandbox, project: Path, call: dict[str, Any], settings: dict[str, Any]
) -> None:
    result = _lose_the_first_try(open_box, project, call, **settings)
    assert (result.exit_code, result.violations) == (0, ())
    assert (project / "tries").read_text() == "x\nx\n"


@pytest.mark.parametrize(
    ("call", "settings"),
    [
        pytest.param({}, {}, id="default"),
        pytest.param({"idempotent": False}, {"idempotent": True}, id="unset by the call"),
    ],
)
def test_other_calls_run_once_and_report_warden_lost(
    open_box: Sandbox, project: Path, call: dict[str, Any], settings: dict[str, Any]
) -> None:
    result = _lose_the_first_try(open_box, project, call, **settings)
    assert (result.exit_code, [violation.kind for violation in result.violations]) == (137, ["warden-lost"])
    assert (project / "tries").read_text() == "x\n"


def test_failed_command_is_not_repeated(open_box: Sandbox, project: Path) -> None:
    list(
        open_box.map([{"shell": "echo x >> tries; exit 3"}, {"shell": "echo x >> tries; kill -9 $$"}], idempotent=True)
    )
    assert (project / "tries").read_text() == "x\nx\n"


def test_limit_or_timeout_is_not_a_lost_warden() -> None:
    lost = SandboxResult(("x",), 137, violations=(Violation("warden-lost"),))
    assert was_lost(lost)
    assert not was_lost(lost.replace(timed_out=True))
    assert not was_lost(lost.replace(violations=(Violation("memory-limit"), Violation("warden-lost"))))


def test_on_result_gets_every_result_of_a_batch(project: Path) -> None:
    heard: list[bytes] = []
    with Sandbox(SandboxConfig(project), on_result=lambda result: heard.append(result.stdout)) as box:
        list(box.map([["echo", str(n)] for n in range(10)], workers=2))
    assert sorted(heard) == [f"{n}\n".encode() for n in range(10)]


def test_pickled_work_carries_a_copy_of_the_project(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    box = open_sandbox(limits=Limits(open_files=123))
    (project / "notes.txt").write_text("pears\n")
    here = LocalWork(box.config, box.start)
    worker = pickle.loads(pickle.dumps(here)).begin()
    place = worker._place.path
    calls = [
        ["cat", "notes.txt"],
        {"shell": "ulimit -n; echo new > notes.txt; cat notes.txt"},
        {"argv": ["ls"], "cwd": "."},
    ]
    try:
        ours = list(box.map([calls[0]]))
        theirs = worker.do_all([parse_batch_call(call) for call in calls])
    finally:
        worker.close()
    assert [told(result) for result in theirs[:2]] == [(0, b"pears\n", b""), (0, b"123\nnew\n", b"")]
    differs = {name for name in ours[0]._fields if getattr(ours[0], name) != getattr(theirs[0], name)}
    assert differs <= {"id", "started_at", "duration_ms", "usage"}
    assert (project / "notes.txt").read_text() == "pears\n"
    assert not Path(place).exists()


def test_lost_worker_gives_worker_lost_results(box: Sandbox) -> None:
    result = LocalWork(box.config, box.start).lost(BatchCall(Call(["make"])), "its node died")
    assert (result.argv, result.exit_code, result.ok) == (("make",), 137, False)
    (violation,) = result.violations
    assert violation == Violation("worker-lost", detail="its node died; whether the command ran is not known")
    assert SandboxResult.from_dict(result.to_dict()) == result


def test_project_archive_keeps_files_modes_and_links_only(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    (before / "sub" / "empty").mkdir(parents=True)
    (before / "sub" / "tool").write_bytes(b"\0\xff")
    (before / "sub" / "tool").chmod(0o750)
    os.symlink("/etc/passwd", before / "outside")
    os.symlink("tool", before / "sub" / "alias")
    os.link(before / "sub" / "tool", before / "twin")
    Path(os.fsdecode(os.fsencode(before) + b"/caf\xe9")).write_text("x")
    os.mkfifo(before / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(before / "socket"))
    unpack(pack(str(before)), str(after))
    found = {os.fsencode(path.relative_to(after)) for path in after.rglob("*")}
    assert found == {b"sub", b"sub/empty", b"sub/tool", b"sub/alias", b"outside", b"twin", b"caf\xe9"}
    assert (after / "sub" / "tool").read_bytes() == (after / "twin").read_bytes() == b"\0\xff"
    assert stat.S_IMODE((after / "sub" / "tool").stat().st_mode) == 0o750
    assert os.readlink(after / "outside") == "/etc/passwd"
    assert os.readlink(after / "sub" / "alias") == "tool"
