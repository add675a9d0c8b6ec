"""Control groups, where this process may make them: a bound on processes that binds root too, and the kernel's own word when it is hit."""

from __future__ import annotations

import os


def place() -> str | None:
    """Return the directory in which a group that counts processes can be made, or None."""
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            bases = ["/sys/fs/cgroup/pids"]
        elif number == "0":
            bases = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        else:
            continue
        for base in bases:
            directory = f"{base}{path}".rstrip("/")
            counted = number != "0" or "pids" in _read(f"{directory}/cgroup.subtree_control").split()
            if counted and _can_make(directory):
                return directory
    return None


def make(directory: str, pid: int, processes: int) -> str:
    """Put a process into a new group of at most so many, itself not counted; return the group."""
    group = f"{directory}/corral-{os.getpid()}-{pid}"
    os.mkdir(group)
    _write(f"{group}/pids.max", processes + 1)
    _write(f"{group}/cgroup.procs", pid)
    return group


def remove(group: str) -> None:
    """Remove a group that is empty."""
    try:
        os.rmdir(group)
    except OSError:
        # A process in it is still dying.
        return


def open_events(group: str) -> int:
    """Open the count of how often the bound was hit, for a process that will not see the group later."""
    return os.open(f"{group}/pids.events", os.O_RDONLY | os.O_CLOEXEC)


def hits(events: int) -> int:
    """Return how often the bound was hit so far."""
    return int(os.pread(events, 64, 0).split()[1])


def _can_make(directory: str) -> bool:
    probe = f"{directory}/corral-{os.getpid()}-probe"
    try:
        os.mkdir(probe)
    except OSError:
        return False
    os.rmdir(probe)
    return True


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, number: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"%d" % number)
    finally:
        os.close(descriptor)
