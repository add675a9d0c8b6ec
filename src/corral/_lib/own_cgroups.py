"""Finds the control groups that this process is in, and the memory bound they set."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Home = tuple[int, frozenset[str], str]  # version, controllers and directory

MEMORY_BOUND_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def own_groups() -> list[Home]:
    """Return version, controllers and directory of each control group that this process is in."""
    return list(find_cgroups(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo")))


def own_memory_limit() -> int:
    """Return the bytes of memory available to this process: the machine's, or its group's where that has fewer."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for version, controllers, directory in own_groups():
        if version == 2 or "memory" in controllers:
            said = read_text(f"{directory}/{MEMORY_BOUND_FILES[version]}").strip()
            found = min(found, int(said)) if said.isdigit() else found
    return found


def find_cgroups(cgroup: str, mountinfo: str) -> Iterator[Home]:
    """Return version, controllers and directory of each group that this process is in; those of version 1 first."""
    mounts = [_mount(line) for line in mountinfo.splitlines() if " - cgroup" in line]
    for line in cgroup.splitlines():
        number, names, path = line.split(":", 2)
        controllers = frozenset(names.split(","))
        for version, counted, root, point in mounts:
            if (version == 2) != (number == "0") or (version == 1 and not controllers <= counted):
                continue
            # A container sees only the part of the hierarchy that was mounted for it.
            if root not in ("/", path) and not path.startswith(f"{root}/"):
                continue
            below = path if root == "/" else path[len(root) :]
            yield version, controllers, f"{point}{below}".rstrip("/")
            break


def _mount(line: str) -> tuple[int, frozenset[str], str, str]:
    here, _, there = line.partition(" - ")
    _, _, _, root, point, *_ = here.split(" ")
    kind, _, options = there.split(" ", 2)
    return (2 if kind == "cgroup2" else 1), frozenset(options.split(",")), root, point


def read_text(path: str) -> str:
    """Return the text of a kernel file, or nothing where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
