"""No command can keep a planted file from being moved away. If one cannot be moved, no other command of the project starts."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral import Containment, Sandbox, SandboxResult
from corral.containment.filesystem import quarantine
from golden import check

PLANTED = (".envrc", ".claude/settings.json", ".vscode/tasks.json", "sub/.envrc")
PLANT = "mkdir -p .claude .vscode sub; for f in " + " ".join(PLANTED) + "; do echo planted >$f; done"
# Each is run before or after the files are planted. All of them stopped the quarantine of an earlier version.
BEFORE = {
    "nothing": "true",
    "a file in the way": "touch corral-quarantine",
    "a link in the way": "ln -s /etc corral-quarantine",
    "a directory in the way": "mkdir corral-quarantine && chmod 0 corral-quarantine",
}
AFTER = {
    "nothing": "true",
    "no write permission to the project": "chmod 555 .",
    "no permission to the project": "chmod 0 .",
    "no permission to the directories": "chmod 0 sub .claude .vscode",
    "no permission to the files": "chmod 0 .envrc sub/.envrc .claude/settings.json",
    "no permission at all": "chmod 0 .envrc sub/.envrc .claude/* .vscode/*; chmod 0 sub .claude .vscode .",
}


@pytest.fixture(params=["same file system", "another file system"])
def root(request: pytest.FixtureRequest, project: Path, tmp_path: Path) -> Iterator[Path]:
    """A project on the file system of the user's state directory, or on another one."""
    if request.param == "same file system":
        yield project
        return
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("shared memory is on the same file system")
    path = Path(tempfile.mkdtemp(prefix="corral-test-", dir="/dev/shm"))
    with pytest.raises(OSError, match="cross-device"):
        path.rename(tmp_path / "moved")
    yield path
    subprocess.run(["chmod", "-R", "u+rwX", path], check=False)
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "state"


def left(root: Path) -> list[str]:
    return [name for name in PLANTED if os.path.lexists(root / name)]


def places(result: SandboxResult) -> list[Path]:
    """Return the paths to which planted files were moved."""
    assert {violation.kind for violation in result.violations} == {"planted"}
    return [Path(violation.detail.removeprefix("it was moved to ")) for violation in result.violations]


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_name_in_the_way_does_not_stop_the_quarantine(
    root: Path, state: Path, open_sandbox: Callable[..., Sandbox], before: str
) -> None:
    result = open_sandbox(project_root=str(root)).run(f"{before}; {PLANT}", shell=True)
    assert (result.ok, left(root)) == (True, [])
    moved = places(result)
    assert len(moved) == len(PLANTED)
    assert all(path.is_relative_to(state / "corral-quarantine") for path in moved)
    assert sorted(path.read_text() for path in state.rglob("*") if path.is_file()) == ["planted\n"] * len(PLANTED)
    assert not list(root.rglob("planted-*"))


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_permissions_do_not_stop_the_quarantine(root: Path, open_sandbox: Callable[..., Sandbox], after: str) -> None:
    box = open_sandbox(project_root=str(root))
    result = box.run(f"{PLANT}; {after}", shell=True)
    root.chmod(0o755)
    assert (result.ok, len(places(result)), left(root)) == (True, len(PLANTED), [])


