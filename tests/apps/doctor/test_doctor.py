"""`corral doctor` on the real kernel, with all layers and with some of them missing."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machines import (
    IN_DOCKER,
    LANDLOCK_NOT_BUILT,
    LANDLOCK_NOT_STARTED,
    NOTHING,
    RESTRICTED_BY_APPARMOR,
    environment,
    run_corral,
    run_corral_without,
)

from corral import Sandbox

NAMESPACES = ["user", "mount", "pid", "proc", "net", "ipc", "uts", "cgroup"]


def statuses(data: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in data["checks"]}


def check(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(check for check in data["checks"] if check["name"] == name)


def test_doctor_agrees_with_run(box: Sandbox, project: Path) -> None:
    result = box.run(["true"])
    done = run_corral("doctor", "--json", cwd=project)
    data = json.loads(done.stdout)
    told = (data["backend"], data["enforcement"], tuple(data["missing_layers"]))
    assert told == (result.backend, result.enforcement, result.missing_layers)
    assert done.returncode == {"full": 0, "partial": 1, "none": 2}[result.enforcement]
    assert done.stderr == ""
    held = {name: "fail" if name in result.missing_layers else "ok" for name in NAMESPACES}
    assert {name: status for name, status in statuses(data).items() if name in NAMESPACES} == held


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(
    ("refused", "limits", "missing"),
    [
        pytest.param([], {"max_user_namespaces": 0}, NAMESPACES, id="no user namespaces"),
        pytest.param([], {"max_net_namespaces": 0}, ["net"], id="no network namespaces"),
        pytest.param(IN_DOCKER, {}, NAMESPACES, id="namespaces forbidden by a filter"),
        pytest.param(RESTRICTED_BY_APPARMOR, {}, ["mount", "pid", "proc"], id="namespaces, but no mounts"),
        pytest.param(LANDLOCK_NOT_STARTED, {}, ["landlock"], id="Landlock not started"),
        pytest.param(LANDLOCK_NOT_BUILT, {}, ["landlock"], id="Landlock not built"),
        pytest.param(NOTHING, {}, [*NAMESPACES, "landlock", "seccomp"], id="nothing at all"),
    ],
)
def test_missing_layers_are_found_by_trying(
    refused: list[tuple[int, int]],
    limits: dict[str, int],
    missing: list[str],
    project: Path,
) -> None:
    enforcement = "none" if refused is NOTHING else "partial"
    # By name: where a filter forbids one way to a namespace, another backend may know another.
    backend = "auto" if refused is NOTHING else "warden"
    done = run_corral_without(refused, "doctor", "--backend", backend, "--json", cwd=project, limits=limits)
    data = json.loads(done.stdout)
    assert (data["enforcement"], data["missing_layers"], done.stderr) == (enforcement, missing, "")
    assert done.returncode == {"partial": 1, "none": 2}[enforcement]
    layers = [name for name in statuses(data) if check(data, name)["group"] == "layers"]
    assert [name for name in layers if statuses(data)[name] == "fail"] == missing
    assert check(data, missing[0])["means"]
    assert check(data, missing[0])["fixes"]


def test_covered_parts_of_proc_are_named(held: Sandbox, project: Path) -> None:
    script = 'mount --bind /dev/null /proc/uptime && exec "$@"'
    inner = [sys.executable, "-m", "corral", "doctor", "--json"]
    done = subprocess.run(
        ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c", script, "sh", *inner],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    data = json.loads(done.stdout)
    assert (done.returncode, data["missing_layers"]) == (1, ["proc"])
    assert "/proc/uptime" in check(data, "proc")["fixes"][0]["why"]


def test_doctor_inside_a_sandbox_says_so(held: Sandbox, project: Path) -> None:
    (project / "inner.py").write_text(
        f"import sys\nsys.path[:0] = {environment()['PYTHONPATH']!r}.split(':')\n"
        "from corral.apps.cli import main\nsys.exit(main(['doctor', '--json']))\n"
    )
    result = held.run([sys._base_executable, "inner.py"], timeout_seconds=60)
    data = json.loads(result.stdout)
    assert (result.exit_code, data["enforcement"], data["missing_layers"]) == (1, "partial", NAMESPACES)
    assert "inside a sandbox" in json.dumps(check(data, "user")["fixes"]) or data["container"]


def test_unusable_project_does_not_stop_doctor(tmp_path: Path) -> None:
    done = run_corral("doctor", "--json", "--root", "/", cwd=tmp_path)
    data = json.loads(done.stdout)
    machine = [found for found in data["checks"] if found["group"] != "hooks"]
    assert (check(data, "project")["status"], len(machine)) == ("fail", 24)


def test_doctor_leaves_nothing_behind(project: Path, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    run_corral("doctor", cwd=project, TMPDIR=str(place), HOME=str(home))
    assert (list(place.iterdir()), list(home.iterdir()), list(project.iterdir())) == ([], [], [])


def test_doctor_works_if_no_sandbox_starts(project: Path) -> None:
    done = run_corral_without(NOTHING, "doctor", "--backend", "warden", "--json", cwd=project)
    data = json.loads(done.stdout)
    assert (done.returncode, data["missing_layers"]) == (2, [*NAMESPACES, "landlock", "seccomp"])
    assert "containment.backend 'warden' needs the kernel" in data["means"]


def test_backend_none_has_enforcement_none(project: Path) -> None:
    done = run_corral("doctor", "--backend", "none", cwd=project)
    assert done.returncode == 2
    assert "✗ none" in done.stdout.splitlines()


def test_ascii_terminal_gets_ascii_report(project: Path) -> None:
    done = run_corral("doctor", cwd=project, PYTHONIOENCODING="ascii", COLUMNS="60")
    assert done.stdout.isascii()
    assert "  + seccomp" in done.stdout or "  x seccomp" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60


@pytest.mark.parametrize(
    ("environ", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_only_on_a_terminal(environ: dict[str, str], is_coloured: bool, project: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "corral", "doctor"]
    with subprocess.Popen(
        command, cwd=project, env=environment() | {"TERM": "xterm"} | environ, stdout=theirs, close_fds=True
    ):
        os.close(theirs)
        said = b""
        try:
            while chunk := os.read(ours, 65536):
                said += chunk
        except OSError:
            pass
    os.close(ours)
    assert (b"\x1b[" in said) == is_coloured
    assert b"seccomp" in said
