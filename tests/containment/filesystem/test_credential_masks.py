"""Credential files of the machine appear and disappear while a sandbox runs: later commands run, and see none of them."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attempt import has_bubblewrap, must_hold
from machines import import_path
from observe import eventually
from sampling import sampled

from corral import Containment, Sandbox
from corral._lib.symlink_chain import matching_paths
from corral.containment.filesystem.credential_masks import CredentialMasks
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime, ctime_of

# Runs in its own mount namespace, where it can write /etc without changing the machine's.
PROGRAM = """
import json, os, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Containment, Sandbox, SandboxConfig
from corral.apps.unguarded import unguarded

LOOK = "cat /etc/gshadow.lock /etc/gshadow.d/key /etc/krb5.keytab /etc/shadow-new 2>&1 | grep -c canary; true"

def write(path):
    with open(path, "w") as file:
        file.write("canary\\n")
    os.chmod(path, 0o600)

def gone():
    os.unlink("/etc/gshadow.lock")

def rotated():
    write("/etc/krb5.keytab.new")
    os.rename("/etc/krb5.keytab.new", "/etc/krb5.keytab")

def made_anew():
    os.unlink("/etc/krb5.keytab")
    write("/etc/krb5.keytab")

def appeared():
    write("/etc/shadow-new")

def became_a_directory():
    os.unlink("/etc/gshadow.lock")
    os.mkdir("/etc/gshadow.lock")
    write("/etc/gshadow.lock/x")

def became_a_file():
    os.unlink("/etc/gshadow.d/key")
    os.rmdir("/etc/gshadow.d")
    write("/etc/gshadow.d")

def came_and_went():
    write("/etc/shadow-new")
    os.unlink("/etc/shadow-new")

write("/etc/gshadow.lock")
os.makedirs("/etc/sudoers.d", exist_ok=True)
write("/etc/krb5.keytab")
os.mkdir("/etc/gshadow.d")
write("/etc/gshadow.d/key")
config = SandboxConfig(sys.argv[2], containment=Containment(backend=sys.argv[3]))
found = {}
with Sandbox(unguarded(config)) as box:
    wardens = 0
    def look():
        # All existing wardens are busy, so the next command starts a new one. The last command uses an existing one.
        global wardens
        wardens += 1
        handles = [box.start("read -r go", shell=True, open_stdin=True) for _ in range(wardens)]
        results = [box.run(LOOK, shell=True)]
        for handle in handles:
            handle.write_stdin(b"go\\n")
            handle.wait()
        results.append(box.run(LOOK, shell=True))
        return [result.stdout_text.strip() or result.stderr_text for result in results]
    found["before"] = look()
    change = globals()[sys.argv[4]]
    change()
    found["after"] = look()
    found["later"] = look()
found["canary"] = os.popen("cat /etc/gshadow* /etc/krb5.keytab /etc/shadow-new 2>/dev/null | grep -c canary").read().strip()
print(json.dumps(found))
"""
CHANGES = ["gone", "rotated", "made_anew", "appeared", "became_a_directory", "became_a_file", "came_and_went"]

# Several threads ask for a warden at once, after a credential has appeared that idle wardens do not mask.
THREADS_PROGRAM = """
import json, os, sys, threading, time
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Containment, Sandbox, SandboxConfig
from corral.containment.filesystem.directory_tracker import NO_CTIME, comparable_ctime, ctime_of
from corral.apps.unguarded import unguarded

LOOK = "read -r go; cat /etc/shadow-new 2>&1 | grep -c canary; true"
THREADS, ROUNDS = 4, 6

