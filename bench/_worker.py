"""A sandbox that is a Python library, in a process of its own: a line with an argv comes in, how long it took goes out."""

import json
import os
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

READABLE = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc", "/proc") if os.path.exists(path)]


def sandlock(project: str) -> Callable[[list[str]], Any]:
    """Return what runs a command with sandlock."""
    from sandlock import Sandbox  # type: ignore[import-not-found]  # in the peers' own environment

    box = Sandbox(fs_readable=READABLE, fs_writable=[project, "/dev/null"], cwd=project)
    run: Callable[[list[str]], Any] = box.run
    return run


def nono(project: str) -> Callable[[list[str]], Any]:
    """Return what runs a command with nono."""
    from nono_py import AccessMode, CapabilitySet, sandboxed_exec  # type: ignore[import-not-found]  # as sandlock

    rights = CapabilitySet()
    for path in READABLE:
        rights.allow_path(path, AccessMode.READ)
    rights.allow_path(project, AccessMode.READ_WRITE)
    rights.allow_file("/dev/null", AccessMode.READ_WRITE)
    rights.block_network()
    env = [(name, os.environ[name]) for name in ("PATH", "HOME")]
    return lambda argv: sandboxed_exec(rights, argv, cwd=project, env=env)


def main() -> None:
    """Run what is asked for until nobody asks any more."""
    name, project = sys.argv[1:]
    run = {"sandlock": sandlock, "nono-py": nono}[name](project)
    for line in sys.stdin:
        argv = json.loads(line)
        begun = perf_counter_ns()
        result = run(argv)
        spent = perf_counter_ns() - begun
        said = bytes(result.stderr)[-200:].decode("utf-8", "replace").strip()
        print(json.dumps({"ns": spent, "exit_code": result.exit_code, "said": said}), flush=True)


if __name__ == "__main__":
    main()
