"""Tests that all descendants are found, by /proc/PID/task/TID/children or without it, and that spared ones are left out."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from observe import alive, children, eventually, unique_seconds

from corral import Containment, Sandbox
from corral.containment.kernel import process_tree


@pytest.fixture
def family() -> Iterator[tuple[int, str]]:
    """Start a shell with a child, and a grandchild in its own session."""
    seconds = unique_seconds()
    text = f"sleep {seconds} & (setsid sleep {seconds}; :) & wait"
    with subprocess.Popen(["bash", "-c", text]) as shell:
        eventually(lambda: len(alive(seconds)) == 2)
        yield shell.pid, seconds
        for pid in alive(seconds):
            os.kill(pid, 9)


def test_descendants_are_found_parents_first(family: tuple[int, str]) -> None:
    shell, seconds = family
    found = process_tree.descendants(shell)
    assert set(alive(seconds)) < set(found)
    assert len(found) == 3
    (subshell,) = set(found) - set(alive(seconds))
    (grandchild,) = children(subshell)
    assert found.index(subshell) < found.index(grandchild)


def test_kernel_without_children_files_gives_the_same(family: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    shell, _ = family
    expected = set(process_tree.descendants(shell))
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert set(process_tree.descendants(shell)) == expected


def test_spared_processes_and_their_children_are_left_out(family: tuple[int, str]) -> None:
    shell, seconds = family
    assert process_tree.descendants(os.getpid(), spared={shell}) == []
    spared = next(pid for pid in children(shell) if pid not in alive(seconds))
    (only,) = process_tree.descendants(shell, spared={spared})
    assert only in alive(seconds)


def test_exited_process_has_no_descendants() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert process_tree.descendants(process.pid) == []


def test_one_pass_kills_every_descendant(family: tuple[int, str]) -> None:
    shell, seconds = family
    expected = {shell, *process_tree.descendants(shell)}
    assert process_tree.kill_descendants() >= expected
    eventually(lambda: alive(seconds) == [])


POLICY = "import os; print(os.sched_getscheduler(0), os.nice(0))"
HOST = """
import os, sys
from corral import Containment, Sandbox, SandboxConfig
os.sched_setscheduler(0, os.{policy}, os.sched_param(0))
os.nice(3)
with Sandbox(SandboxConfig(sys.argv[1], containment=Containment(backend="{backend}"))) as box:
    print(box.run(["/usr/bin/python3", "policy.py"]).stdout_text, end="")
"""


@pytest.mark.parametrize("backend", ["warden", "bubblewrap", "none"])
def test_commands_run_as_batch_jobs(open_sandbox: Callable[..., Sandbox], backend: str) -> None:
    box = open_sandbox(containment=Containment(backend=backend))
    assert box.run(["python3", "-c", POLICY]).stdout_text == f"{os.SCHED_BATCH} 0\n"


@pytest.mark.parametrize("backend", ["warden", "none"])
@pytest.mark.parametrize(
    ("policy", "becomes"),
    [("SCHED_OTHER", os.SCHED_BATCH), ("SCHED_BATCH", os.SCHED_BATCH), ("SCHED_IDLE", os.SCHED_IDLE)],
)
def test_scheduling_policy_of_the_user_is_kept(project: Path, backend: str, policy: str, becomes: int) -> None:
    (project / "policy.py").write_text(POLICY)
    code = HOST.format(policy=policy, backend=backend)
    done = subprocess.run([sys.executable, "-c", code, str(project)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{becomes} 3\n"


def test_reaped_process_is_not_killed_again() -> None:
    with subprocess.Popen(["true"]) as ended:
        pidfd = os.pidfd_open(ended.pid)
    process_tree.kill(pidfd)
    os.close(pidfd)
