"""Background processes and their output buffer: offsets, whole characters, bounds, and the end of idle processes."""

import anyio
import pytest
from mcp_client_ways import drive
from observe import alive, eventually, unique_seconds

from corral import Sandbox
from corral.integrations.mcp.background_jobs import (
    BUFFER_BYTES,
    IDLE_SECONDS,
    MAX_KNOWN,
    READ_BYTES,
    Job,
    JobError,
    Jobs,
    OutputBuffer,
)


def read_all(log: OutputBuffer, *, is_over: bool) -> str:
    text, since = "", 0
    while True:
        more, offset, following = log.read(since, is_over=is_over)
        assert offset == since
        if following == since:
            return text
        text, since = text + more, following


def test_pieces_add_up_to_the_whole_output() -> None:
    log, text = OutputBuffer(), "é漢🐎" * 10_000
    data = text.encode()
    for start in range(0, len(data), 777):
        log.feed(data[start : start + 777])
        assert text.startswith(read_all(log, is_over=False))
    assert read_all(log, is_over=True) == text


def test_incomplete_character_is_held_back_until_the_end() -> None:
    log = OutputBuffer()
    log.feed("aé".encode()[:-1])
    assert log.read(0, is_over=False) == ("a", 0, 1)
    assert log.read(0, is_over=True) == ("a\ufffd", 0, 2)
    log.feed(b"\xffb")
    # An invalid byte is not held back.
    assert log.read(0, is_over=False) == ("a\ufffd\ufffdb", 0, 4)


def test_dropped_output_is_counted_by_the_offset() -> None:
    log = OutputBuffer(10)
    log.feed(b"0123456789abcde")
    assert log.read(0, is_over=False) == ("56789abcde", 5, 15)
    assert log.read(12, is_over=False) == ("cde", 12, 15)
    assert log.read(99, is_over=False) == ("", 15, 15)


def test_one_read_is_bounded() -> None:
    log = OutputBuffer()
    log.feed(b"x" * (2 * BUFFER_BYTES))
    text, offset, following = log.read(0, is_over=False)
    assert (len(text), offset, following) == (READ_BYTES, BUFFER_BYTES, BUFFER_BYTES + READ_BYTES)


@pytest.mark.parametrize(
    ("data", "line"),
    [(b"", ""), (b"one\n\n \n", "one"), (b"one\ntwo", "two"), (b"\xff\n", "\ufffd"), (b"\n", "")],
)
def test_last_line_is_the_last_nonempty_one(data: bytes, line: str) -> None:
    log = OutputBuffer(4096)
    log.feed(data)
    assert log.last_line() == line


def test_new_output_wakes_a_waiting_reader() -> None:
    async def body() -> None:
        log, woken = OutputBuffer(), 0

        async def wait() -> None:
            nonlocal woken
            await log.more()
            woken += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            log.feed(b"x")
        assert woken == 3

    drive(body)


def test_idle_process_is_ended(open_box: Sandbox) -> None:
    async def body() -> None:
        jobs, asked, forgotten = Jobs(), unique_seconds(), unique_seconds()
        made = [
            Job(await open_box.astart(["sleep", seconds], timeout_seconds=600), OutputBuffer(), None, "")  # type: ignore[arg-type]
            for seconds in (asked, forgotten)
        ]
        for job in made:
            jobs.add(job)
            job.used_at -= IDLE_SECONDS + 1
        eventually(lambda: alive(asked) and alive(forgotten))
        assert jobs.find(made[0].id, "") is made[0]
        await jobs.end(idle_seconds=IDLE_SECONDS)
        assert (len(alive(asked)), alive(forgotten)) == (1, [])
        with pytest.raises(JobError):
            jobs.find(made[1].id, "")
        await jobs.end()
        assert alive(asked) == []

    drive(body)


def test_oldest_ended_processes_are_forgotten(open_box: Sandbox) -> None:
    async def body() -> None:
        jobs, made = Jobs(), []
        for _ in range(MAX_KNOWN + 3):
            job = Job(await open_box.astart(["true"]), OutputBuffer(), None, "")  # type: ignore[arg-type]
            await job.handle
            jobs.add(job)
            made.append(job)
        for job in made[:3]:
            with pytest.raises(JobError, match="no such process"):
                jobs.find(job.id, "")
        assert [jobs.find(job.id, "") for job in made[3:]] == made[3:]

    drive(body)
