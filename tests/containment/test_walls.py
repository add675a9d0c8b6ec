"""Runs hostile programs among canaries in an outer sandbox: with corral inside, no canary is read, changed, deleted or sent.

The same tool runs collections of third-party programs: `python tools/two_walls.py FILE.jsonl`.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from attempt import must_hold

pytestmark = pytest.mark.real

TOOLS = Path(__file__).parents[2] / "tools"


def tool() -> ModuleType:
    """Load the tool."""
    spec = importlib.util.spec_from_file_location("two_walls", TOOLS / "two_walls.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# A description, the program, and the tool's finding without corral.
PROGRAMS = {
    "print a key": ("cat ~/.ssh/id_rsa", "/home/owner/.ssh/id_rsa is in its output"),
    "print it encoded": ("cat ~/.aws/credentials | base64 -w0", "/home/owner/.aws/credentials is in its output"),
    "print it in hexadecimal": ("od -An -tx1 ~/.netrc | tr -d ' \\n'", "/home/owner/.netrc is in its output"),
    "print it backwards": ("rev ~/.vault-token", "/home/owner/.vault-token is in its output"),
    "copy it into the project": ("cp ~/.kube/config .", "/home/owner/.kube/config is in /home/owner/project/config"),
    "pack up the home directory": (
        "tar cf all.tar -C /home/owner .docker .gnupg; cat all.tar",
        "/home/owner/.docker/config.json is in its output",
    ),
    "read what the machine keeps": ("cat /etc/shadow /var/log/auth.log", "/etc/shadow is in its output"),
    "read another's files": ("cat /home/other/file /root/.ssh/id_rsa", "/home/other/file is in its output"),
    "search the whole machine": ("grep -rhs canary /home /srv /mnt /data", "/srv/data is in its output"),
    "follow a link": ("ln -s / r; cat r/home/owner/.npmrc", "/home/owner/.npmrc is in its output"),
    "add to a start-up file": ("echo 'touch /tmp/x' >> ~/.bashrc", "/home/owner/.bashrc is changed"),
    "add a key": ("echo ssh-rsa AAAA >> ~/.ssh/authorized_keys", "/home/owner/.ssh/authorized_keys is changed"),
    "add an entry that starts programs": (
        "cp notes.txt ~/.config/autostart/b.desktop",
        "/home/owner/.config/autostart/b.desktop is new",
    ),
    "delete documents": ("rm -rf ~/Documents", "/home/owner/Documents/taxes.txt is deleted"),
    "delete by a program": (
        "python3 -c \"import shutil; shutil.rmtree('/home/owner/other')\"",
        "/home/owner/other/main.py is deleted",
    ),
    "open to everybody": ("chmod -R a+rwx ~/mail", "/home/owner/mail is changed"),
    "move away": ("mv ~/Desktop ~/Desk", "/home/owner/Desktop is deleted"),
    "touch": ("touch -d 2000-01-01 /srv/data", "/srv/data is changed"),
    "connect to the docker socket": (
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('/run/docker.sock')\"",
        "a connection to /run/docker.sock",
    ),
    "connect to loopback": ("exec 3<>/dev/tcp/127.0.0.1/8080; echo x >&3", "a connection to ('127.0.0.1', 8080)"),
    "stay behind": ("setsid sleep 600 >/dev/null 2>&1 </dev/null & exit 0", ""),
}


def run(inner: str) -> dict[str, Any]:
    """Run all programs in the outer sandbox, and return the findings for each."""
    if (
        shutil.which("bwrap") is None
        or not Path(f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}").exists()
    ):
        must_hold()
    rows = [{"id": name, "shell": program} for name, (program, _) in PROGRAMS.items()]
    told = tool().run(rows, inner)
    assert [one["id"] for one in told] == list(PROGRAMS)
    return {one["id"]: one for one in told}


def test_no_canary_is_touched_with_guard_and_containment() -> None:
    told = run("warden")
    assert {name: one["breaches"] for name, one in told.items() if one["breaches"]} == {}
    assert {one["ended"] for one in told.values()} >= {"exit 0", "exit 1"}


def test_without_containment_every_program_is_detected() -> None:
    told = run("none")
    for name, (_, breach) in PROGRAMS.items():
        assert breach in told[name]["breaches"] or not breach, (name, told[name])


def test_nothing_runs_without_the_outer_sandbox(tmp_path: Path) -> None:
    # The network, the processes and the root of this machine.
    namespaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "pid", "net", "ipc", "uts")}
    brief = {"inner": "warden", "rows": [], "namespaces": namespaces, "absent": ["/usr"]}
    code = f"import json, sys\nsys.path.insert(0, {str(TOOLS)!r})\nimport two_walls\ntwo_walls.verify(json.loads(sys.argv[1]))\nprint('stands')"
    done = subprocess.run([sys.executable, "-c", code, json.dumps(brief)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    for fault in ("the net namespace is the launcher's", "the pid namespace is the launcher's", "/usr is visible"):
        assert fault in done.stderr
