"""Tests of the limits of the system: a clear error, everything else works on, and nothing is left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Opens sandboxes, or sessions, until the process may open no more files; for each of some limits.
PROGRAM = """
import json, os, resource, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import ContainmentError, Sandbox, SandboxConfig

config = SandboxConfig(sys.argv[2])
is_session = sys.argv[3] == "sessions"
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

def descriptors():
    return sorted(os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{each}"))

def children():
    threads = os.listdir("/proc/self/task")
    return [pid for thread in threads for pid in open(f"/proc/self/task/{thread}/children").read().split()]

def greet(each, word):
    return each.run(f"echo {word}") if is_session else each.run(["echo", word])

def reach(limit):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    open_ones, first = [], Sandbox(config)
    error = ""
    try:
        while not error:
            each = first.session() if is_session else Sandbox(config)
            open_ones.append(each)
            result = greet(each, "on")
            assert result.ok, result
    except ContainmentError as failed:
        error = str(failed)
    works = greet(open_ones[0], "on").stdout_text
    for each in (*open_ones, first):
        each.close()
    with Sandbox(config) as box:
        again = box.run(["echo", "again"]).stdout_text
    return [error, works, again, children(), descriptors()]

with Sandbox(config) as box:
    box.run(["true"])
print(json.dumps([reach(limit) for limit in range(*map(int, sys.argv[4:]))]))
"""
# A further sandbox takes eleven descriptors, so that one of these limits is reached at each step of its start.
LIMITS = {"sandboxes": (48, 60), "sessions": (64, 67)}


@pytest.mark.parametrize("kind", LIMITS)
def test_limit_of_open_files_is_a_clear_error(kind: str, project: Path) -> None:
    first, end = LIMITS[kind]
    argv = [sys.executable, "-c", PROGRAM, ":".join(sys.path), str(project), kind, str(first), str(end)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    reached = json.loads(ended.stdout)
    for limit, (error, *_) in zip(range(first, end), reached, strict=True):
        assert f"Too many open files. Here this process may open no more than {limit} files" in error
    kept = [numbers for *_, numbers in reached]
    assert [rest for _, *rest, _ in reached] == [["on\n", "again\n", []]] * len(reached)
    assert kept == [kept[0]] * len(kept)
