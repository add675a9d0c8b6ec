"""Finds the cgroups of this process, and the memory limit that they set."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Home = tuple[int, frozenset[str], str]  # version, controllers and directory

MEMORY_BOUND_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def own_groups() -> list[Home]:
    """Return version, controllers and directory of each cgroup of this process."""
    return list(find_cgroups(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo")))


def own_memory_limit() -> int:
    """Return the memory of the machine in bytes, or the limit of this process's cgroups if that is less."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for version, controllers, directory in own_groups():
        if version == 2 or "memory" in controllers:
            limit = read_text(f"{directory}/{MEMORY_BOUND_FILES[version]}").strip()
            found = min(found, int(limit)) if limit.isdigit() else found
    return found


def find_cgroups(cgroup: str, mountinfo: str) -> Iterator[Home]:
    """Parse /proc/self/cgroup and mountinfo into version, controllers and directory of each cgroup, version 1 first."""
    mounts = [_mount(line) for line in mountinfo.splitlines() if " - cgroup" in line]
    for line in cgroup.splitlines():
        number, names, path = line.split(":", 2)
        controllers = frozenset(names.split(","))
        for version, counted, root, point in mounts:
            if (version == 2) != (number == "0") or (version == 1 and not controllers <= counted):
                continue
            # In a container only a part of the hierarchy is mounted.
            if root not in ("/", path) and not path.startswith(f"{root}/"):
                continue
            below = path if root == "/" else path[len(root) :]
            yield version, controllers, f"{point}{below}".rstrip("/")
            break


def _mount(line: str) -> tuple[int, frozenset[str], str, str]:
    mount, _, filesystem = line.partition(" - ")
    _, _, _, root, point, *_ = mount.split(" ")
    kind, _, options = filesystem.split(" ", 2)
    return (2 if kind == "cgroup2" else 1), frozenset(options.split(",")), root, point


def read_text(path: str) -> str:
    """Return the text of a kernel file, empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
