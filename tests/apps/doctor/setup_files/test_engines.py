"""The set-up of `corral doctor --emit` in real containers: some layers without it, all layers with it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from engines import IMAGE, Engine, EngineError, docker, podman

from corral.apps.doctor.setup_files.targets import TARGETS

pytestmark = pytest.mark.real

CI = Path(__file__).parents[4] / "ci"
NAMESPACES = ["user", "mount", "pid", "proc", "net", "ipc", "uts", "cgroup"]
CORRAL = [sys.executable, "-m", "corral"]
DOCKER_OPTIONS = TARGETS["docker"].use.partition("\n")[0].removeprefix("docker run ").removesuffix(" IMAGE").split()
# Calls that stay closed: a filter answers EPERM before the kernel looks at the arguments.
CLOSED = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"bpf": 321, "io_uring_setup": 425, "keyctl": 250, "open_by_handle_at": 304, "init_module": 175, "userfaultfd": 323}
def answer(number):
    ctypes.set_errno(0)
    libc.syscall(number, -1, 0, 0, 0, 0)
    return errno.errorcode.get(ctypes.get_errno(), "0")
print(json.dumps({name: answer(number) for name, number in numbers.items()}))
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    # Short, because the daemon's sockets lie in it.
    path = Path(tempfile.mkdtemp(prefix="e"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def docker_engine(place: Path) -> Iterator[Engine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("needs root, and docker.io")
    (place / "d").mkdir()
    try:
        with docker(place / "d") as engine:
            yield engine
    except EngineError as error:
        # Not a skip, which `make test-real` refuses: whether a daemon starts depends on the machine around it.
        pytest.xfail(f"dockerd does not start here: {error}")


@pytest.fixture(scope="module")
def podman_engine(place: Path) -> Engine:
    if os.geteuid() != 0 or shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("needs root, podman and runc")
    (place / "p").mkdir()
    try:
        return podman(place / "p")
    except EngineError as error:
        pytest.xfail(f"podman does not start here: {error}")


def doctor(engine: Engine, *options: str, words: list[str] | None = None) -> dict[str, Any]:
    done = engine.run(*options, command=[*CORRAL, "doctor", "--json"], words=words)
    assert done.stdout, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_docker_has_all_layers_with_the_emitted_profile(docker_engine: Engine, tmp_path: Path) -> None:
    usual = doctor(docker_engine)
    assert (usual["enforcement"], usual["missing_layers"]) == ("partial", NAMESPACES)
    user = next(check for check in usual["checks"] if check["name"] == "user")
    assert "corral doctor --emit docker" in [fix["command"] for fix in user["fixes"]]

    profile = tmp_path / "seccomp.json"
    profile.write_text(TARGETS["docker"].text())
    options = [word.replace("%FILE%", str(profile)) for word in DOCKER_OPTIONS]
    opened = doctor(docker_engine, *options)
    assert (opened["enforcement"], opened["missing_layers"]) == ("full", [])
    # Each option is needed: the same without the one that uncovers /proc.
    assert doctor(docker_engine, "--security-opt", f"seccomp={profile}")["missing_layers"] == ["proc"]

    ran = docker_engine.run(*options, command=[*CORRAL, "run", "--json", "--", "sh", "-c", "echo done >made; cat made"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout)
    assert (result["enforcement"], result["stdout"]) == ("full", "done\n")
    tried = docker_engine.run(*options, command=[sys.executable, "-c", CLOSED])
    assert set(json.loads(tried.stdout).values()) == {"EPERM"}
    # Not even root's files of the uncovered /proc can be written, and no program makes its user root.
    for command in ("echo c >/proc/sysrq-trigger", "echo x >/proc/sys/kernel/core_pattern", "unshare --mount true"):
        assert docker_engine.run(*options, command=["sh", "-c", command]).returncode != 0, command


def test_profile_of_the_pod_gives_all_layers(docker_engine: Engine, tmp_path: Path) -> None:
    config, _ = yaml.safe_load_all(TARGETS["kubernetes"].text())
    profile = tmp_path / "pod.json"
    profile.write_text(config["data"]["corral.json"])
    options = [word.replace("%FILE%", str(profile)) for word in DOCKER_OPTIONS]
    assert doctor(docker_engine, *options)["enforcement"] == "full"
    tried = docker_engine.run(*options, command=[sys.executable, "-c", CLOSED])
    assert set(json.loads(tried.stdout).values()) == {"EPERM"}


def test_podman_has_all_layers_with_the_emitted_options(podman_engine: Engine, tmp_path: Path) -> None:
    scratch = ["--tmpfs", "/home/user:mode=1777,exec", "--tmpfs", "/work:mode=1777,exec"]
    usual = doctor(podman_engine, *scratch)
    assert (usual["enforcement"], usual["missing_layers"]) == ("partial", ["proc"])
    script = tmp_path / "podman-corral.sh"
    script.write_text(TARGETS["podman"].text())
    assert doctor(podman_engine, *scratch, words=["sh", str(script)])["enforcement"] == "full"


def test_image_of_the_recipe_has_all_layers(docker_engine: Engine, tmp_path: Path) -> None:
    context = tmp_path / "context"
    shutil.copytree(CI, context / "ci")
    for name in ("corral", "tree_sitter", "tree_sitter_bash"):
        # As `pip install --target` does.
        package = Path(str(__import__(name).__file__)).parent
        shutil.copytree(package, context / "site" / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = ["build", "--quiet", "--build-arg", f"BASE={IMAGE}", "--build-arg", f"PYTHON={sys.executable}"]
    command = [
        *docker_engine.command,
        *build,
        "--tag",
        "corral-ci",
        "--file",
        str(context / "ci" / "Containerfile"),
        str(context),
    ]
    built = subprocess.run(command, env=docker_engine.environ, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    profile = tmp_path / "seccomp.json"
    profile.write_text(TARGETS["docker"].text())
    options = [word.replace("%FILE%", str(profile)) for word in DOCKER_OPTIONS]
    done = docker_engine.run(*options, command=["corral", "doctor", "--json"], image="corral-ci")
    assert json.loads(done.stdout)["enforcement"] == "full", done.stderr
    # The user of the image cannot change corral.
    tried = docker_engine.run(*options, command=["sh", "-c", "echo >>/opt/corral/bin/corral"], image="corral-ci")
    assert tried.returncode != 0
