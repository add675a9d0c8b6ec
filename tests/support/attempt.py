"""Runs the body of an attack as a program, in a sandbox or bare, and returns its outcome, or why it was not tried."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from corral import Sandbox, SandboxResult

MODULES = ("errno", "fcntl", "glob", "mmap", "resource", "signal", "socket", "stat", "struct", "subprocess", "time")
PRELUDE = """
import ctypes, json, os, sys
facts = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = os.uname().machine == "x86_64"
def call(number, *arguments):
    done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
def attack():
"""
EPILOGUE = """
try:
    done = attack()
except (OSError, ValueError, AttributeError) as error:
    print("held:", error)
else:
    print("succeeded" if done else "held: nothing came of it")
"""


def has_bubblewrap() -> bool:
    """Return True if bubblewrap, the tool of the second backend, is installed."""
    return Path("/usr/bin/bwrap").exists()


def must_hold() -> None:
    """Skip the test if the kernel has no containment. Fail instead where skips are not allowed."""
    if os.environ.get("CORRAL_MUST_CONTAIN") == "1":
        pytest.fail("containment does not work on this machine, but CORRAL_MUST_CONTAIN=1 requires it")
    pytest.skip("containment does not work on this machine")


def program(body: str) -> str:
    """Return the source of the program that carries out an attack."""
    # Hundreds of these programs run, and importing every module would take longer than most attacks.
    used = "".join(f"import {name}\n" for name in MODULES if name in body)
    return used + PRELUDE + "".join(f"    {line}\n" for line in body.strip().splitlines()) + EPILOGUE


def run_attack(box: Sandbox, body: str, *, timeout_seconds: float = 60, **facts: object) -> SandboxResult:
    """Run the body of an attack as a program in the sandbox, and return its result."""
    script = Path(box.config.project_root) / "attack.py"
    script.write_text(program(body))
    argv = [sys._base_executable, "-S", "attack.py", json.dumps(facts)]
    try:
        return box.run(argv, timeout_seconds=timeout_seconds)
    finally:
        script.unlink()


def attempt(box: Sandbox, body: str, **facts: object) -> str:
    """Run the body of an attack as a program in the sandbox, and return its outcome."""
    done = run_attack(box, body, **facts)  # type: ignore[arg-type]  # a fact is never a timeout
    if done.signal is not None or done.timed_out:
        return f"held: ended by signal {done.signal}"
    assert done.exit_code == 0, done.stderr_text
    return done.stdout_text.strip()


def bare(body: str, folder: Path, *, before: Sequence[str] = (), **facts: object) -> str:
    """Run the same program as a child of the test itself, without corral, and return its outcome."""
    command = [*before, sys._base_executable, "-S", "-c", program(body), json.dumps(facts)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, close_fds=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def works_uncontained(box: Sandbox, body: str, **facts: object) -> bool:
    """Return True if an attack that needs root works without containment. Only root can try it, so return True for other users."""
    return os.geteuid() != 0 or attempt(box, body, **facts) == "succeeded"
