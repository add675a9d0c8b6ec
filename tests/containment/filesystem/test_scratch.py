"""A sandbox's /tmp and home are never where a command can write, and its tree is built without following links."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import has_bubblewrap, must_hold
from hypothesis import given
from hypothesis import strategies as st
from observe import eventually

from corral import Containment, ContainmentError, Sandbox
from corral.containment.backend import UnusableError
from corral.containment.filesystem import scratch
from corral.containment.filesystem.temp_dirs import process_temp_dir, safe_temp_dir, why_unsafe
from corral.containment.plan import Step
from corral.containment.processes import bubblewrap_args
from corral.policy.user_dirs import PROJECT_MARKS

SWAP = """
import os, sys
for name in os.listdir(sys.argv[1]):
    own = os.path.join(sys.argv[1], name)
    if os.path.isdir(os.path.join(own, "home")):
        os.rename(own + "/home", own + "/home.old")
        os.symlink(sys.argv[2], own + "/home")
        print("swapped", name)
"""
LOOK = 'read -r go; cat "$HOME/.secret"; touch "$HOME/PLANTED"'


class Scene:
    """A project in which a command attacks, and a directory of the user's that no command may see."""

    def __init__(self, project: Path, above: Path) -> None:
        self.project, self.above = project, above
        self.victim = above / "victim"
        self.victim.mkdir()
        (self.victim / ".secret").write_text("canary-secret\n")
        # Looks like a sandbox's scratch. A command can swap this one, which proves that the attack works.
        self.canary = project / "tmp" / "corral-canary"
        (self.canary / "home").mkdir(parents=True)

    def tmpdir(self, way: str) -> Path:
        """Return a TMPDIR in a directory that commands can write."""
        paths = {
            "plain": self.project / "tmp",
            "through a link": self.above / "other-name" / "tmp",
            "a link itself": self.project / "link",
            "below a grant": self.above / "granted" / "tmp",
        }
        (self.above / "granted" / "tmp").mkdir(parents=True)
        (self.above / "other-name").symlink_to(self.project)
        (self.project / "link").symlink_to("tmp")
        return paths[way]

    def swap(self, box: Sandbox, place: Path) -> list[str]:
        """Let a command replace the home of each scratch directory by a link, and return the replaced names."""
        code = [sys.executable, "-c", SWAP, os.path.realpath(place), str(self.victim)]
        return box.run(code).stdout_text.split()

    def check(self, box: Sandbox) -> None:
        """Fail if commands of new wardens reach the victim."""
        assert "canary-secret" not in outcomes(box)
        assert not (self.victim / "PLANTED").exists()
        assert (self.canary / "home" / ".secret").read_text() == "canary-secret\n"