def at_once(box):
    handles, barrier = [], threading.Barrier(THREADS)
    def begin():
        barrier.wait()
        handles.append(box.start(LOOK, shell=True, open_stdin=True))
    threads = [threading.Thread(target=begin) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for handle in handles:
        handle.write_stdin(b"go\\n")
    return [handle.wait().stdout_text.strip() for handle in handles]

config = SandboxConfig(sys.argv[2], containment=Containment(backend=sys.argv[3]))
found = {"after": [], "canary": 0}
with Sandbox(unguarded(config)) as box:
    for _ in range(ROUNDS):
        at_once(box)
        with open("/etc/shadow-new", "w") as file:
            file.write("canary\\n")
        os.chmod("/etc/shadow-new", 0o600)
        while comparable_ctime(ctime_of("/etc")) == NO_CTIME:
            time.sleep(0.005)
        found["after"] += at_once(box)
        found["canary"] += open("/etc/shadow-new").read().count("canary")
        os.unlink("/etc/shadow-new")
print(json.dumps(found))
"""


def run_beside_etc(program: str, *words: str, above: Path) -> dict[str, object]:
    """Run a program that sees a copy of /etc, which it can write, and return the object that it prints."""
    for name in ("upper", "work"):
        (above / name).mkdir()
    options = f"userxattr,lowerdir=/etc,upperdir={above}/upper,workdir={above}/work"
    apart = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
    script = f'mount -t overlay overlay -o {options} /etc && exec "$@"'
    whole = [*apart, "sh", "-c", script, "sh", sys.executable, "-c", program, import_path(), *words]
    done = subprocess.run(whole, capture_output=True, text=True, check=False)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        must_hold()
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Let the interpreter switch between threads as often as it can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.parametrize("change", sampled(CHANGES, every=3))
@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_later_commands_run_and_see_no_credentials(backend: str, change: str, project: Path, tmp_path: Path) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    found = run_beside_etc(PROGRAM, str(project), backend, change, above=tmp_path)
    assert int(str(found.pop("canary"))) > 0
    steps = ("before", "after", "later")
    assert found == {step: ["0", "0"] for step in steps}


@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_concurrent_commands_see_no_new_credential(backend: str, project: Path, tmp_path: Path) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    found = run_beside_etc(THREADS_PROGRAM, str(project), backend, above=tmp_path)
    assert found == {"after": ["0"] * 24, "canary": 6}


@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_directory_of_a_read_grant_may_be_removed(
    backend: str, tmp_path: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    given = tmp_path / "given"
    given.mkdir()
    (given / "file").touch()
    box = open_sandbox(containment=Containment(backend=backend, read=(str(given),)))
    with box.start("read -r go", shell=True, open_stdin=True) as first:
        assert box.run(["ls", str(given)]).stdout == b"file\n"
        shutil.rmtree(given)
        with box.start("read -r go", shell=True, open_stdin=True) as second:
            assert box.run(["ls", str(given)]).stdout == b""
            second.kill()
        first.kill()


def test_generation_increases_only_for_new_files(tmp_path: Path) -> None:
    (tmp_path / "shadow").touch()
    masks = CredentialMasks([f"{tmp_path}/shadow*", f"{tmp_path}/keytab"])
    assert masks.generation() == 0
    (tmp_path / "other").touch()
    (tmp_path / "shadow").unlink()
    assert masks.generation() == 0
    (tmp_path / "keytab").touch()
    assert masks.generation() == 1
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "keytab")
    assert masks.generation() == 2
    assert masks.generation() == 2


def test_no_thread_sees_an_old_generation(tmp_path: Path, switching_often: None) -> None:
    for number in range(500):
        (tmp_path / f"shadow{number}").touch()
    masks = CredentialMasks([f"{tmp_path}/shadow*"])
    before = masks.generation()
    for _ in range(10):
        (tmp_path / "shadow").touch()
        # Until the ctime is comparable, every thread searches for itself.
        eventually(lambda: comparable_ctime(ctime_of(str(tmp_path))) != NO_CTIME)
        barrier = threading.Barrier(4)
        generations: list[int] = []

        def ask(barrier: threading.Barrier = barrier, generations: list[int] = generations) -> None:
            barrier.wait()
            generations.append(masks.generation())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert generations == [before + 1] * 4
        before += 1
        (tmp_path / "shadow").unlink()


def test_pattern_in_missing_directory_matches_nothing(tmp_path: Path) -> None:
    assert matching_paths(f"{tmp_path}/missing/x*") == matching_paths(f"{tmp_path}/missing") == []
    (tmp_path / "link").symlink_to("nowhere")
    assert matching_paths(f"{tmp_path}/link") == [f"{tmp_path}/link"]
