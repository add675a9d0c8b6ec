"""Tests that the suite is isolated from the developer's terminal, signals and environment."""

import json
import os
import pty
import pwd
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, os, resource, signal, sys
sys.path.insert(0, sys.argv[1])
before = os.open("/dev/tty", os.O_RDWR) >= 0
import isolation
home = isolation.isolate(is_worker=sys.argv[2] == "worker")
try:
    os.open("/dev/tty", os.O_RDWR)
    after = True
except OSError:
    after = False
ignored = [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
print(json.dumps({"before": before, "after": after, "ignored": ignored, "names": sorted(os.environ), "home": home,
                  "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "leads": os.getsid(0) == os.getpid()}))
isolation.remove_home(home)
"""


@pytest.mark.parametrize("role", ["worker", "alone"])
def test_isolation_removes_terminal_signals_and_variables(role: str) -> None:
    def begin() -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    told, write = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        # In a child process: a process group leader cannot call setsid, and pytest's workers are not leaders either.
        begin()
        os.dup2(write, 1, inheritable=True)
        words = [sys.executable, "-c", CHILD, str(Path(__file__).parents[1] / "support"), role]
        os._exit(subprocess.run(words, env=os.environ | {"CLAUDECODE": "1", "PAGER": "x"}, check=False).returncode)
    os.close(write)
    with open(told) as file:
        found = json.loads(file.read())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert (found["before"], found["after"]) == (True, False)
    assert set(found["ignored"]) <= {signal.SIGPIPE, signal.SIGXFSZ}
    assert {"CLAUDECODE", "PAGER"}.isdisjoint(found["names"])
    assert found["descriptors"] > 1024 or resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= 1024
    assert found["leads"] == (role == "worker")
    assert not Path(found["home"]).exists()


def test_these_tests_are_isolated() -> None:
    with pytest.raises(OSError, match="/dev/tty"):
        os.open("/dev/tty", os.O_RDWR)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    assert os.environ["HOME"] != pwd.getpwuid(os.getuid()).pw_dir
    assert all(value.startswith(os.environ["HOME"]) for name, value in os.environ.items() if name.startswith("XDG_"))
