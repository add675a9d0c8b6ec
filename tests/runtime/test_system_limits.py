"""Tests of the limits of the system: a clear error, everything else works on, and nothing is left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Opens sandboxes, or sessions, until the process may open no more files.
PROGRAM = """
import json, os, resource, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import ContainmentError, Sandbox, SandboxConfig

config = SandboxConfig(sys.argv[2])
def children():
    threads = os.listdir("/proc/self/task")
    return [pid for thread in threads for pid in open(f"/proc/self/task/{thread}/children").read().split()]
with Sandbox(config) as box:
    box.run(["true"])
before = len(os.listdir("/proc/self/fd"))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
open_ones, first = [], Sandbox(config)
error = ""
try:
    while not error:
        box = first if sys.argv[3] == "sessions" else Sandbox(config)
        each = box.session() if sys.argv[3] == "sessions" else box
        open_ones.append(each)
        result = each.run("echo on") if sys.argv[3] == "sessions" else each.run(["echo", "on"])
        assert result.ok, result
except ContainmentError as failed:
    error = str(failed)
one = open_ones[0]
works = (one.run("echo on") if sys.argv[3] == "sessions" else one.run(["echo", "on"])).stdout_text
for each in (*open_ones, first):
    each.close()
with Sandbox(config) as box:
    again = box.run(["echo", "again"]).stdout_text
print(json.dumps([error, works, again, len(os.listdir("/proc/self/fd")) - before, children()]))
"""


@pytest.mark.parametrize("kind", ["sandboxes", "sessions"])
def test_limit_of_open_files_is_a_clear_error(kind: str, project: Path) -> None:
    argv = [sys.executable, "-c", PROGRAM, ":".join(sys.path), str(project), kind]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    error, works, again, opened, left = json.loads(ended.stdout)
    assert "Too many open files. Here this process may open no more than 64 files" in error
    assert (works, again, left) == ("on\n", "again\n", [])
    assert opened <= 2  # the process's own inotify instances
