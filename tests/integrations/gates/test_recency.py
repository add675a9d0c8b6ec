"""Nothing is changed on the strength of what no longer holds: files, and things of any other kind with a version."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.integrations.gates import Chain, FileStates, Recency, Refusal, ToolCall
from corral.integrations.gates.file_versions import MAX_HASHED_BYTES
from corral.integrations.gates.recency import ABSENT

STALE = Refusal("gate-stale", "a.py changed since it was read.", "Read a.py again, then decide anew.")
READ = ToolCall("read_file", reads=("a.py",))
WRITE = ToolCall("write_file", writes=("a.py",))


@pytest.fixture
def file(project: Path) -> Path:
    (project / "a.py").write_text("one")
    return project / "a.py"


def seen(file: Path) -> Recency:
    gate = Recency(FileStates(file.parent))
    with Chain(gate).passage(READ):
        pass
    return gate


def test_a_file_that_is_as_it_was_read_may_be_written(file: Path) -> None:
    assert seen(file).judge(WRITE, 0.0) is None


def test_a_file_that_changed_since_it_was_read_may_not(file: Path) -> None:
    gate = seen(file)
    file.write_text("two")
    assert gate.judge(WRITE, 0.0) == STALE


def test_a_file_that_was_read_again_may_be_written(file: Path) -> None:
    gate = seen(file)
    file.write_text("two")
    with Chain(gate).passage(READ):
        pass
    assert gate.judge(WRITE, 0.0) is None


def test_reading_is_never_refused(file: Path) -> None:
    gate = seen(file)
    file.write_text("two")
    assert gate.judge(READ, 0.0) is None


def test_a_change_that_leaves_size_and_times_as_they_were_is_one(file: Path) -> None:
    gate = seen(file)
    times = file.stat()
    file.write_text("eno")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert gate.judge(WRITE, 0.0) == STALE


def test_a_touch_is_no_change(file: Path) -> None:
    gate = seen(file)
    os.utime(file, (1, 1))
    assert gate.judge(WRITE, 0.0) is None


def test_a_file_that_is_gone_changed(file: Path) -> None:
    gate = seen(file)
    file.unlink()
    assert gate.judge(WRITE, 0.0) == STALE


def test_a_file_that_changes_while_it_is_read_was_not_seen_as_it_is(file: Path) -> None:
    gate = Recency(FileStates(file.parent))
    with Chain(gate).passage(READ):
        file.write_text("two")
    assert gate.judge(WRITE, 0.0) == STALE


def test_an_own_change_is_known(file: Path) -> None:
    gate = seen(file)
    with Chain(gate).passage(WRITE) as passage:
        assert passage.may_run
        file.write_text("mine")
    assert gate.judge(WRITE, 0.0) is None
    file.write_text("theirs")
    assert gate.judge(WRITE, 0.0) == STALE


def test_a_write_that_failed_half_way_leaves_the_file_unseen(file: Path) -> None:
    gate = seen(file)

    def fail() -> None:
        file.write_text("ha")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"), Chain(gate).passage(WRITE):
        fail()
    assert gate.judge(WRITE, 0.0) == STALE


@pytest.mark.parametrize("name", ["./a.py", "sub/../a.py", "link.py"], ids=["dotted", "up again", "a link"])
def test_one_file_under_two_names_is_one(file: Path, name: str) -> None:
    (file.parent / "sub").mkdir()
    (file.parent / "link.py").symlink_to("a.py")
    gate = seen(file)
    file.write_text("two")
    refusal = gate.judge(ToolCall("write_file", writes=(name,)), 0.0)
    assert refusal is not None
    assert refusal.rule == "gate-stale"


def test_a_file_that_was_never_read_may_be_written_unless_it_must_be_read(file: Path) -> None:
    states = FileStates(file.parent)
    assert Recency(states).judge(WRITE, 0.0) is None
    assert Recency(states, must_read=True).judge(WRITE, 0.0) == Refusal(
        "gate-unread", "a.py exists and was not read.", "Read a.py first, then change it."
    )
    assert Recency(states, must_read=True).judge(ToolCall("write_file", writes=("new.py",)), 0.0) is None


def test_an_observation_grows_old_by_the_clock_that_was_given(file: Path) -> None:
    gate = Recency(FileStates(file.parent), max_age_seconds=60)
    gate.observe("a.py", 100.0)
    assert gate.judge(WRITE, 160.0) is None
    refusal = gate.judge(WRITE, 161.0)
    assert refusal == Refusal(
        "gate-old", "a.py was read 61 seconds ago, longer than the 60 allowed.", "Read a.py again, then change it."
    )


def test_things_with_versions_of_their_own() -> None:
    versions = {"ticket:7": "v1"}
    gate = Recency(lambda name: versions.get(name, ABSENT))
    call = ToolCall("close_ticket", based_on={"ticket:7": "v1"})
    assert gate.judge(call, 0.0) is None
    versions["ticket:7"] = "v2"
    refusal = gate.judge(call, 0.0)
    assert refusal is not None
    assert refusal.rule == "gate-stale"


def test_a_source_of_versions_that_fails_refuses() -> None:
    def version_of(name: str) -> str:
        raise OSError

    assert Chain(Recency(version_of)).decide(ToolCall("w", based_on={"a": "1"})).rule == "gate-crash"


@given(st.lists(st.tuples(st.sampled_from(["read", "change", "write"]), st.sampled_from("ab"))))
def test_a_write_is_refused_exactly_where_the_thing_changed_since_it_was_read(steps: list[tuple[str, str]]) -> None:
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


def test_what_is_no_regular_file_is_not_waited_for(project: Path) -> None:
    os.mkfifo(project / "pipe")
    states = FileStates(project)
    assert states("pipe") == "special:10000"
    assert states(".") == "special:40000"
    assert (states("absent"), states("a\0b"), states("a/b")) == (ABSENT, ABSENT, ABSENT)


def test_a_large_file_is_known_by_size_and_times(project: Path) -> None:
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
