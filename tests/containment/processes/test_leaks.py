"""Tests that many runs, in a row and at once, leak no descriptor, process, mount, control group or file.

`CORRAL_LEAK_RUNS` sets the number. The full number, 10000, takes about ten seconds.
"""

import glob
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import program
from observe import (
    alive,
    children,
    descriptors,
    eventually,
    seen_before_its_end,
    unique_seconds,
    with_enough_time,
)

from corral import Limits, Sandbox

RUNS = int(os.environ.get("CORRAL_LEAK_RUNS", "200"))
AT_A_TIME = 64
WARM_UP = 20


def state(scratch: str) -> dict[str, object]:
    """Return the descriptors, processes, mounts, groups and files that a run could leak."""
    return {
        "descriptors": sorted(descriptors().values()),
        "threads": threading.active_count(),
        "children": len(children(os.getpid())),
        "mounts": Path("/proc/self/mounts").read_text(),
        "files": sorted(os.path.join(above, name) for above, _, names in os.walk(scratch) for name in names),
        "beside": sorted(name for name in os.listdir(os.path.dirname(scratch)) if name.startswith("corral-")),
    }


def groups() -> set[str]:
    """Return the control groups of wardens, without those of this process."""
    (keeper,) = children(os.getpid())
    own = Path("/proc/self/cgroup").read_text().splitlines()
    lines = {line for pid in children(keeper) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}
    found: set[str] = set()
    for line in lines - set(own):
        _, controllers, path = line.split(":", 2)
        found.update(glob.glob(f"/sys/fs/cgroup/{controllers}{path}") + glob.glob(f"/sys/fs/cgroup/*{path}"))
    return found


def of_the_keeper() -> dict[str, object]:
    """Return the descriptors of the keeper and its wardens, which only root may read."""
    (keeper,) = children(os.getpid())
    wardens = children(keeper)
    found: dict[str, object] = {"wardens": len(wardens), "groups": groups()}
    if os.geteuid() == 0:
        for number, pid in enumerate((keeper, *wardens)):
            found[f"descriptors of {number}"] = len(os.listdir(f"/proc/{pid}/fd"))
            found[f"mounts of {number}"] = len(Path(f"/proc/{pid}/mounts").read_text().splitlines())
            found[f"children of {number}"] = len(children(pid))
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private directory for the sandbox's temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.parametrize("limits", [Limits(), Limits(processes=50)], ids=["without limits", "with a limit"])
def test_many_runs_in_a_row_leak_nothing(place: Path, open_sandbox: Callable[..., Sandbox], limits: Limits) -> None:
    before = state(str(place / "none"))
    box = open_sandbox(limits=limits)
    assert box.run(["true"]).enforcement == "full"
    for _ in range(WARM_UP):
        box.run(["true"])
    warm = (state(box._holding.scratch), of_the_keeper())
    for _ in range(RUNS):
        assert box.run(["true"]).ok
    eventually(lambda: (state(box._holding.scratch), of_the_keeper()) == warm)
    made = groups()
    box.close()
    eventually(lambda: state(str(place / "none")) == before and not any(os.path.exists(group) for group in made))


def test_many_sandboxes_in_a_row_leak_nothing(place: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    before = state(str(place / "none"))
    for _ in range(max(RUNS // 50, 5)):
        with open_sandbox() as box:
            assert box.run("echo x > /tmp/x; echo x > ~/x; echo x > /dev/shm/x", shell=True).ok
    eventually(lambda: state(str(place / "none")) == before)


def wardens() -> list[int]:
    """Return the wardens of the only sandbox. With bubblewrap, each is a child of a bwrap process."""
    (keeper,) = children(os.getpid())
    if os.environ.get("CORRAL_TEST_BACKEND") != "bubblewrap":
        return children(keeper)
    return [warden for tool in children(keeper) for warden in children(tool)]


def test_many_runs_at_once_leak_nothing(place: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    before = state(str(place / "none"))
    box = open_sandbox()
    box.run(["true"])
    failed: list[object] = []

    def work() -> None:
        for _ in range(max(RUNS // 100, 3)):
            result = box.run("sleep 0.01; echo x", shell=True, timeout_seconds=120)
            if (result.stdout, result.enforcement) != (b"x\n", "full"):
                failed.append(result)

    threads = [threading.Thread(target=work) for _ in range(AT_A_TIME)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    # After a burst the idle wardens stay, and no process of a command.
    eventually(lambda: len(wardens()) <= 16 and not any(children(pid) for pid in wardens()))
    box.close()
    eventually(lambda: state(str(place / "none")) == before)


HOPPERS = """
def hop():
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        hop()
for _ in range(20):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        if os.fork() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        os.execlp('sleep', 'sleep', facts['seconds'])
print('started', flush=True)
time.sleep(float(facts['seconds']))
"""


def test_timeout_kills_the_whole_tree(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    # Never without a sandbox, since these processes fork for ever. Their number below shows that they do.
    seconds = unique_seconds()
    (project / "hop.py").write_text(program(HOPPERS))
    box = open_sandbox(limits=Limits(processes=200))
    box.run(["true"])
    command = ["python3", "-S", "hop.py", f'{{"seconds": "{seconds}"}}']
    result = with_enough_time(
        lambda limit: seen_before_its_end(box.start(command, timeout_seconds=limit), lambda: len(alive(seconds)) >= 20),
        bool,
    )
    # The result comes when all are gone, so the test does not wait.
    assert (alive(seconds), result.timed_out, result.killed > 20) == ([], True, True)
    assert [children(pid) for pid in wardens()] == [[]]
    assert box.run("ls -d /proc/[0-9]*", shell=True).stdout.count(b"\n") <= 3
