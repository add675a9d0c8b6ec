"""`corral selftest` on the real kernel, with all layers and with some of them missing."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import IN_DOCKER, environment, run_corral, run_corral_without
from observe import alive, eventually

from corral import Sandbox
from corral.apps.selftest.run_attacks import HELD, NOT_HELD, NOT_SHOWN, NOT_TESTABLE

pytestmark = pytest.mark.real

Places = dict[str, Path]


@pytest.fixture
def places(tmp_path: Path, project: Path) -> Iterator[Places]:
    """Directories that a selftest could leave something in."""
    (tmp_path / "home").mkdir()
    # Short: a victim's socket must fit.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield {"project": project, "tmp": Path(folder), "home": tmp_path / "home"}


def environ(places: Places) -> dict[str, str]:
    return {"TMPDIR": str(places["tmp"]), "HOME": str(places["home"]), "PYTHONDONTWRITEBYTECODE": "1"}


def start(places: Places, *words: str) -> subprocess.Popen[str]:
    """Start a selftest whose victims lie where only it makes any."""
    command = [sys.executable, "-m", "corral", "selftest", *words]
    return subprocess.Popen(
        command, cwd=places["project"], env=environment() | environ(places), stdout=subprocess.PIPE, text=True
    )


def left(places: Places, pid: int) -> list[str]:
    """Return the files and shared memory that a selftest left behind."""
    files = [f"{path}/{name}" for path in places.values() for name in os.listdir(path)]
    memory = [name for name in os.listdir("/dev/shm") if name.startswith(f"corral-canary-{pid}-")]
    _, *segments = Path("/proc/sysvipc/shm").read_text().splitlines()
    return [*files, *memory, *(line for line in segments if line.split()[4] == str(pid))]


def results(data: dict[str, Any], *wanted: str) -> list[str]:
    return [attempt["name"] for attempt in data["attempts"] if attempt["result"] in wanted]


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_all_attacks_are_held_and_nothing_is_left(backend: str, places: Places) -> None:
    with start(places, "--json", "--backend", backend) as running:
        assert running.stdout is not None
        data = json.loads(running.stdout.read())
    assert (results(data, NOT_HELD, NOT_SHOWN), running.returncode) == ([], 0)
    assert (data["backend"], data["enforcement"], data["profile"], data["refusal"]) == (
        backend,
        "full",
        "workspace",
        "",
    )
    assert len(results(data, HELD)) >= 25
    assert (results(data, NOT_TESTABLE) == []) == (os.geteuid() == 0 and os.uname().machine == "x86_64")
    assert left(places, running.pid) == []


def test_no_attack_is_held_without_containment(places: Places) -> None:
    done = run_corral("selftest", "--backend", "none", cwd=places["project"], **environ(places))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line for line in lines if "✓ held" in line] == []
    assert any("✗ not held" in line and "read a file outside" in line for line in lines)
    assert "profile workspace needs the kernel" in done.stdout.replace("\n", " ")
    assert all(os.listdir(path) == [] for path in places.values())


def test_missing_layers_let_attacks_through(held: Sandbox, places: Places) -> None:
    done = run_corral_without(
        IN_DOCKER, "selftest", "--backend", "warden", "--profile", "strict", "--json", cwd=places["project"]
    )
    data = json.loads(done.stdout)
    assert (done.returncode, data["enforcement"]) == (1, "partial")
    # Landlock still keeps files, and seccomp the process that holds the command.
    kept = {"read a file outside", "make a file outside", "limit what holds the command", "change git's configuration"}
    assert kept <= set(results(data, HELD))
    assert "read another process's command line" in results(data, NOT_HELD)
    # Uncontained the filter of the test forbids it too.
    assert "make a user namespace" in results(data, NOT_SHOWN)


def test_targets_within_reach_are_not_created(held: Sandbox, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    # The temporary directory is part of the project: another is chosen.
    done = run_corral("selftest", "--json", cwd=tmp_path, TMPDIR=str(place))
    assert (results(json.loads(done.stdout), NOT_HELD), list(place.iterdir())) == ([], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_leaves_nothing_behind(number: signal.Signals, places: Places) -> None:
    with start(places) as running:
        assert running.stdout is not None
        while "read by climbing up" not in running.stdout.readline():
            assert running.poll() is None
        (place,) = places["tmp"].glob("corral-selftest-*")
        assert left(places, running.pid) != []
        running.send_signal(number)
        running.stdout.read()
    assert (running.returncode, left(places, running.pid)) == (130, [])
    eventually(lambda: alive(f"{place}/socket") == [])
