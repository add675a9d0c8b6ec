"""Tests where control groups can be made. The rules of version 2 are tested on a tree of plain files."""

import os
from pathlib import Path

import pytest

from corral._lib.own_cgroups import find_cgroups
from corral.containment.kernel import cgroups

SEPARATE = """\
30 24 0:27 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
31 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 24 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
33 24 0:30 / /dev/shm rw - tmpfs tmpfs rw
"""
ONE = "30 24 0:27 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
OF_A_CONTAINER = "30 24 0:27 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n"


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "homes"),
    [
        pytest.param(
            "8:pids:/\n2:cpuacct,cpu:/a/b\n0::/\n",
            SEPARATE,
            [
                (1, {"pids"}, "/sys/fs/cgroup/pids"),
                (1, {"cpu", "cpuacct"}, "/sys/fs/cgroup/cpu,cpuacct/a/b"),
                (2, {""}, "/sys/fs/cgroup/unified"),
            ],
            id="separate hierarchies",
        ),
        pytest.param("0::/user.slice/x.scope\n", ONE, [(2, {""}, "/sys/fs/cgroup/user.slice/x.scope")], id="one for all"),
        pytest.param("8:pids:/docker/abc/d\n", OF_A_CONTAINER, [(1, {"pids"}, "/sys/fs/cgroup/pids/d")], id="a part"),
        pytest.param("8:pids:/docker/abcd\n", OF_A_CONTAINER, [], id="a neighbour's part"),
        pytest.param("8:pids:/\n", OF_A_CONTAINER, [], id="above the part"),
        pytest.param("8:memory:/\n0::/\n", "", [], id="nothing is mounted"),
    ],
)  # fmt: skip
def test_own_groups_are_found_by_controller(
    cgroup: str, mountinfo: str, homes: list[tuple[int, set[str], str]]
) -> None:
    assert [(version, set(names), path) for version, names, path in find_cgroups(cgroup, mountinfo)] == homes


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A process's group below a delegated group, as plain files."""
    own = tmp_path / "a.service" / "own"
    own.mkdir(parents=True)
    for group in (own, own.parent):
        (group / "cgroup.type").write_text("domain\n")
    for name in ("memory.max", "pids.max"):
        (own / name).write_text("max\n")
    (own / "cpu.max").write_text("max 100000\n")
    return own


def test_delegated_parent_group_can_hold_groups(second: Path) -> None:
    assert cgroups.creatable_places(str(second)) == [str(second), str(second.parent)]


@pytest.mark.parametrize(
    ("name", "value"), [("memory.max", "1000\n"), ("pids.max", "5\n"), ("cpu.max", "1000 100000\n")]
)
def test_limited_process_makes_no_sibling_group(name: str, value: str, second: Path) -> None:
    (second / name).write_text(value)
    assert cgroups.creatable_places(str(second)) == [str(second)]


def test_systemd_slice_is_not_modified(second: Path) -> None:
    os.rename(second.parent, second.parent.with_name("a.slice"))
    own = str(second.parent.with_name("a.slice") / "own")
    assert cgroups.creatable_places(own) == [own]


def test_root_group_is_not_modified(second: Path) -> None:
    (second.parent / "cgroup.type").unlink()
    assert cgroups.creatable_places(str(second)) == [str(second)]


def test_cgroup_v2_limits_and_counters(tmp_path: Path) -> None:
    files = {
        "pids.max": "max\n",
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "cgroup.procs": "",
        "memory.stat": "anon 300\nfile 9\nkernel 8\nshmem 20\ninactive_anon 5\n",
        "cpu.stat": "usage_usec 1500000\nuser_usec 5\n",
        "pids.events": "max 0\n",
        "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\noom_group_kill 0\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    group = cgroups.Group(dict.fromkeys(("pids", "memory", "cpu"), (2, str(tmp_path))))
    group.set_limit("pids", 410)
    group.set_limit("memory", 9000)
    group.take(1234)
    # A plain file is not truncated by a shorter write.
    bounds = {"pids.max": "410\n", "memory.max": "9000", "memory.swap.max": "0ax\n", "cgroup.procs": "1234"}
    assert {name: (tmp_path / name).read_text() for name in bounds} == bounds
    assert (group.memory_bytes(), group.cpu_seconds(), group.hits("memory")) == (320, 1.5, 0)
    counters = group.counters()
    assert not any(counter.has_risen() for counter in counters.values())
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 0\noom_group_kill 0\n")
    assert not counters["memory"].has_risen()
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 1\noom_group_kill 0\n")
    (tmp_path / "pids.events").write_text("max 12\n")
    assert [(name, counter.has_risen()) for name, counter in counters.items()] == [("pids", True), ("memory", True)]
    assert not any(counter.has_risen() for counter in counters.values())
    for counter in counters.values():
        os.close(counter.descriptor)
