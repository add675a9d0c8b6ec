"""Tests of the recency gate with files and with other things that have versions."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.integrations.gates import Chain, FileStates, Recency, Refusal, ToolCall
from corral.integrations.gates.project_files import MAX_HASHED_BYTES
from corral.integrations.gates.recency import ABSENT
from golden import check

READ = ToolCall("read_file", reads=("a.py",))
WRITE = ToolCall("write_file", writes=("a.py",))


@pytest.fixture
def file(project: Path) -> Path:
    (project / "a.py").write_text("one")
    return project / "a.py"


def rule_of(refusal: Refusal | None) -> str:
    """Return the rule of a refusal about a.py, and check its message."""
    assert refusal is not None
    check("gate-messages", refusal.rule, f"{refusal.reason} {refusal.instead}")
    return refusal.rule


def gate_after_read(file: Path) -> Recency:
    gate = Recency(FileStates(file.parent))
    with Chain(gate).passage(READ):
        pass
    return gate


def test_unchanged_file_may_be_written(file: Path) -> None:
    assert gate_after_read(file).judge(WRITE, 0.0) is None


def test_file_changed_since_it_was_read_may_not_be_written(file: Path) -> None:
    gate = gate_after_read(file)
    file.write_text("two")
    assert rule_of(gate.judge(WRITE, 0.0)) == "gate-stale"


def test_changed_file_may_be_written_after_reading_it_again(file: Path) -> None:
    gate = gate_after_read(file)
    file.write_text("two")
    with Chain(gate).passage(READ):
        pass
    assert gate.judge(WRITE, 0.0) is None


def test_reading_is_never_refused(file: Path) -> None:
    gate = gate_after_read(file)
    file.write_text("two")
    assert gate.judge(READ, 0.0) is None


def test_change_with_same_size_and_times_is_detected(file: Path) -> None:
    gate = gate_after_read(file)
    times = file.stat()
    file.write_text("eno")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert rule_of(gate.judge(WRITE, 0.0)) == "gate-stale"


def test_touch_is_not_a_change(file: Path) -> None:
    gate = gate_after_read(file)
    os.utime(file, (1, 1))
    assert gate.judge(WRITE, 0.0) is None


def test_removed_file_counts_as_changed(file: Path) -> None:
    gate = gate_after_read(file)
    file.unlink()
    assert rule_of(gate.judge(WRITE, 0.0)) == "gate-stale"


def test_file_changed_during_the_read_is_stale(file: Path) -> None:
    gate = Recency(FileStates(file.parent))
    with Chain(gate).passage(READ):
        file.write_text("two")
    assert rule_of(gate.judge(WRITE, 0.0)) == "gate-stale"


def test_own_write_is_not_stale(file: Path) -> None:
    gate = gate_after_read(file)
    with Chain(gate).passage(WRITE) as passage:
        assert passage.may_run
        file.write_text("mine")
    assert gate.judge(WRITE, 0.0) is None
    file.write_text("theirs")
    assert rule_of(gate.judge(WRITE, 0.0)) == "gate-stale"


def test_failed_write_leaves_the_file_stale(file: Path) -> None:
    gate = gate_after_read(file)

    def fail() -> None:
        file.write_text("ha")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"), Chain(gate).passage(WRITE):
        fail()
    assert rule_of(gate.judge(WRITE, 0.0)) == "gate-stale"


@pytest.mark.parametrize("name", ["./a.py", "sub/../a.py", "link.py"], ids=["dot", "dot dot", "symlink"])
def test_other_name_of_the_same_file_is_stale_too(file: Path, name: str) -> None:
    (file.parent / "sub").mkdir()
    (file.parent / "link.py").symlink_to("a.py")
    gate = gate_after_read(file)
    file.write_text("two")
    refusal = gate.judge(ToolCall("write_file", writes=(name,)), 0.0)
    assert refusal is not None
    assert refusal.rule == "gate-stale"


def test_must_read_refuses_an_unread_existing_file(file: Path) -> None:
    states = FileStates(file.parent)
    assert Recency(states).judge(WRITE, 0.0) is None
    assert rule_of(Recency(states, must_read=True).judge(WRITE, 0.0)) == "gate-unread"
    assert Recency(states, must_read=True).judge(ToolCall("write_file", writes=("new.py",)), 0.0) is None


def test_observation_expires_by_the_given_clock(file: Path) -> None:
    gate = Recency(FileStates(file.parent), max_age_seconds=60)
    gate.observe("a.py", 100.0)
    assert gate.judge(WRITE, 160.0) is None
    assert rule_of(gate.judge(WRITE, 161.0)) == "gate-old"


def test_based_on_version_that_changed_is_refused() -> None:
    versions = {"ticket:7": "v1"}
    gate = Recency(lambda name: versions.get(name, ABSENT))
    call = ToolCall("close_ticket", based_on={"ticket:7": "v1"})
    assert gate.judge(call, 0.0) is None
    versions["ticket:7"] = "v2"
    refusal = gate.judge(call, 0.0)
    assert refusal is not None
    assert refusal.rule == "gate-stale"


def test_failing_version_function_refuses() -> None:
    def version_of(name: str) -> str:
        raise OSError

    assert Chain(Recency(version_of)).decide(ToolCall("w", based_on={"a": "1"})).rule == "gate-crash"


@given(st.lists(st.tuples(st.sampled_from(["read", "change", "write"]), st.sampled_from("ab"))))
def test_write_is_refused_iff_the_thing_changed_since_read(steps: list[tuple[str, str]]) -> None:
    versions = dict.fromkeys("ab", 0)
    gate = Recency(lambda name: str(versions[name]))
    chain = Chain(gate)
    known: dict[str, int] = {}
    for step, name in steps:
        if step == "read":
            with chain.passage(ToolCall("read", reads=(name,))):
                known[name] = versions[name]
        elif step == "change":
            versions[name] += 1
        else:
            with chain.passage(ToolCall("write", writes=(name,))) as passage:
                assert passage.may_run is (known.get(name, versions[name]) == versions[name])
                if passage.may_run:
                    versions[name] += 1
                    known[name] = versions[name]


def test_special_files_do_not_block(project: Path) -> None:
    os.mkfifo(project / "pipe")
    states = FileStates(project)
    assert states("pipe") == "special:10000"
    assert states(".") == "special:40000"
    assert (states("absent"), states("a\0b"), states("a/b")) == (ABSENT, ABSENT, ABSENT)


def test_large_file_is_known_by_size_and_times(project: Path) -> None:
    states = FileStates(project)
    with open(project / "a", "wb") as file:
        file.truncate(MAX_HASHED_BYTES)
    assert states("a").startswith("sha256:")
    with open(project / "a", "ab") as file:
        file.write(b"x")
    before = states("a")
    with open(project / "a", "ab") as file:
        file.write(b"y")
    assert before.startswith("stat:")
    assert states("a") != before
