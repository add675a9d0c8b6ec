"""Tests that limits hold for a command and all its descendants, for root and for an ordinary user, and that the result names the limit.

Endless programs run only in a sandbox.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import attempt, run_attack
from observe import alive, children, eventually, unique_seconds

from corral import Containment, Limits, Sandbox, SandboxResult
from corral.containment import protocol
from corral.containment.kernel import cgroups
from corral.containment.kernel import usage as meter
from corral.containment.kernel.limit_monitor import LimitMonitor

MB = 1_000_000
IN_NAMESPACES = ("unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c")
FORKS = """
children = []
try:
    for _ in range(facts['tries']):
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        children.append(pid)
finally:
    if len(children) < facts['tries']:
        # Long enough for the meter to see it.
        time.sleep(facts.get('stays', 0))
    for pid in children:
        os.kill(pid, 9)
return True
"""
EATERS = {
    "one process": "kept = bytearray(facts['bytes'] * 8)\ntime.sleep(20)",
    "many that are small": """
for _ in range(40):
    if os.fork() == 0:
        kept = b'x' * (facts['bytes'] // 10)
        time.sleep(20)
        os._exit(0)
os.wait()  # until one of them is ended, or all are
""",
    "many that hide": """
for _ in range(40):
    if os.fork() == 0:
        libc.prctl(4, 0, 0, 0, 0)
        kept = b'x' * (facts['bytes'] // 10)
        time.sleep(20)
        os._exit(0)
os.wait()  # until one of them is ended, or all are
""",
    "shared pages": """
kept = mmap.mmap(-1, facts['bytes'] * 8)
for at in range(0, len(kept), 4096):
    kept[at] = 1
time.sleep(20)
""",
    "a file in shared memory": """
with open('/dev/shm/kept', 'wb') as file:
    for _ in range(64):
        file.write(bytes(facts['bytes'] // 8))
        file.flush()
time.sleep(20)
""",
}
SPINNERS = {
    "several processes": """
for _ in range(4):
    if os.fork() == 0:
        while True:
            pass
time.sleep(20)
""",
    "daemons": """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            pass
time.sleep(20)
""",
    "children that are never reaped": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        until = time.process_time() + 0.7
        while time.process_time() < until:
            pass
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
""",
}
FILL = """
place = facts['place'] or os.environ['HOME']
with open(place + '/filled', 'wb') as file:
    for _ in range(facts['megabytes']):
        file.write(bytes(1_000_000))
        file.flush()
        time.sleep(0.005)
return True
"""
HOPPER = """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                if os.fork():
                    os._exit(0)
            except OSError:
                pass
subprocess.run(['sleep', facts['seconds']])
"""


def counted(controller: str) -> bool:
    """Return whether control groups count commands here, so that the kernel reports a hit."""
    return controller in cgroups.find([controller])


def on_disk(place: Path) -> bool:
    """Return whether files in a directory are written to a disk."""
    return os.stat(place).st_dev not in meter._devices_in_memory()


@pytest.fixture
def bounded(open_sandbox: Callable[..., Sandbox]) -> Callable[..., Sandbox]:
    """Return a function that makes contained sandboxes with limits."""
    return lambda **limits: open_sandbox(limits=Limits(**limits))


def reported(result: SandboxResult) -> list[tuple[str, str, str, bool]]:
    """Return kind, limit, value and inference of each violation of a result."""
    return [(one.kind, one.grant, one.detail.rpartition(" ")[2], one.inferred) for one in result.violations]


def said(kind: str, field: str, value: object, *, inferred: bool = False) -> list[tuple[str, str, str, bool]]:
    return [(kind, f"limits.{field}", str(value), inferred)]


def run_held(box: Sandbox, body: str, **facts: object) -> SandboxResult:
    """Run an attack in a sandbox; check that no process of it is left and that the next command works."""
    result = run_attack(box, body, **facts)
    assert result.enforcement == "full"
    assert box.run("ls /proc > /tmp/l; grep -c '^[0-9]' /tmp/l", shell=True).stdout == b"2\n"
    return result


def test_processes_are_counted_per_command(bounded: Callable[..., Sandbox], loose: Sandbox) -> None:
    box = bounded(processes=12)
    assert attempt(loose, FORKS, tries=30) == "succeeded"
    for _ in range(2):
        assert attempt(box, FORKS, tries=9) == "succeeded"
        assert attempt(box, FORKS, tries=30).startswith("held:")


def test_process_limit_is_reported(bounded: Callable[..., Sandbox]) -> None:
    box = bounded(processes=12)
    result = run_held(box, FORKS, tries=30, stays=0 if counted("pids") else 2)
    assert reported(result) == said("process-limit", "processes", 12, inferred=not counted("pids"))
    assert run_held(box, FORKS, tries=5).violations == ()


def test_fork_bomb_is_contained_and_killed(bounded: Callable[..., Sandbox]) -> None:
    box = bounded(processes=40)
    result = box.run("f() { f | f & }; f 2>/dev/null; sleep 2", shell=True, timeout_seconds=15)
    assert reported(result) == said("process-limit", "processes", 40, inferred=not counted("pids"))
    assert box.run("ls /proc > /tmp/l; grep -c '^[0-9]' /tmp/l", shell=True).stdout == b"2\n"


def test_each_warden_has_its_own_count(bounded: Callable[..., Sandbox]) -> None:
    box = bounded(processes=12)
    with box.start("for i in 1 2 3 4 5 6 7 8; do sleep 30 & done; wait", shell=True):
        assert attempt(box, FORKS, tries=9) == "succeeded"


def test_forking_daemons_are_killed_under_a_limit(bounded: Callable[..., Sandbox]) -> None:
    box, seconds = bounded(processes=20), unique_seconds()
    result = run_attack(box, HOPPER, timeout_seconds=2, seconds=seconds)
    assert result.timed_out
    assert alive(seconds) == []
    assert run_held(box, "return True").ok


@pytest.mark.parametrize("how", [pytest.param(body, id=name) for name, body in EATERS.items()])
def test_memory_limit_is_for_all_processes_together(how: str, bounded: Callable[..., Sandbox]) -> None:
    box = bounded(memory_bytes=100 * MB)
    result = run_held(box, how, bytes=100 * MB)
    # Without a control group the kernel refuses a single allocation, and only the program reports it.
    refused = "MemoryError" in result.stderr_text
    assert refused <= (not counted("memory") and how == EATERS["one process"])
    assert reported(result) == said("memory-limit", "memory_bytes", 100 * MB, inferred=refused)


def test_shared_pages_are_counted_once(bounded: Callable[..., Sandbox]) -> None:
    body = "kept = b'x' * 40_000_000\nfor _ in range(8):\n    if os.fork() == 0:\n        time.sleep(2)\n        os._exit(0)\nfor _ in range(8):\n    os.wait()\nreturn True"
    result = run_held(bounded(memory_bytes=100 * MB), body)
    assert (result.stdout, result.violations) == (b"succeeded\n", ())


def test_memory_limit_is_named_even_if_the_warden_is_killed(
    bounded: Callable[..., Sandbox],
) -> None:
    lowered = "with open('/proc/self/oom_score_adj', 'w') as file:\n    file.write('0')\n"
    result = run_held(bounded(memory_bytes=100 * MB), lowered + EATERS["many that are small"], bytes=40 * MB)
    assert result.violations[0].kind == "memory-limit"


@pytest.mark.real
@pytest.mark.parametrize("how", [pytest.param(body, id=name) for name, body in SPINNERS.items()])
def test_cpu_limit_is_for_all_processes_together(how: str, bounded: Callable[..., Sandbox]) -> None:
    box = bounded(cpu_seconds=2)
    result = run_held(box, how)
    assert (reported(result), result.signal) == (said("cpu-limit", "cpu_seconds", 2), 9)
    # The usage of one command does not count for the next.
    assert run_held(box, "until = time.process_time() + 0.5\nwhile time.process_time() < until: pass\nreturn True").ok


@pytest.mark.parametrize("place", ["", "/tmp", "/dev/shm", "."])
def test_disk_limit_counts_all_writes(
    place: str, bounded: Callable[..., Sandbox], loose: Sandbox, project: Path
) -> None:
    box = bounded(disk_bytes=20 * MB)
    result = run_held(box, FILL, place=place, megabytes=600)
    assert reported(result) == said("disk-limit", "disk_bytes", 20 * MB)
    assert run_held(box, FILL, place=place, megabytes=5).violations == ()
    assert attempt(loose, FILL, place=".", megabytes=30) == "succeeded"
    assert (project / "filled").stat().st_size == 30 * MB


def test_limit_hit_by_a_short_command_is_reported(bounded: Callable[..., Sandbox], project: Path) -> None:
    if not on_disk(project):
        pytest.skip("writes to memory are counted only while the command runs")
    result = bounded(disk_bytes=1 * MB).run(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=8"])
    assert (result.ok, reported(result)) == (True, said("disk-limit", "disk_bytes", 1 * MB))


RESERVE = "with open('reserved', 'wb') as file:\n    return not libc.fallocate(file.fileno(), facts['mode'], ctypes.c_long(0), ctypes.c_long(100_000))"
RESERVE_BY_REQUEST = "with open('reserved', 'wb') as file:\n    fcntl.ioctl(file, 0x40305828, struct.pack('=hhxxxxqqIi16x', 0, 0, 0, 100_000, 0, 0))\n    return True"


@pytest.mark.parametrize(("body", "mode"), [(RESERVE, 0), (RESERVE, 1), (RESERVE, 16), (RESERVE_BY_REQUEST, 0)])
def test_disk_space_is_taken_only_by_writing(
    body: str, mode: int, held: Sandbox, loose: Sandbox, open_sandbox: Callable[..., Sandbox]
) -> None:
    if attempt(loose, body, mode=mode) != "succeeded":
        pytest.skip("this file system reserves nothing")
    assert attempt(held, body, mode=mode).startswith("held:")
    assert attempt(open_sandbox(limits=Limits(free_disk_bytes=None)), body, mode=mode) == "succeeded"
    assert attempt(held, "with open('f', 'wb') as file:\n    os.posix_fallocate(file.fileno(), 0, 100_000)\n    return True") == "succeeded"  # fmt: skip


FILL_BYTES = "for i in $(seq 200); do head -c 1000000 /dev/zero >> big; sleep 0.01; done"
FILL_INODES = "for i in $(seq 200); do touch $i.{1..30}; sleep 0.01; done"


def run_on_small_disk(tmp_path: Path, text: str, options: str, limits: str = "Limits()") -> tuple[str, int]:
    """Run shell text in a project on a tmpfs in a mount namespace of its own. Return what it reports, and the free inodes."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom corral import *\n"
        f"config = SandboxConfig(sys.argv[1], profile='workspace', containment=Containment(accept_partial=True), limits={limits})\n"
        "with Sandbox(config) as box:\n"
        f"    result = box.run({text!r}, shell=True)\n"
        "    print([(v.kind, v.grant) for v in result.violations], box.run(['true']).ok)\n"
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o {options} tmpfs "$1" && "$2" "$3" "$1" && df --output=iavail "$1" | tail -1'
    done = subprocess.run(
        [*IN_NAMESPACES, script, "sh", str(disk), sys.executable, str(program)],
        env=dict(os.environ) | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    reported, _, free = done.stdout.strip().rpartition("\n")
    assert reported, done.stderr
    return reported, int(free)


def test_free_disk_limit_is_on_by_default(tmp_path: Path) -> None:
    reported, _ = run_on_small_disk(tmp_path, FILL_BYTES, "size=100m")
    assert reported == "[('disk-full', 'limits.free_disk_bytes')] True"


def test_free_inodes_limit_is_on_by_default(tmp_path: Path) -> None:
    reported, free = run_on_small_disk(tmp_path, FILL_INODES, "size=100m,nr_inodes=2000")
    assert reported == "[('disk-full', 'limits.free_inodes')] True"
    assert free > 100


def test_inodes_can_be_used_up_without_the_limit(tmp_path: Path) -> None:
    reported, free = run_on_small_disk(tmp_path, FILL_INODES, "size=100m,nr_inodes=2000", "Limits(free_inodes=None)")
    assert (reported, free) == ("[] True", 0)


RAISE = {
    "its own soft and hard": "resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000))\nreturn True",
    "by prlimit": "resource.prlimit(0, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\nreturn True",
    "of the warden": "resource.prlimit(1, resource.RLIMIT_NOFILE, (5000, 5000))\nreturn True",
}


@pytest.mark.parametrize("how", RAISE)
def test_limit_cannot_be_raised_from_inside(how: str, bounded: Callable[..., Sandbox]) -> None:
    for limits in ({"open_files": 300, "file_size_bytes": MB}, {"open_files": 100, "file_size_bytes": MB}):
        assert attempt(bounded(**limits), RAISE[how]).startswith("held:")
    assert attempt(bounded(open_files=6000), RAISE["its own soft and hard"]) == "succeeded"


def test_limits_hold_without_containment(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(containment=Containment(backend="none"), limits=Limits(processes=12, cpu_seconds=1))
    result = run_attack(box, "for _ in range(5):\n    os.fork()\ntime.sleep(5)")
    assert reported(result) == said("process-limit", "processes", 12)
    result = run_attack(box, "while True: pass")
    assert reported(result) == said("cpu-limit", "cpu_seconds", 1)


def test_result_has_the_resource_usage(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    body = "with open('big', 'wb') as file:\n    file.write(bytes(5_000_000))\nfor _ in range(3):\n    if os.fork() == 0:\n        kept = b'x' * 40_000_000\n        time.sleep(2)\n        os._exit(0)\nfor _ in range(3):\n    os.wait()\nreturn True"
    usage = run_attack(open_sandbox(), body).usage
    assert usage.written_bytes >= 5_000_000 or not on_disk(project)
    assert usage.peak_memory_bytes >= (120_000_000 if counted("memory") else 40_000_000)


def groups_of(keeper: int) -> list[str]:
    """Return the control groups of a keeper."""
    places = {place for _, place in cgroups.find(["pids", "memory", "cpu"]).values()}
    return [name for place in places for name in os.listdir(place) if name.startswith(f"{cgroups._prefix()}{keeper}-")]


def test_no_control_group_is_left(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    box.run(["true"])
    (keeper,) = children(os.getpid())
    assert len(groups_of(keeper)) == len(cgroups.find(["pids", "memory"]))
    box.close()
    assert groups_of(keeper) == []


def test_groups_of_a_killed_keeper_are_removed_by_the_next(open_sandbox: Callable[..., Sandbox]) -> None:
    box, other = open_sandbox(), open_sandbox()
    box.run(["true"])
    (keeper,) = children(os.getpid())
    (warden,) = children(keeper)
    assert len(groups_of(keeper)) == len(cgroups.find(["pids", "memory"]))
    os.kill(keeper, 9)
    # From here on any other sandbox of this machine may remove the groups first.
    eventually(lambda: not os.path.exists(f"/proc/{warden}"))
    other.run(["true"])
    assert groups_of(keeper) == []
    assert box.run(["true"]).ok


def test_every_limit_hit_is_reported_once(tmp_path: Path) -> None:
    # The kernel does not count the time of children that are never reaped.
    (tmp_path / "events").write_text("max 0\n")
    descriptor = os.open(tmp_path / "events", os.O_RDONLY)
    bounds = LimitMonitor({"pids": cgroups.Counter(descriptor, b"max")}, {"processes": 4096}, None)
    assert bounds.hits(0.0, 0) == 0
    (tmp_path / "events").write_text("max 3\n")
    assert [bounds.hits(0.0, 0), bounds.hits(0.0, 0)] == [protocol.TOO_MANY_PROCESSES, 0]
    os.close(descriptor)
