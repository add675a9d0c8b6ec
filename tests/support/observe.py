"""Helpers that observe processes and descriptors from outside the sandbox."""

import itertools
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from corral import Handle, SandboxResult

# Only a failing test waits this long. A busy machine must not fail a test.
DEADLINE_SECONDS = 60.0
T = TypeVar("T")


def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds. Fail if it does not hold in time."""
    until = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < until, "the condition never came to hold"
        time.sleep(0.005)


def with_enough_time(run: Callable[[float], T], has_begun: Callable[[T], object]) -> T:
    """Return the result of a command that had time to start before its limit ended it. Try longer limits on a slow machine."""
    for seconds in (0.5, 2.0, 8.0, 32.0):
        ended = run(seconds)
        if has_begun(ended):
            return ended
    raise AssertionError("the command never started, not even with the longest limit")


def until_alive(started: Handle, marker: str) -> None:
    """Wait until a command runs. Fail with its result if it ends before it is seen."""

    def is_alive() -> bool:
        result = started.poll()
        assert result is None, result
        return bool(alive(marker))

    eventually(is_alive)


def seen_before_its_end(started: Handle, fact: Callable[[], object]) -> SandboxResult | None:
    """Return a command's result, or None if the condition did not hold while it ran."""
    is_seen = False
    while started.poll() is None:
        is_seen = is_seen or bool(fact())
        time.sleep(0.005)
    return started.wait() if is_seen else None


_ports = itertools.count(20_000 + os.getpid() % 1000 * 10)


def free_port() -> int:
    """Return a free port below the kernel's ephemeral range, so that no other process gets it by chance before the test uses it."""
    for port in _ports:
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise AssertionError("unreachable")


def alive(marker: str) -> list[int]:
    """Return the processes that have a word in their command line, without zombies."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in words:
                found.append(int(name))
    return found


def children(pid: int) -> list[int]:
    """Return the children of a process, including zombies."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
    return found


def running() -> set[int]:
    """Return the children of this process from the kernel's own lists, which is cheap."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
        except OSError:
            # The thread has ended, or the kernel does not provide these lists.
            continue
    return found


def exist(*pids: int) -> bool:
    """Return True if any of these processes still runs. Zombies do not count."""
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return True
        except OSError:
            continue
    return False


def descriptors() -> dict[str, str]:
    """Return this process's open descriptors and their targets."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


_numbers = iter(range(1, 1_000_000))


def unique_seconds() -> str:
    """Return a duration for `sleep` that no other test on this machine uses, to recognise the process by."""
    return f"{3000 + next(_numbers)}.{os.getpid():07d}"


def in_foreground(pid: int) -> bool:
    """Return True if a process runs in the foreground of its terminal."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return fields[0] != "T" and fields[2] == fields[5]
