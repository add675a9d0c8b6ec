"""Repeats the tests of processes and attacks as an ordinary user, without root's rights."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from observe import alive, unique_seconds

pytestmark = pytest.mark.real

NOBODY = 65534
# setpriv looks the program up while it still has root's rights, so a shell does the lookup instead.
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sh", "-c", 'exec "$@"', "sh"]
HERE = Path(__file__).parent
NEEDED = [
    "corral",
    "pytest",
    "_pytest",
    "py",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "tree_sitter",
    "tree_sitter_bash",
]
NEEDED += [
    "hypothesis",
    "sortedcontainers",
    "_hypothesis_pytestplugin",
    "_hypothesis_ftz_detector",
    "_hypothesis_globals",
]
# It sets TMPDIR below a directory of root, where corral makes no directory for another user.
ROOT_ONLY = [HERE / "containment" / "filesystem" / "test_process_temp_dir.py"]
# The test files that run again as an ordinary user.
REPEATED = [
    "apps/cli/test_approver.py",
    "apps/doctor/test_doctor.py",
    "apps/evals/test_planted_files.py",
    "apps/evals/test_task_policy.py",
    "apps/selftest/test_selftest.py",
    "audit/test_owner_log.py",
    "broker/test_server.py",
    "broker/test_local_transport.py",
    "broker/test_https_transport.py",
    "integrations/hooks/test_file_tools.py",
    "integrations/hooks/test_path_swaps.py",
    "policy/test_agent_settings.py",
    "policy/test_approvals.py",
    "policy/test_policy_files.py",
    "policy/test_policy_loader.py",
    "policy/test_trust.py",
    "runtime/test_handle.py",
    "runtime/test_live_output.py",
    "runtime/test_process_groups.py",
    "runtime/test_processes.py",
    "runtime/test_threads.py",
    "transactions/test_apply.py",
    "transactions/test_full_disk.py",
    "transactions/test_replaced.py",
    "transactions/test_transaction_properties.py",
    "transactions/test_transactions.py",
    "transactions/test_waiting.py",
    "_lib/test_fork_lock.py",
    *sorted(str(path.relative_to(HERE)) for path in (HERE / "containment").rglob("test_*.py") if path not in ROOT_ONLY),
]
COPIED = [
    "conftest.py",
    "golden",
    "support",
    "_lib",
    "apps",
    "audit",
    "broker",
    "containment",
    "git",
    "integrations",
    "policy",
    "runtime",
    "transactions",
]
SSH = "broker/test_ssh_transport.py"
# The attacks: root and the ordinary user run all of them, and none may be skipped.
ATTACKS = [
    "containment/test_attacks.py",
    "containment/test_escape_classes.py",
    "containment/filesystem/test_races.py",
    "containment/network/test_reach.py",
    "containment/processes/test_leaks.py",
    "containment/test_walls.py",
]
# Of the attacks on git directories, those of `make test`.
SAMPLED = sorted(str(path.relative_to(HERE)) for path in (HERE / "git").glob("test_*_attacks.py"))
MIN_ATTACKS = 80
# Slow tests that do not depend on privileges: running them as root is enough.
LEFT_OUT = "not gigabyte and not bomb and not talking and not two_hundred and not three_hundred and not forges"


@cache
def python_for_all() -> str | None:
    """Return an interpreter of this version that every user can start."""
    for path in (
        sys._base_executable,
        f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}",
        "/usr/bin/python3",
    ):
        probe = [*AS_NOBODY, path, "-I", "-c", "import sys; print(sys.version_info[:2], sys.implementation.cache_tag)"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.stdout == f"{sys.version_info[:2]} {sys.implementation.cache_tag}\n":
            return path
    return None


@pytest.fixture(scope="module")
def shelf() -> Iterator[Path]:
    """A directory that every user can read, with copies of the package, its tests and their dependencies."""
    folder = Path(tempfile.mkdtemp(prefix="ordinary-"))
    folder.chmod(0o755)
    for name in NEEDED:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        if spec.submodule_search_locations:
            shutil.copytree(origin.parent, folder / "lib" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, folder / "lib")
    (folder / "tests").mkdir()
    for name in COPIED:
        if (HERE / name).is_dir():
            shutil.copytree(HERE / name, folder / "tests" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(HERE / name, folder / "tests")
    shutil.copytree(HERE.parent / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "docs").mkdir()
    shutil.copy(HERE.parent / "docs" / "results.md", folder / "docs")
    (folder / "home").mkdir()
    os.chown(folder / "home", NOBODY, NOBODY)
    python = python_for_all()
    if python is not None:
        # Compile now: the user cannot write .pyc files there, so every process would compile the sources again.
        subprocess.run([python, "-I", "-m", "compileall", "-q", "-j2", str(folder / "lib")], check=True)
    yield folder
    shutil.rmtree(folder)


def as_nobody(shelf: Path, *words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the interpreter as an ordinary user, with the copies on its path."""
    python = python_for_all()
    if python is None:
        pytest.skip("there is no interpreter of this version that an ordinary user can start")
    return subprocess.run(
        [*before, *AS_NOBODY, python, "-B", *words],
        cwd=shelf / "home",
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(shelf / "home"),
            "PYTHONPATH": f"{shelf / 'lib'}:{shelf / 'tests' / 'support'}",
            "CORRAL_MUST_CONTAIN": os.environ.get("CORRAL_MUST_CONTAIN", ""),
            "CORRAL_TEST_BACKEND": os.environ.get("CORRAL_TEST_BACKEND", "auto"),
            "CORRAL_LEAK_RUNS": os.environ.get("CORRAL_LEAK_RUNS", "100"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def repeat(shelf: Path, name: str, *options: str, before: Sequence[str] = ()) -> str:
    """Run a test file as an ordinary user, and return the last line of its output."""
    # A directory for each file: a test can leave files that the user cannot remove, and they must not stop the next.
    place = shelf / "home" / str([*REPEATED, *SAMPLED, SSH].index(name))
    fixed = ["-q", "-x", "-p", "no:cacheprovider", "-W", "error", "--basetemp", str(place)]
    done = as_nobody(shelf, "-m", "pytest", *fixed, *options, str(shelf / "tests" / name), before=before)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.rstrip().rpartition("\n")[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests already run as an ordinary user")
@pytest.mark.parametrize("name", [name for name in REPEATED if name not in ATTACKS])
def test_ordinary_user_passes_the_same_tests(shelf: Path, name: str) -> None:
    assert " passed" in repeat(shelf, name, "-k", LEFT_OUT)


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests already run as an ordinary user")
def test_ordinary_user_pushes_over_ssh(shelf: Path) -> None:
    # The sshd of an ordinary user logs in that user alone. On most machines this one is locked, and has no shell.
    others = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[2] != str(NOBODY)]
    own = f"nobody:x:{NOBODY}:{NOBODY}:nobody:{shelf / 'home'}:/bin/sh"
    (shelf / "passwd").write_text("\n".join([*others, own, ""]))
    (shelf / "shadow").write_text("nobody:*:20000::::::\n")
    mount = f'mount --bind {shelf}/passwd /etc/passwd && mount --bind {shelf}/shadow /etc/shadow && exec "$@"'
    summary = repeat(shelf, SSH, "-m", "real", before=["unshare", "--mount", "sh", "-c", mount, "sh"])
    assert (" passed" in summary, "skipped" in summary) == (True, False), summary


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests already run as an ordinary user")
@pytest.mark.parametrize("name", SAMPLED)
def test_ordinary_user_is_contained_in_git(shelf: Path, name: str) -> None:
    assert " passed" in repeat(shelf, name, "-m", "not real")


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests already run as an ordinary user")
@pytest.mark.parametrize("name", ATTACKS)
def test_ordinary_user_is_contained_against_every_attack(shelf: Path, name: str) -> None:
    summary = repeat(shelf, name)
    print(name, summary)
    # The count equals root's: no attack is missing or skipped.
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", str(HERE / name)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    expected = sum(line.count("::") for line in listed.splitlines())
    assert summary.split(" in ")[0] == f"{expected} passed"
    assert name != ATTACKS[0] or expected >= MIN_ATTACKS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program that an ordinary user cannot kill")
def test_unkillable_process_is_reported_without_delaying_run(shelf: Path) -> None:
    if os.statvfs(shelf).f_flag & os.ST_NOSUID:
        pytest.skip("the temporary directory is mounted with nosuid")
    stubborn, seconds = shelf / "stubborn", unique_seconds()
    shutil.copy(python_for_all() or sys.executable, stubborn)
    stubborn.chmod(0o4755)
    become_root = "import os, sys, time; os.setuid(0); time.sleep(float(sys.argv[1]))"
    code = f"""
from corral import Containment, Sandbox, SandboxConfig
from corral.runtime.dispatch import start
from corral.runtime.run_options import RunContext, RunOptions
from corral.model.call import Call, Launch, Verdict
with Sandbox(SandboxConfig({str(shelf / "home")!r}, containment=Containment(backend="none"))) as box:
    launch = Launch({str(stubborn)!r}, ("stubborn", "-c", {become_root!r}, {seconds!r}), "/", {{}}, None, 1.2)
    result = start(box._pool, RunContext(box.config), launch, RunOptions(Call(("stubborn",))), Verdict()).wait()
    print(result.exit_code, [violation.kind for violation in result.violations], box.run(["true"]).ok)
"""
    done = as_nobody(shelf, "-c", code)
    left = alive(seconds)
    for pid in left:
        os.kill(pid, 9)
    assert (done.stdout, done.stderr, len(left)) == ("-101 ['left-running'] True\n", "", 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests already run as an ordinary user")
def test_bundled_tasks_pass_as_an_ordinary_user(shelf: Path) -> None:
    done = as_nobody(shelf, "-m", "corral", "eval", "--fixtures", "--json", "--out", str(shelf / "home" / "eval"))
    told = json.loads(done.stdout)
    assert (done.returncode, told["not_passed"], told["failed"], told["error"]) == (0, [], 0, 0), done.stderr
    if os.environ.get("CORRAL_MUST_CONTAIN"):
        assert told["skipped"] == 0, done.stdout
    assert told["tags"]["transaction"]["tried"] >= 15
