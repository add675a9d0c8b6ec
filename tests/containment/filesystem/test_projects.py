"""Commands work in projects of every name and location, and cannot change corral's own installation."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sampling import sampled

import corral
from corral import Containment, Sandbox
from corral.containment.filesystem import view
from corral.guard import toolchains
from corral.model.errors import ContainmentError
from golden import check

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory for this test, with a name for commits."""
    path = tmp_path / "home"
    path.mkdir()
    (path / ".gitconfig").write_text('[user]\n\tname = "The \\"Real\\" User"\n\temail = o@example.org\n')
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return path


def check_everyday_work(held: Sandbox, root: Path) -> None:
    """Write a file, commit it, and fail to change a hook or to plant a file."""
    subprocess.run(["git", "init", "-q", root], check=True)
    text = "echo 1 > file && git add file && git commit -qm one && cat file && pwd"
    done = held.run(text, shell=True)
    assert (done.enforcement, done.exit_code, done.stderr, done.violations) == ("full", 0, b"", ())
    assert done.stdout == b"1\n" + os.fsencode(str(root)) + b"\n"
    shown = subprocess.run(
        ["git", "-C", root, "log", "-1", "--format=%an %ae"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == 'The "Real" User o@example.org\n'
    assert not held.run("echo x > .git/hooks/pre-commit", shell=True).ok
    planted = held.run("mkdir -p a/b && touch a/b/.envrc", shell=True)
    assert [violation.target for violation in planted.violations] == [f"{root}/a/b/.envrc"]
    assert not (root / "a" / "b" / ".envrc").exists()


NAMES = {
    "spaces": "a b  c ",
    "other alphabets": "проект-ü-漢字",
    "a new line": "a\nb",
    "quotes": "a'b\"c`d$(e)",
    "a backslash": "a\\nb",
    "like an option": "-rf",
    "a percent sign": "%s%n",
    "not UTF-8": os.fsdecode(b"\xff\xfe"),
    "deep": "/".join(["d" * 100] * 20),
    "a colon": "a:b,c",
}


@pytest.mark.parametrize("name", sampled(NAMES.values(), every=3), ids=NAMES)
def test_project_may_have_any_name(tmp_path: Path, open_sandbox: Callable[..., Sandbox], name: str) -> None:
    root = tmp_path / name
    root.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", root], check=True)
    check_everyday_work(open_sandbox(project_root=str(root)), root)


def test_project_path_through_links_is_resolved(tmp_path: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    root = tmp_path / "real" / "project"
    root.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", root], check=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "other").symlink_to(tmp_path / "link" / "project")
    check_everyday_work(open_sandbox(project_root=str(tmp_path / "other")), root)


def test_home_directory_may_be_the_project(home: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("canary")
    (home / "work").mkdir()
    held = open_sandbox(project_root=str(home))
    done = held.run("echo 1 > work/file; cat .ssh/id; ls -A .ssh; mv .ssh x; cat work/file", shell=True)
    assert (done.stdout, (home / ".ssh" / "id").read_text()) == (b"1\n", "canary")
    result = held.run(["touch", "work/.envrc"])
    assert [violation.target for violation in result.violations] == [f"{home}/work/.envrc"]
    assert not any(path.name == ".envrc" for path in home.rglob("*"))
    for _ in range(2):
        assert held.run(["true"]).violations == ()


def test_project_above_home_hides_the_home_directory(
    home: Path, tmp_path: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("canary")
    held = open_sandbox(project_root=str(tmp_path))
    assert held.run(["ls", "-A", "home"]).stdout == b".gitconfig\n"
    assert not held.run(["cat", "home/.ssh/id"]).ok


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on another file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder).resolve()


@pytest.mark.parametrize("is_file", [False, True], ids=["missing", "a file"])
def test_missing_home_inside_project_is_placed_elsewhere(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_sandbox: Callable[..., Sandbox],
    *,
    is_file: bool,
) -> None:
    own = project / "nobody"
    if is_file:
        own.write_text("x")
    monkeypatch.setenv("HOME", str(own))
    done = open_sandbox().run('echo in > ~/note && cat ~/note && echo "$HOME"', shell=True)
    assert (done.enforcement, done.stdout, done.stderr) == ("full", b"in\n/home/user\n", b"")
    assert [path.name for path in project.iterdir()] == (["nobody"] if is_file else [])


def test_missing_home_without_another_place_is_an_error() -> None:
    with pytest.raises(ContainmentError) as raised:
        view._home("/home/user/nobody", ("/home/user",))
    check("violations", "HOME is not a directory", str(raised.value))


def test_project_may_be_on_another_file_system(memory: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    subprocess.run(["git", "init", "-q", memory], check=True)
    check_everyday_work(open_sandbox(project_root=str(memory)), memory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs projects of other users")
def test_project_may_belong_to_another_user(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    for path in (project, *project.rglob("*")):
        os.chown(path, 1234, 1234)
    done = open_sandbox().run("echo 1 > f && git add f && git commit -qm one && git status --short", shell=True)
    assert (done.exit_code, done.stdout, done.stderr) == (0, b"", b"")


def test_tree_deeper_than_a_path_is_quarantined(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    (project / "dig.py").write_text(
        "import os\nfor _ in range(60):\n    os.mkdir('d' * 100)\n    os.chdir('d' * 100)\nopen('.envrc', 'w')\n"
    )
    result = open_sandbox().run(["python3", "dig.py"])
    (violation,) = result.violations
    assert (violation.kind, violation.target[-1], result.ok) == ("planted", "…", True)
    found = subprocess.run(["find", ".", "-name", ".envrc"], cwd=project, capture_output=True, check=True)
    assert found.stdout == b""
    subprocess.run(["rm", "-rf", violation.detail.removeprefix("it was moved to ")], check=True)


PROGRAM = """
import os, sys
from corral import Containment, Profile, Sandbox, SandboxConfig
from corral.model.call import Decision
from corral.guard.rules.loader import effects, profile_named
groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)
backend = sys.argv[2] if len(sys.argv) > 2 else "auto"
config = SandboxConfig(".", profile=profile, denylist=(), interpreter_block=(), containment=Containment(backend=backend))
with Sandbox(config) as box:
    box.run(sys.argv[1], shell=True)
"""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a virtual environment that has corral, and corral's dependencies in another directory. All is compiled."""
    folder = tmp_path_factory.mktemp("installation")
    made = [sys._base_executable, "-m", "venv", "--without-pip", "--symlinks", folder / ".venv"]
    subprocess.run(made, check=True, env={})
    (packages,) = (folder / ".venv" / "lib").glob("python3*/site-packages")
    shutil.copytree(os.path.dirname(corral.__file__), packages / "corral")
    for name in ("tree_sitter", "tree_sitter_bash"):
        module = __import__(name)
        shutil.copytree(os.path.dirname(module.__file__), folder / "needed" / name)
    subprocess.run([sys._base_executable, "-m", "compileall", "-q", folder], check=True)
    return folder


@pytest.fixture
def own(installation: Path, project: Path) -> Path:
    """A project with the virtual environment that corral runs from, and its dependencies in another directory."""
    shutil.copytree(installation, project, symlinks=True, dirs_exist_ok=True)
    (packages,) = (project / ".venv" / "lib").glob("python3*/site-packages")
    (packages / "needed.pth").write_text(f"{project / 'needed'}\n")
    (project / "program.py").write_text(PROGRAM)
    return project


OWN_CHANGES = {
    "the package": "echo x >> $(echo .venv/lib/*/site-packages/corral/sandbox.py)",
    "the package by a new module": "touch $(echo .venv/lib/*/site-packages/corral)/json.py",
    "a .pth file": "echo 'import os' > $(echo .venv/lib/*/site-packages)/x.pth",
    "the interpreter": "rm .venv/bin/python && cp /bin/true .venv/bin/python",
    "the environment's own file": "echo x >> .venv/pyvenv.cfg",
    "the environment by rename": "mv .venv v && mkdir .venv",
    "a dependency": "touch needed/tree_sitter/x.py",
    "a dependency by rename": "mv needed n && mkdir needed",
}


def contents(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for top in (".venv", "needed"):
        for path in sorted((root / top).rglob("*")):
            if "__pycache__" not in path.parts:
                found[str(path)] = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
    return found


@pytest.mark.parametrize("text", OWN_CHANGES.values(), ids=OWN_CHANGES)
def test_command_cannot_change_corrals_installation(own: Path, text: str) -> None:
    before = contents(own)
    command = [own / ".venv" / "bin" / "python", "program.py", text]
    subprocess.run(command, cwd=own, check=True)
    assert contents(own) == before
    subprocess.run([*command, "none"], cwd=own, check=True)
    assert contents(own) != before


def test_programs_of_version_managers_run(
    home: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {
        "pyenv": (".pyenv/shims/tool", '#!/bin/sh\nexec "$HOME_OF_TOOLS/.pyenv/versions/3/bin/tool"\n'),
        "nvm": (".nvm/versions/node/v1/bin/tool", "#!/bin/sh\ncat \"$(dirname \"$0\")/../lib/data\"\n"),
        "cargo": (".cargo/bin/tool", "#!/bin/sh\necho cargo\n"),
        "conda": ("miniconda/bin/tool", "#!/bin/sh\ncat \"$(dirname \"$0\")/../lib/data\"\n"),
    }  # fmt: skip
    for name, (path, text) in made.items():
        tool = home / path
        tool.parent.mkdir(parents=True)
        tool.write_text(text)
        tool.chmod(0o755)
        (tool.parent.parent / "lib").mkdir(exist_ok=True)
        (tool.parent.parent / "lib" / "data").write_text(f"{name}\n")
    version = home / ".pyenv" / "versions" / "3" / "bin" / "tool"
    version.parent.mkdir(parents=True)
    version.write_text("#!/bin/sh\necho pyenv\n")
    version.chmod(0o755)
    (home / ".cargo" / "credentials.toml").write_text("canary")
    (home / "notes").write_text("canary")
    for name, (path, _) in made.items():
        monkeypatch.setenv("PATH", f"{home / os.path.dirname(path)}:/usr/bin:/bin")
        held = open_sandbox()
        done = held.run(["tool"], env={"HOME_OF_TOOLS": str(home)})
        assert (done.stdout, done.enforcement) == (f"{name}\n".encode(), "full"), done.stderr_text
        assert not held.run(["ls", home / "notes"]).ok
        assert not held.run(["ls", home / ".cargo" / "credentials.toml"]).ok
        assert not held.run(["rm", "-f", home / path]).ok
        assert (home / path).exists()


def test_home_directory_is_never_a_prefix(home: Path, project: Path) -> None:
    (home / "bin").mkdir()
    found = toolchains.find([str(home / "bin"), str(home)], str(home), str(project))
    assert found.shown == (str(home / "bin"),)


def test_commit_needs_no_git_configuration(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    done = open_sandbox().run(
        "git init -q r && cd r && git commit -q --allow-empty -m one && git log --format=%an", shell=True
    )
    assert (done.exit_code, done.stdout, done.stderr) == (0, b'The "Real" User\n', b"")
    loose = open_sandbox(containment=Containment(backend="none"))
    assert loose.run(["git", "-C", "r", "log", "-1", "--format=%ae"]).stdout == b"o@example.org\n"


GIT_IDENTITIES = {
    "plain": ("[user]\n\tname = A B\n\temail = a@x\n", "A B a@x"),
    "in one line": ('[user] name = "A  B" ; note\n[User]\nEMAIL=a@x # note\n', "A  B a@x"),
    "escaped": ('[user]\nname = A \\"B\\" \\\\ C\nemail = a@x\n', 'A "B" \\ C a@x'),
    "in another file": ("[include]\n\tpath = ~/own\n\tpath = more\n", "From Own more@x"),
}


@pytest.mark.parametrize(("text", "expected"), GIT_IDENTITIES.values(), ids=GIT_IDENTITIES)
def test_user_name_is_read_like_git_reads_it(
    home: Path, project: Path, open_sandbox: Callable[..., Sandbox], text: str, expected: str
) -> None:
    (home / ".gitconfig").write_text(text)
    (home / "own").write_text("[user]\nname = From Own\n")
    (home / "more").write_text("[user]\nemail = more@x\n")
    words = "git init -q r && cd r && git commit -q --allow-empty -m one && git log --format='%an %ae'"
    assert open_sandbox().run(words, shell=True).stdout == f"{expected}\n".encode()
    shutil.rmtree(project / "r")
    assert (
        open_sandbox(containment=Containment(backend="none")).run(words, shell=True).stdout == f"{expected}\n".encode()
    )


def test_interpreter_linked_from_tmp_can_start_corral(tmp_path: Path) -> None:
    # Like a hook: through the link in the environment and isolated, so that sys.prefix is the base installation.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        link = Path(folder) / "python"
        link.symlink_to(sys._base_executable)
        main = Path(corral.__file__).parent / "__main__.py"
        paths = [f"--path={path}" for path in sys.path if path.endswith("site-packages")]
        project = tmp_path / "project"
        project.mkdir()
        done = subprocess.run(
            [link, "-I", "-S", main, *paths, "run", "--root", project, "--", "echo", "ok"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)
