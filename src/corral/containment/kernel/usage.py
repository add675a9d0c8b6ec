"""Measures, in the keeper, the resource usage of a command and its descendants, and compares it with the limits.

It reads the control group where there is one. Otherwise it walks the process tree: the keeper may read processes that are
hidden from others.
"""

from __future__ import annotations

import os

from corral.containment import protocol
from corral.containment.kernel import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.containment.kernel.cgroups import Group
    from corral.containment.plan import LimitPlan

_DISK_LIMITS = (
    ("free_disk_bytes", protocol.DISK_NEARLY_FULL),
    ("free_inodes", protocol.INODES_NEARLY_USED_UP),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name: own times, times of reaped children, threads, start time.
_OWN_TIMES, _CHILDREN_TIMES, _THREADS, _STARTED = slice(11, 13), slice(13, 15), 17, 19


class Meter:
    """Measures the commands of one warden, which run one after another."""

    def __init__(self, warden: int, group: Group | None, plan: LimitPlan, places: tuple[str, ...]) -> None:
        self.warden = warden
        self.group = group
        self.groups = frozenset(group.directories) if group else frozenset()
        self.limits: Mapping[str, int] = plan.limits
        self.counts_by_user = plan.counts_by_user
        self.places = places  # the directories that commands write to
        self.nonce = b""
        self.cpu_at_start = 0.0
        self.free_at_start: dict[str, tuple[int, int]] = {}  # bytes and inodes
        # Writes to a tmpfs are not in /proc/PID/io, so the size of its files is counted.
        self.in_memory = [place for place in self.places if _device(place) in _devices_in_memory()]
        self.held_at_start = 0
        self.seen: dict[tuple[int, bytes], float] = {}

    def answer(self, asked: bytes) -> bytes:
        """Answer a warden, which reports what its reaped processes used: the memory in use, and the exceeded limits."""
        nonce, cpu_seconds, written_bytes, shared_bytes = protocol.ASK.unpack(asked)
        is_first = nonce != self.nonce
        if is_first:
            self.nonce, self.seen = nonce, {}
        pids = process_tree.descendants(self.warden) if self._walks(is_first=is_first) else []
        memory_bytes = self._memory(pids, shared_bytes)
        exceeded = self._process_flags(pids)
        if self._exceeds("memory_bytes", memory_bytes) and "memory" not in self.groups:
            exceeded |= protocol.TOO_MUCH_MEMORY
        if "cpu_seconds" in self.limits and self._exceeds(
            "cpu_seconds", self._cpu(pids, cpu_seconds, is_first=is_first)
        ):
            exceeded |= protocol.TOO_MUCH_CPU
        if "disk_bytes" in self.limits:
            written_bytes += shared_bytes + sum(_written(pid) for pid in pids) + self._held(is_first=is_first)
            exceeded |= protocol.TOO_MUCH_WRITTEN if self._exceeds("disk_bytes", written_bytes) else 0
        if "free_disk_bytes" in self.limits or "free_inodes" in self.limits:
            exceeded |= self._disk_flags(is_first=is_first)
        return protocol.ANSWER.pack(nonce, memory_bytes, exceeded)

    def _exceeds(self, name: str, used: float) -> bool:
        return used > self.limits.get(name, used)

    def _walks(self, *, is_first: bool) -> bool:
        return (
            "disk_bytes" in self.limits
            or ("memory_bytes" in self.limits and "memory" not in self.groups)
            or ("processes" in self.limits and "pids" not in self.groups)
            or ("cpu_seconds" in self.limits and (is_first or "cpu" not in self.groups))
        )

    def _memory(self, pids: list[int], shared_bytes: int) -> int:
        if self.group and "memory" in self.groups:
            return self.group.memory_bytes()
        if "memory_bytes" not in self.limits:
            return 0
        # The sum of resident memory is quick and never too low. Shared pages are plan apart only if that sum exceeds the
        # limit, since it is slow.
        if not self._exceeds("memory_bytes", sum(_resident(pid) for pid in pids) + shared_bytes):
            return 0
        parts = [_proportional(pid) for pid in pids]
        return sum(private for private, _ in parts) + max(sum(shared for _, shared in parts), shared_bytes)

    def _process_flags(self, pids: list[int]) -> int:
        if "processes" not in self.limits or "pids" in self.groups:
            return 0
        threads = sum(int(fields[_THREADS]) for pid in pids if (fields := _stat(pid)))
        if self.counts_by_user:
            return protocol.PROCESS_LIMIT_REACHED if threads >= self.limits["processes"] else 0
        return protocol.TOO_MANY_PROCESSES if self._exceeds("processes", threads) else 0

    def _cpu(self, pids: list[int], collected: float, *, is_first: bool) -> float:
        if self.group and "cpu" in self.groups:
            now = self.group.cpu_seconds()
            if is_first:
                # The group has counted earlier commands too.
                self.cpu_at_start = now - collected - self._tree_cpu_seconds(pids)
            return now - self.cpu_at_start
        return max(collected + self._tree_cpu_seconds(pids), sum(self.seen.values()))

    def _tree_cpu_seconds(self, pids: list[int]) -> float:
        ticks = 0
        for pid in pids:
            fields = _stat(pid)
            if fields:
                own = sum(map(int, fields[_OWN_TIMES]))
                ticks += own + sum(map(int, fields[_CHILDREN_TIMES]))
                # If a parent ignores SIGCHLD, the kernel does not add the times of its children to it.
                self.seen[pid, fields[_STARTED]] = own / _TICKS_PER_SECOND
        return ticks / _TICKS_PER_SECOND

    def _held(self, *, is_first: bool) -> int:
        held = sum(_size(place) for place in self.in_memory)
        if is_first:
            self.held_at_start = held
        return max(held - self.held_at_start, 0)

    def _disk_flags(self, *, is_first: bool) -> int:
        free = {place: _free(place) for place in self.places}
        if is_first:
            self.free_at_start = free
        flags = 0
        for place, before in self.free_at_start.items():
            for number, (limit, flag) in enumerate(_DISK_LIMITS):
                # On a disk that was almost full before, the limit is half of what was free. File systems that count no inodes
                # report none as free.
                if free[place][number] < min(self.limits.get(limit, 0), before[number] // 2):
                    flags |= flag
        return flags


def _free(place: str) -> tuple[int, int]:
    """Return the bytes and inodes that the user can still use on a directory's file system."""
    try:
        found = os.statvfs(place)
    except OSError:
        # A directory that was removed fills no disk.
        return 1 << 62, 1 << 62
    return found.f_bavail * found.f_frsize, found.f_favail


def _device(place: str) -> int:
    try:
        return os.stat(place).st_dev
    except OSError:
        return 0


def _devices_in_memory() -> set[int]:
    with open("/proc/self/mountinfo", "rb", buffering=0) as file:
        numbers = [line.split()[2].split(b":") for line in file.read().splitlines() if b" - tmpfs " in line]
    return {os.makedev(int(major), int(minor)) for major, minor in numbers}


def _size(place: str) -> int:
    """Return the disk usage of the files below a directory."""
    found, left = 0, [place]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        found += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            # The directory was removed meanwhile.
            continue
    return found


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        # The process has ended meanwhile.
        return b""


def _stat(pid: int) -> list[bytes]:
    # The program's name is in parentheses and can contain any character.
    return _read(pid, "stat").rpartition(b")")[2].split()


def _resident(pid: int) -> int:
    fields = _read(pid, "statm").split()
    return int(fields[1]) * _PAGE_BYTES if fields else 0


def _proportional(pid: int) -> tuple[int, int]:
    """Return a process's proportional private and shared memory. If the kernel hides them, all that is resident is private."""
    text = _read(pid, "smaps_rollup")
    if b"Pss_Shmem:" not in text:
        return _resident(pid), 0
    private, shared = (
        int(text.partition(word)[2].split(maxsplit=1)[0]) * 1024 for word in (b"Pss_Anon:", b"Pss_Shmem:")
    )
    return private, shared


def _written(pid: int) -> int:
    text = _read(pid, "io").partition(b"\nwrite_bytes: ")[2]
    return int(text.split(maxsplit=1)[0]) if text else 0