@pytest.fixture(params=["warden", "bubblewrap"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that builds the tree."""
    if request.param == "bubblewrap" and not has_bubblewrap():
        must_hold()
    return str(request.param)


@pytest.fixture
def scene(project: Path, tmp_path: Path) -> Scene:
    """The project and the victim of an attack."""
    return Scene(project, tmp_path)


def outcomes(box: Sandbox) -> str:
    """Run commands at the same time, so that each needs its own warden, and return their output and errors."""
    output = []
    handles = []
    for _ in range(3):
        try:
            handles.append(box.start(LOOK, shell=True, open_stdin=True))
        except ContainmentError as error:
            output.append(str(error))
    for handle in handles:
        with handle:
            handle.write_stdin(b"go\n")
            handle.close_stdin()
            output.append(handle.wait().stdout_text)
    return "\n".join(output)


@pytest.mark.parametrize("way", ["plain", "through a link", "a link itself", "below a grant"])
def test_home_is_not_swapped_where_tmpdir_is_writable(
    way: str, backend: str, scene: Scene, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = scene.tmpdir(way)
    monkeypatch.setenv("TMPDIR", str(where))
    box = open_sandbox(containment=Containment(backend=backend, write=(str(scene.above / "granted"),)))
    assert box.run(["true"]).enforcement == "full"
    if way == "below a grant":
        assert scene.swap(box, where) == []
    assert scene.swap(box, scene.project / "tmp") == ["swapped", "corral-canary"]
    scene.check(box)


def test_home_is_not_followed_where_another_project_swaps_it(
    backend: str, scene: Scene, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    # corral cannot know every project in which commands run now, so building the tree never follows a link.
    monkeypatch.setenv("TMPDIR", str(scene.project / "tmp"))
    (scene.above / "other").mkdir()
    box = open_sandbox(project_root=str(scene.above / "other"), containment=Containment(backend=backend))
    assert box.run(["true"]).enforcement == "full"
    monkeypatch.delenv("TMPDIR")
    assert len(scene.swap(open_sandbox(), scene.project / "tmp")) == 4
    scene.check(box)


def test_grant_is_not_followed_where_another_project_swaps_it(
    backend: str, scene: Scene, open_sandbox: Callable[..., Sandbox]
) -> None:
    # The grant of one sandbox may lie in the project of another.
    (scene.above / "other").mkdir()
    grant = scene.project / "tmp" / "shared"
    grant.mkdir()
    containment = Containment(backend=backend, write=(str(grant),))
    box = open_sandbox(project_root=str(scene.above / "other"), containment=containment)
    assert box.run(["true"]).enforcement == "full"
    swap = f"import os; os.rename({str(grant)!r}, {str(grant)!r} + '.old'); os.symlink({str(scene.victim)!r}, {str(grant)!r})"
    assert open_sandbox().run([sys.executable, "-c", swap]).ok
    assert (grant / ".secret").exists()
    look = f"cat {grant}/.secret; touch {grant}/PLANTED"
    output = []
    with box.start("read -r go", shell=True, open_stdin=True) as first:
        try:
            output.append(box.run(look, shell=True).stdout_text)
        except ContainmentError as error:
            output.append(str(error))
        first.kill()
    assert "canary-secret" not in "".join(output)
    assert not (scene.victim / "PLANTED").exists()


READ = """
import glob
for path in sorted(glob.glob("tmp/corral-*/tmp/token")):
    print(open(path).read())
"""


@pytest.mark.parametrize("mark", PROJECT_MARKS)
def test_tmpdir_in_any_marked_project_is_not_used(mark: str, scene: Scene) -> None:
    other = scene.above / "other"
    (other / "deep" / "tmp").mkdir(parents=True)
    environ = {"TMPDIR": str(other / "deep" / "tmp")}
    assert safe_temp_dir((str(scene.project),), environ) == environ["TMPDIR"]
    (other / mark).touch()
    assert safe_temp_dir((str(scene.project),), environ) == "/tmp"


def test_token_in_tmp_is_not_read_by_another_project(
    backend: str, scene: Scene, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(scene.project / "tmp"))
    (scene.project / ".git").mkdir()
    (scene.above / "other").mkdir()
    box = open_sandbox(project_root=str(scene.above / "other"), containment=Containment(backend=backend))
    made = box.run([sys.executable, "-c", "open('/tmp/token', 'w').write('stolen')"])
    assert (made.exit_code, made.enforcement) == (0, "full")
    (scene.canary / "tmp").mkdir()
    (scene.canary / "tmp" / "token").write_text("canary")
    assert open_sandbox().run([sys.executable, "-c", READ]).stdout_text.split() == ["canary"]


SOURCES = {"directory": "directory", "bind a directory": "bind", "bind a file": "bind", "link": "link"}


@pytest.mark.parametrize("swapped", ["home", "home/a"])
@pytest.mark.parametrize("kind", SOURCES)
def test_bubblewrap_tree_is_not_prepared_through_a_link(kind: str, swapped: str, scene: Scene) -> None:
    own = scene.above / "scratch"
    known = scratch.make(str(own), str(own), {})
    steps = [
        Step("bind", "/home/user", f"{own}/home", "rw"),
        Step(SOURCES[kind], "/home/user/a/b", "/etc/passwd" if kind == "bind a file" else str(scene.project), "ro"),
    ]
    (own / swapped).mkdir(exist_ok=True)
    (own / swapped).rename(own / "old")
    (own / swapped).symlink_to(scene.victim)
    os.mkdir(own / swapped / "canary")
    with pytest.raises((UnusableError, OSError), match=r"replaced|link"):
        bubblewrap_args.prepare(steps, str(own), known)
    assert sorted(os.listdir(scene.victim)) == [".secret", "canary"]


@pytest.mark.parametrize("kind", SOURCES)
def test_bubblewrap_tree_can_be_prepared_twice(kind: str, scene: Scene) -> None:
    own = scene.above / "scratch"
    known = scratch.make(str(own), str(own), {})
    source = "/etc/passwd" if kind == "bind a file" else str(scene.project)
    steps = [Step("bind", "/home/user", f"{own}/home", "rw"), Step(SOURCES[kind], "/home/user/a/b", source, "ro")]
    for _ in range(2):
        bubblewrap_args.prepare(steps, str(own), known)
        made = own / "home" / "a" / "b"
        assert (made.is_symlink(), made.is_dir(), made.is_file()) == (
            kind == "link",
            kind != "bind a file",
            kind == "bind a file",
        )
    assert ((own / "nothing").is_file(), (own / "nothing.d").is_dir()) == (True, True)


RACE = """
import os, sys
while not os.path.exists(sys.argv[1] + "/stop"):
    for name in os.listdir(sys.argv[1]):
        own = os.path.join(sys.argv[1], name)
        if os.path.isdir(own + "/home") and not os.path.islink(own + "/home"):
            try:
                os.rename(own + "/home", own + "/home.old")
                os.symlink(sys.argv[2], own + "/home")
            except OSError:
                continue
"""


def test_command_line_is_not_raced_into_the_victim(scene: Scene, open_sandbox: Callable[..., Sandbox]) -> None:
    # A corral.toml that asks for scratch of the sandbox needs no trust.
    (scene.project / "corral.toml").write_text('[containment]\nscratch = "sandbox"\n')
    where = scene.project / "tmp"
    environ = os.environ | {"TMPDIR": str(where), "PYTHONPATH": os.pathsep.join(sys.path)}
    (scene.project / "look.sh").write_text("cat $HOME/.secret; touch $HOME/PLANTED\n")
    words = [sys.executable, "-m", "corral", "run", "--root", str(scene.project), "--", "bash", "look.sh"]
    racer = open_sandbox(timeout_seconds=None)
    with racer.start([sys.executable, "-c", RACE, str(where), str(scene.victim)]) as race:
        eventually((scene.canary / "home" / ".secret").exists)
        done = [
            subprocess.run(words, cwd=scene.project, env=environ, capture_output=True, text=True, check=False)
            for _ in range(6)
        ]
        (where / "stop").touch()
        assert race.wait().ok
    assert [(run.stdout, ".secret: No such file" in run.stderr) for run in done] == [("", True)] * 6
    assert [path.name for path in where.iterdir() if path.name.startswith("corral-")] == ["corral-canary"]
    assert not (scene.victim / "PLANTED").exists()


@pytest.mark.parametrize("name", ["TEMP", "TMP"])
def test_only_tmpdir_is_read_from_the_environment(name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setenv(name, str(scene.above))
    assert safe_temp_dir((str(scene.project),), os.environ) == "/tmp"


def test_safe_tmpdir_is_used(scene: Scene) -> None:
    own = scene.above / "own"
    own.mkdir(mode=0o700)
    assert safe_temp_dir((str(scene.project),), {"TMPDIR": str(own)}) == os.path.realpath(own)


@pytest.mark.parametrize(
    ("writable", "found"),
    [
        pytest.param((), "/tmp", id="no project"),
        pytest.param(("/tmp",), "/var/tmp", id="the project is /tmp"),
        pytest.param(("/tmp/project",), "/tmp", id="a project below /tmp"),
        pytest.param(("/tmpest",), "/tmp", id="a name that begins in the same way"),
        pytest.param(("/var",), "/tmp", id="the project is above /var/tmp"),
    ],
)
def test_fallback_is_outside_writable_directories(writable: tuple[str, ...], found: str) -> None:
    assert safe_temp_dir(writable, {"TMPDIR": "/nonexistent"}) == found


@pytest.mark.parametrize("writable", [("/",), ("/tmp", "/var/tmp"), ("/tmp", "/var")])
def test_no_safe_temp_dir_is_an_error(writable: tuple[str, ...]) -> None:
    with pytest.raises(ContainmentError, match=r"TMPDIR.*/tmp: .*/var/tmp: "):
        safe_temp_dir(writable, {})


@pytest.mark.parametrize(
    ("above", "mode", "why"),
    [
        pytest.param("", 0o777, "no sticky bit", id="others may rename in it"),
        pytest.param("above", 0o777, "no sticky bit", id="others may rename above it"),
        pytest.param("", 0o770, "no sticky bit", id="a group may rename in it"),
        pytest.param("", 0o1777, "", id="sticky"),
        pytest.param("", 0o700, "", id="own"),
    ],
)
def test_directory_that_others_can_rename_is_unsafe(above: str, mode: int, why: str, tmp_path: Path) -> None:
    place = tmp_path / "above" / "place"
    place.mkdir(parents=True)
    (place.parent if above else place).chmod(mode)
    assert (why in why_unsafe(str(place), ())) if why else (why_unsafe(str(place), ()) == "")


def test_rejects_file_or_link_loop_as_tmpdir(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "loop", "missing"):
        assert safe_temp_dir((), {"TMPDIR": str(tmp_path / name)}) == "/tmp"
    assert safe_temp_dir((), {"TMPDIR": "relative"}) == "/tmp"


names = st.lists(st.sampled_from(["a", "b", "..", ".", "tmp"]), max_size=5)


@given(names, names)
def test_chosen_temp_dir_is_never_below_a_writable_root(below: list[str], root: list[str]) -> None:
    place, top = "/".join(["/var/tmp", *below]), os.path.realpath("/".join(["/var/tmp", *root]))
    try:
        found = safe_temp_dir((top,), {"TMPDIR": place})
    except ContainmentError:
        assert top == "/"
    else:
        assert found == os.path.realpath(found)
        assert not f"{found}/".startswith(f"{top}/")


def test_temp_dir_is_not_in_the_working_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".git").mkdir()
    (project / "sub" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "sub" / "deep")
    monkeypatch.setenv("TMPDIR", str(project / "sub"))
    assert process_temp_dir() == "/tmp"
