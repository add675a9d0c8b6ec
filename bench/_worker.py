"""Runs a sandbox library in a process of its own: reads lines with an argv, and answers with the time that each took."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

READABLE = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc", "/proc") if os.path.exists(path)]
Run = Callable[[list[str], float | None], tuple[int, bytes, int]]


def sandlock(project: str) -> Run:
    """Return a function that runs a command with sandlock."""
    from sandlock import Sandbox  # type: ignore[import-not-found]  # in the peers' own environment

    box = Sandbox(fs_readable=READABLE, fs_writable=[project, "/dev/null"], cwd=project)
    return lambda argv, seconds: _read(box.run(argv, timeout=seconds))


def sandlock_copying(project: str) -> Run:
    """Return a function that runs a command with sandlock on a copy-on-write branch of the project, and aborts the branch."""
    from sandlock import Sandbox

    rights = {"fs_readable": READABLE, "fs_writable": [project, "/dev/null"]}
    box = Sandbox(**rights, cwd=project, workdir=project, on_exit="abort")
    return lambda argv, seconds: _read(box.run(argv, timeout=seconds))


def nono(project: str) -> Run:
    """Return a function that runs a command with nono."""
    from nono_py import AccessMode, CapabilitySet, sandboxed_exec  # type: ignore[import-not-found]  # as sandlock

    rights = CapabilitySet()
    for path in READABLE:
        rights.allow_path(path, AccessMode.READ)
    rights.allow_path(project, AccessMode.READ_WRITE)
    rights.allow_file("/dev/null", AccessMode.READ_WRITE)
    rights.block_network()
    env = [(name, os.environ[name]) for name in ("PATH", "HOME")]
    return lambda argv, seconds: _read(sandboxed_exec(rights, argv, cwd=project, env=env, timeout_secs=seconds))


def corral(project: str) -> Run:
    """Return a function that runs a command with corral."""
    from corral import Sandbox, SandboxConfig

    box = Sandbox(SandboxConfig(project))

    def run(argv: list[str], seconds: float | None) -> tuple[int, bytes, int]:
        result = box.run(argv, timeout_seconds=seconds)
        return result.exit_code, result.stderr, result.stdout_bytes

    return run


def bare(project: str) -> Run:
    """Return a function that runs a command, or a sandbox that is a program, with `subprocess`."""

    def run(argv: list[str], seconds: float | None) -> tuple[int, bytes, int]:
        done = subprocess.run(argv, capture_output=True, check=False, cwd=project, timeout=seconds)
        return done.returncode, done.stderr, len(done.stdout)

    return run


def _read(result: Any) -> tuple[int, bytes, int]:
    return result.exit_code, bytes(result.stderr), len(result.stdout)


def peak_mib() -> float:
    """Return the peak resident memory of this process in MiB."""
    # Not ru_maxrss: a new process inherits the value of its parent.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Run the commands from stdin until it ends."""
    name, project = sys.argv[1:]
    run = {"sandlock": sandlock, "sandlock-copying": sandlock_copying, "nono-py": nono, "corral": corral, "bare": bare}[
        name
    ](project)
    for line in sys.stdin:
        argv, seconds = json.loads(line)
        before = peak_mib()
        begun = perf_counter_ns()
        exit_code, stderr, printed = run(argv, seconds)
        spent = perf_counter_ns() - begun
        said = stderr[-200:].decode("utf-8", "replace").strip()
        answer = {"ns": spent, "exit_code": exit_code, "said": said, "printed": printed}
        print(json.dumps({**answer, "grown_mib": peak_mib() - before}), flush=True)


if __name__ == "__main__":
    main()