def test_planted_files_stay_without_containment(root: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    open_sandbox(project_root=str(root), containment=Containment(backend="none")).run(PLANT, shell=True)
    assert left(root) == [*PLANTED]


def test_mode_of_the_directory_above_is_kept(root: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    result = open_sandbox(project_root=str(root)).run("mkdir d && touch d/.envrc && chmod 555 d", shell=True)
    assert len(places(result)) == 1
    assert oct((root / "d").stat().st_mode)[-3:] == "555"


TREE = """
import os, socket
os.makedirs(".claude/a/b/c")
os.chdir(".claude")
open("a/b/c/file", "wb").write(b"x" * 3_000_000)
os.symlink("/etc/passwd", "a/link")
os.symlink("/nowhere", "a/dangling")
os.mkfifo("a/pipe")
socket.socket(socket.AF_UNIX).bind("a/socket")
os.link("a/b/c/file", "a/b/second")
open(b"a/b/\\xff\\n", "w").write("odd")
for path, mode in (("a/b/c/file", 0), ("a/b/c", 0), ("a/b", 0o111), ("a", 0o444)):
    os.chmod(path, mode)
"""


def test_whole_tree_is_moved(root: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    (root / "plant.py").write_text(TREE)
    result = open_sandbox(project_root=str(root)).run(["python3", "plant.py"])
    (place,) = places(result)
    subprocess.run(["chmod", "-R", "u+rwX", place], check=True)
    assert (place / "a/b/c/file").read_bytes() == (place / "a/b/second").read_bytes() == b"x" * 3_000_000
    assert {name: os.readlink(place / "a" / name) for name in ("link", "dangling")} == {
        "link": "/etc/passwd",
        "dangling": "/nowhere",
    }
    assert Path(os.fsdecode(os.fsencode(place) + b"/a/b/\xff\n")).read_text() == "odd"
    assert os.listdir(root) == ["plant.py"]


TOO_MUCH = {
    "too many bytes": "truncate -s 2M .envrc",
    "too many entries": "mkdir .envrc && cd .envrc && seq 20 | xargs touch",
    "too deep": f"mkdir .envrc && cd .envrc && for i in $(seq {quarantine.MAX_COPIED_DEPTH + 1}); do mkdir d && cd d; done",
}


@pytest.fixture
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_COPIED_BYTES", 1 << 20)
    monkeypatch.setattr(quarantine, "MAX_COPIED_ENTRIES", 2 * quarantine.MAX_COPIED_DEPTH)


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_tree_that_is_too_large_to_copy_gets_a_random_name(
    root: Path, state: Path, open_sandbox: Callable[..., Sandbox], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "seq 20" in text:
        monkeypatch.setattr(quarantine, "MAX_COPIED_ENTRIES", 19)
    result = open_sandbox(project_root=str(root)).run(text, shell=True)
    (place,) = places(result)
    assert (result.ok, os.path.lexists(root / ".envrc"), os.path.lexists(place)) == (True, False, True)
    if os.stat(root).st_dev != os.stat(state).st_dev:
        assert place.parent == root
        assert place.name.startswith("planted-")
        assert os.listdir(state / "corral-quarantine") == []


@pytest.mark.usefixtures("_small_limits")
def test_limit_of_copies_holds_for_one_command(root: Path, state: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    text = "for i in 1 2 3; do mkdir $i && truncate -s 600K $i/.envrc; done"
    moved = places(open_sandbox(project_root=str(root)).run(text, shell=True))
    assert list(root.rglob(".envrc")) == []
    expected = 3 if os.stat(root).st_dev == os.stat(state).st_dev else 1
    assert sum(path.is_relative_to(state) for path in moved) == expected


def test_unusable_state_directory_does_not_stop_the_quarantine(
    root: Path, tmp_path: Path, state: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    state.write_text("no directory")
    (outside,) = places(open_sandbox(project_root=str(root)).run(["touch", ".envrc"]))
    assert outside.is_relative_to(tmp_path / "cache" / "corral" / "quarantine")


def test_quarantine_of_a_home_directory_project_is_outside(
    project: Path, monkeypatch: pytest.MonkeyPatch, open_sandbox: Callable[..., Sandbox]
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(project))
    (place,) = places(open_sandbox().run(["touch", ".envrc"]))
    assert place.is_relative_to(f"/var/tmp/corral-{os.geteuid()}/quarantine")
    assert not os.path.lexists(project / ".envrc")
    shutil.rmtree(place.parent)


# The file is a mount point while corral looks, so the kernel does not rename it.
STUCK = """
import json, os, subprocess, sys, time
from corral import Containment, Profile, Sandbox, SandboxConfig
from corral.guard.rules.loader import effects, profile_named
from corral.model.call import Decision
from corral.model.errors import ContainmentError
project, backend, scratch = sys.argv[1:]
groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)
containment = Containment(backend=backend, scratch=scratch)
config = SandboxConfig(project, profile=profile, denylist=(), interpreter_block=(), containment=containment)
told = {}
def new_sandbox():
    with Sandbox(config) as other:
        try:
            return other.run(["true"]).ok
        except ContainmentError as error:
            return str(error)
def command_line():
    words = [sys.executable, "-m", "corral", "run", "--root", project, "--no-tty", "--", "touch", "ran"]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return [done.returncode, done.stderr, os.path.exists(f"{project}/ran")]
with Sandbox(config) as box:
    handle = box.start("echo planted >.envrc; read line", shell=True, open_stdin=True)
    until = time.monotonic() + 30
    while not os.path.exists(f"{project}/.envrc"):
        assert time.monotonic() < until
        time.sleep(0.01)
    subprocess.run(["mount", "--bind", f"{project}/.envrc", f"{project}/.envrc"], check=True)
    handle.write_stdin(b"\\n")
    result = handle.wait()
    told["first"] = [result.ok, result.exit_code, [[v.text, v.remains] for v in result.violations]]
    again = box.run(["touch", "again"])
    told["second"] = [again.ok, again.stderr_text, os.path.exists(f"{project}/again")]
    told["other"], told["process"] = new_sandbox(), command_line()
told["later"] = new_sandbox()
told["later process"] = command_line()
subprocess.run(["umount", f"{project}/.envrc"], check=True)
if os.environ.get("REMOVES"):
    os.unlink(f"{project}/.envrc")
told["freed"], told["left"] = new_sandbox(), os.path.exists(f"{project}/.envrc")
told["freed process"] = command_line()
print(json.dumps(told))
"""


@pytest.mark.parametrize("removes", ["", "1"], ids=["corral moves it later", "the user removes it"])
@pytest.mark.parametrize("scratch", ["sandbox", "project"])
@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_nothing_runs_while_a_planted_file_remains(
    project: Path, tmp_path: Path, backend: str, scratch: str, removes: str
) -> None:
    namespaces = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    words = [*namespaces, sys.executable, "-c", STUCK, str(project), backend, scratch]
    environment = os.environ | {"HOME": str(tmp_path), "REMOVES": removes}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=120)
    if "unshare:" in done.stderr and os.environ.get("CORRAL_MUST_CONTAIN") != "1":
        pytest.skip("namespaces cannot be made here")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    text = told["other"]
    assert told["first"] == [False, 125, [[text, True]]]
    check("violations", "planted: it remains", text.replace(str(project), "PROJECT"))
    assert told["second"] == [False, f"corral: {text}\n", False]
    assert told["later"] == text
    for process in (told["process"], told["later process"]):
        assert (process[0], text in process[1], process[2]) == (125, True, False)
    assert (told["freed"], told["left"], told["freed process"][0]) == (True, False, 0)
    assert not list(tmp_path.glob("cache/corral/scratch/*/open-*"))
