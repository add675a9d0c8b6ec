"""The machine's credentials come and go while a sandbox lives: later commands run, and see none of them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import has_bubblewrap, must_hold
from test_layers import import_path

from corral import Containment, Sandbox
from corral.containment.masks import Masks, matches

# In a mount namespace of its own, where /etc can be written without changing the machine's.
PROGRAM = """
import json, os, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Containment, Sandbox, SandboxConfig
from corral.unguarded import unguarded

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


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_later_commands_run_and_see_no_credentials(backend: str, change: str, project: Path, tmp_path: Path) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    for name in ("upper", "work"):
        (tmp_path / name).mkdir()
    options = f"userxattr,lowerdir=/etc,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    apart = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
    script = f'mount -t overlay overlay -o {options} /etc && exec "$@"'
    words = [sys.executable, "-c", PROGRAM, import_path(), str(project), backend, change]
    done = subprocess.run([*apart, "sh", "-c", script, "sh", *words], capture_output=True, text=True, check=False)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        must_hold()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert int(found.pop("canary")) > 0
    steps = ("before", "after", "later")
    assert found == {step: ["0", "0"] for step in steps}


@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_grant_to_read_may_go_while_the_sandbox_lives(
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
    masks = Masks([f"{tmp_path}/shadow*", f"{tmp_path}/keytab"])
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


def test_pattern_in_a_directory_that_is_not_there_names_nothing(tmp_path: Path) -> None:
    assert matches(f"{tmp_path}/missing/x*") == matches(f"{tmp_path}/missing") == []
    (tmp_path / "link").symlink_to("nowhere")
    assert matches(f"{tmp_path}/link") == [f"{tmp_path}/link"]
