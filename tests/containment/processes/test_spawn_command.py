"""Tests that a command starts with a clean signal mask, that a failed start is reported, and that an early kill works."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from observe import unique_seconds

from corral import Containment, Limits, Sandbox

BACKENDS = ["warden", "bubblewrap", "none"]
STARTED = """
import os, signal, sys, types
from corral.containment.processes import spawn_command as starting
starter = starting.CommandStarter([], leads_session=False)
{before}
wanted = types.SimpleNamespace(executable=b"/bin/cat", argv=[b"cat", b"/proc/self/status"], env=[b"A=b=c", b"D="])
null = os.open("/dev/null", os.O_RDWR)
pid = starter.start(wanted, null, 1, 2)
status = os.waitpid(pid, 0)[1]
print("ended", status, starter.failure(status), starter.missed)
"""


def started(before: str) -> list[str]:
    """Return the output of a process that runs some code and then starts a command as a warden does."""
    code = STARTED.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def blocked(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("SigBlk") and line.strip("SigBlk:\t0")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_failed_start_is_not_taken_for_another_exit(
    project: Path, open_sandbox: Callable[..., Sandbox], backend: str
) -> None:
    box = open_sandbox(containment=Containment(backend=backend))
    (project / "empty").write_text("")
    (project / "empty").chmod(0o755)
    (project / "orphan").write_text("#!/no/such/program\n")
    (project / "orphan").chmod(0o755)
    for _ in range(3):
        assert box.run(["/no/such/program"]).stderr == b"corral: /no/such/program: command not found\n"
        assert b"interpreter in its first line" in box.run(["./orphan"]).stderr
        assert b"Exec format error" in box.run(["./empty"]).stderr
        assert b"Permission denied" in box.run(["/etc"]).stderr
        ended = box.run("exit 255", shell=True)
        assert (ended.exit_code, ended.stderr, ended.killed) == (255, b"", 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_command_killed_at_its_start_ends(open_sandbox: Callable[..., Sandbox], backend: str) -> None:
    box = open_sandbox(containment=Containment(backend=backend))
    for _ in range(50):
        running = box.start(["sleep", unique_seconds()])
        running.kill()
        assert running.wait(20).signal == 9


def test_early_signal_is_recorded_and_mask_is_empty() -> None:
    lines = started("os.kill(os.getpid(), signal.SIGUSR1)")
    assert (lines[-1], blocked(lines)) == ("ended 0 0 True", [])


def test_python_with_other_fork_exec_signature_forks() -> None:
    lines = started("def other(*words): raise TypeError\nstarting._fork_exec = other")
    # The exit may be recorded already or still to come.
    assert (lines[-1].rpartition(" ")[0], blocked(lines)) == ("ended 0 0", [])


def test_rlimits_hold_and_signal_mask_is_empty(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(limits=Limits(open_files=77))
    result = box.run("ulimit -n; cat /proc/self/status", shell=True)
    assert result.stdout_text.splitlines()[0] == "77"
    assert blocked(result.stdout_text.splitlines()) == []
