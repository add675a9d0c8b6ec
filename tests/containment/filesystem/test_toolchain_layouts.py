"""The guard accepts the interpreters of version managers that the sandbox shows, and they run. Each layout is as its tool makes it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral import Sandbox

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PRINT = "import sys; print('ran', sys.argv[1:])\n"


class Home:
    """A home directory with a project, and functions that put toolchains into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.project = path / "work" / "project"
        self.project.mkdir(parents=True)
        (self.project / "a.py").write_text(PRINT)

    def write(self, name: str, text: str, mode: int = 0o755) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def link(self, name: str, target: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def python(self, prefix: str) -> str:
        """Install a copy of the base interpreter, and return its path."""
        binary = self.path / prefix / "bin" / f"python{VERSION}"
        binary.parent.mkdir(parents=True)
        shutil.copy(os.path.realpath(sys._base_executable), binary)
        (binary.parent / "python3").symlink_to(binary.name)
        (binary.parent / "python").symlink_to(binary.name)
        (self.path / prefix / "lib").mkdir(exist_ok=True)
        (self.path / prefix / "lib" / f"python{VERSION}").symlink_to(sysconfig.get_path("stdlib"))
        return str(binary)

    def environment(self, prefix: str, interpreter: str) -> None:
        """Make a virtual environment, as uv, poetry and `python -m venv` do."""
        self.link(f"{prefix}/bin/python", interpreter)
        self.link(f"{prefix}/bin/python3", "python")
        self.write(f"{prefix}/pyvenv.cfg", f"home = {os.path.dirname(interpreter)}\nversion = {VERSION}\n", 0o644)
        (self.path / prefix / "lib" / f"python{VERSION}" / "site-packages").mkdir(parents=True)


def uv(home: Home) -> None:
    store = ".local/share/uv/python"
    home.python(f"{store}/cpython-{VERSION}.9-linux-x86_64-gnu")
    home.link(f"{store}/cpython-{VERSION}-linux-x86_64-gnu", f"cpython-{VERSION}.9-linux-x86_64-gnu")
    linked = f"{home.path}/{store}/cpython-{VERSION}-linux-x86_64-gnu/bin/python{VERSION}"
    home.environment("work/project/.venv", linked)
    home.environment("work/project/tools/py", linked)


def pyenv(home: Home) -> None:
    interpreter = home.python(f".pyenv/versions/{VERSION}.9")
    home.write(".pyenv/shims/python", f'#!/bin/sh\nexec "{home.path}/.pyenv/libexec/pyenv" exec "${{0##*/}}" "$@"\n')
    home.write(".pyenv/libexec/pyenv", f'#!/bin/sh\nshift 2\nexec "{interpreter}" "$@"\n')
    home.environment("work/project/.venv", interpreter)


def conda(home: Home) -> None:
    home.python("miniconda3/envs/web")
    home.write("miniconda3/conda-meta/history", "", 0o644)
    home.write("miniconda3/envs/web/conda-meta/history", "", 0o644)
    text = f'#!/bin/sh\nenv=$3\nshift 4\nexec "{home.path}/miniconda3/envs/$env/bin/python" "$@"\n'
    home.write("miniconda3/bin/conda", text)
    home.link("miniconda3/condabin/conda", "../bin/conda")


def asdf(home: Home) -> None:
    home.python(f".asdf/installs/python/{VERSION}.9")
    home.write(".asdf/shims/python", f'#!/bin/sh\nexec "{home.path}/.asdf/bin/asdf" exec python "$@"\n')
    text = f"""#!/bin/sh
version=$(sed -n 's/^python //p' "{home.path}/.tool-versions")
shift 2
exec "{home.path}/.asdf/installs/python/$version/bin/python" "$@"
"""
    home.write(".asdf/bin/asdf", text)
    home.write(".tool-versions", f"python {VERSION}.9\n", 0o644)


def mise(home: Home) -> None:
    home.python(f".local/share/mise/installs/python/{VERSION}.9")
    home.link(f".local/share/mise/installs/python/{VERSION}", f"./{VERSION}.9")
    home.environment(
        "work/project/.venv", f"{home.path}/.local/share/mise/installs/python/{VERSION}/bin/python{VERSION}"
    )


def rustup(home: Home) -> None:
    toolchain = ".rustup/toolchains/stable-x86_64-unknown-linux-gnu"
    home.write(f"{toolchain}/bin/cargo", '#!/bin/sh\ncat "$(dirname "$0")/../lib/rustlib/version"\n')
    home.write(f"{toolchain}/lib/rustlib/version", "ran cargo\n", 0o644)
    home.write(".cargo/bin/rustup", f'#!/bin/sh\nexec "{home.path}/{toolchain}/bin/${{0##*/}}" "$@"\n')
    home.link(".cargo/bin/cargo", "rustup")


def nvm(home: Home) -> None:
    home.write(".nvm/versions/node/v20.1.0/bin/node", '#!/bin/sh\necho ran "$(basename "$1" -cli.js)"\n')
    home.write(".nvm/versions/node/v20.1.0/lib/node_modules/npm/bin/npx-cli.js", "#!/usr/bin/env node\n")
    home.link(".nvm/versions/node/v20.1.0/bin/npx", "../lib/node_modules/npm/bin/npx-cli.js")
    (home.project / "a.js").write_text("")


def sdkman(home: Home) -> None:
    home.write(".sdkman/candidates/java/17.0.1-tem/bin/java", '#!/bin/sh\ncat "$(dirname "$0")/../conf/name"\n')
    home.write(".sdkman/candidates/java/17.0.1-tem/conf/name", "ran java\n", 0o644)
    home.link(".sdkman/candidates/java/current", "17.0.1-tem")


def homebrew(home: Home) -> None:
    home.write(".linuxbrew/Cellar/jq/1.7/bin/jq", "#!/bin/sh\necho ran jq\n")
    home.link(".linuxbrew/bin/jq", "../Cellar/jq/1.7/bin/jq")


def poetry(home: Home) -> None:
    interpreter = home.python(f".pyenv/versions/{VERSION}.9")
    made = f".cache/pypoetry/virtualenvs/project-x1y2-py{VERSION}"
    home.environment(made, interpreter)
    home.write(".local/bin/poetry", f'#!/bin/sh\nshift 2\nexec "{home.path}/{made}/bin/python" "$@"\n')


def beside(home: Home) -> None:
    """Put programs into ~/.local/share, as installers do, with links to them in ~/.local/bin."""
    home.write(".local/share/tool/bin/tool", '#!/bin/sh\ncat "$(dirname "$(readlink -f "$0")")/../lib/name"\n')
    home.write(".local/share/tool/lib/name", "ran tool\n", 0o644)
    home.link(".local/bin/tool", "../share/tool/bin/tool")
    home.write(".local/share/agent/versions/1.2", "#!/bin/sh\necho ran agent\n")
    home.link(".local/bin/agent", f"{home.path}/.local/share/agent/versions/1.2")
    home.write(
        ".local/share/node/node_modules/pm/bin/pm.sh", '#!/bin/sh\ncat "$(dirname "$(readlink -f "$0")")/../name"\n'
    )
    home.write(".local/share/node/node_modules/pm/name", "ran pm\n", 0o644)
    home.link(".local/share/node/node_modules/.bin/pm", "../pm/bin/pm.sh")
    home.link(".local/bin/pm", "../share/node/node_modules/.bin/pm")


NVM = ".nvm/versions/node/v20.1.0/bin"
# The layout, the directories of PATH in the home directory, the command, and its output.
LAYOUTS: dict[str, tuple[Callable[[Home], None], list[str], str, str]] = {
    "uv, by path": (uv, [], ".venv/bin/python a.py x", "ran ['x']\n"),
    "uv, activated": (uv, ["work/project/.venv/bin"], "python a.py x", "ran ['x']\n"),
    "uv, an environment of another name": (uv, [], "tools/py/bin/python a.py", "ran []\n"),
    "uv, the module runner": (uv, ["work/project/.venv/bin"], "python -m a x", "ran ['x']\n"),
    "pyenv, by its shim": (pyenv, [".pyenv/shims"], "python a.py", "ran []\n"),
    "pyenv, activated": (pyenv, ["work/project/.venv/bin"], "python a.py", "ran []\n"),
    "conda run": (conda, ["miniconda3/condabin"], "conda run -n web python a.py", "ran []\n"),
    "conda, activated": (conda, ["miniconda3/envs/web/bin"], "python a.py", "ran []\n"),
    "conda, by path": (conda, [], "~/miniconda3/envs/web/bin/python a.py", "ran []\n"),
    "asdf": (asdf, [".asdf/shims"], "python a.py", "ran []\n"),
    "mise, activated": (mise, [f".local/share/mise/installs/python/{VERSION}/bin"], "python a.py", "ran []\n"),
    "mise, an environment": (mise, [], ".venv/bin/python a.py", "ran []\n"),
    "rustup, by its proxy": (rustup, [".cargo/bin"], "cargo build", "ran cargo\n"),
    "rustup, by path": (
        rustup,
        [],
        "~/.rustup/toolchains/stable-x86_64-unknown-linux-gnu/bin/cargo build",
        "ran cargo\n",
    ),
    "nvm": (nvm, [NVM], "node a.js", "ran a.js\n"),
    "nvm, by path": (nvm, [], f"~/{NVM}/node a.js", "ran a.js\n"),
    "nvm, its npx": (nvm, [NVM], "npx tsc", "ran npx\n"),
    "SDKMAN": (sdkman, [".sdkman/candidates/java/current/bin"], "java -version", "ran java\n"),
    "SDKMAN, by path": (sdkman, [], "~/.sdkman/candidates/java/current/bin/java -version", "ran java\n"),
    "Homebrew": (homebrew, [".linuxbrew/bin"], "jq .", "ran jq\n"),
    "Homebrew, by path": (homebrew, [], "~/.linuxbrew/bin/jq .", "ran jq\n"),
    "an installation in ~/.local/share": (beside, [".local/bin"], "tool", "ran tool\n"),
    "a program in ~/.local/share": (beside, [".local/bin"], "agent", "ran agent\n"),
    "a package of node in ~/.local/share": (beside, [".local/bin"], "pm", "ran pm\n"),
    "poetry run": (poetry, [".local/bin"], "poetry run python a.py", "ran []\n"),
    "poetry's environment, activated": (
        poetry,
        [f".cache/pypoetry/virtualenvs/project-x1y2-py{VERSION}/bin"],
        "python a.py",
        "ran []\n",
    ),
}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home directory that is not in /tmp, which the guard treats as scratch."""
    path = Path(tempfile.mkdtemp(prefix="corral-home-", dir="/var/tmp"))
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(path / ".local" / "state"))
    yield Home(path)
    shutil.rmtree(path)


def use(home: Home, monkeypatch: pytest.MonkeyPatch, directories: list[str]) -> None:
    monkeypatch.setenv("PATH", ":".join([*(f"{home.path}/{name}" for name in directories), "/usr/bin", "/bin"]))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_interpreter_of_a_version_manager_is_allowed_and_runs(
    layout: tuple[Callable[[Home], None], list[str], str, str],
    home: Home,
    sandbox: Callable[..., Sandbox],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, directories, text, output = layout
    make(home)
    use(home, monkeypatch, directories)
    held = sandbox(project_root=str(home.project), profile="workspace")
    done = held.run(text, shell=True)
    assert ([f.rule for f in done.verdict.findings], done.exit_code, done.stderr_text) == ([], 0, "")
    assert (done.stdout_text, done.enforcement) == (output, "full")


REFUSED = {
    "a program beside no toolchain": "~/other/bin/tool",
    "the settings of a version manager": "cat ~/.sdkman/etc/config",
    "a credential in a toolchain": "cat ~/.pyenv/versions/.env",
    "a credential of cargo": "cat ~/.cargo/credentials.toml",
    "what lies beside a program in ~/.local/share": "cat ~/.local/share/agent/history",
    "a directory with the name of one": "~/.pyenv-old/versions/1/bin/tool",
    "a change to an interpreter": "rm ~/.nvm/versions/node/v20.1.0/bin/node",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_the_rest_of_the_home_directory_stays_refused(
    text: str, home: Home, sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvm(home)
    for name in ("other/bin/tool", ".pyenv-old/versions/1/bin/tool"):
        home.write(name, "#!/bin/sh\n")
    beside(home)
    for name in (".local/share/agent/history", ".sdkman/etc/config", ".pyenv/versions/.env", ".cargo/credentials.toml"):
        home.write(name, "canary\n", 0o600)
    use(home, monkeypatch, [])
    held = sandbox(project_root=str(home.project), profile="workspace")
    assert not held.check(text, shell=True).allowed
    subprocess.run(["sh", "-c", text], env=os.environ, check=True)


def test_guard_and_sandbox_agree_on_a_planted_link(
    home: Home, open_sandbox: Callable[..., Sandbox], sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.write("other/bin/tool", "#!/bin/sh\necho canary\n")
    home.link("work/project/.venv/bin/python", f"{home.path}/other/bin/tool")
    use(home, monkeypatch, ["work/project/.venv/bin"])
    root = str(home.project)
    assert [f.rule for f in sandbox(project_root=root, profile="workspace").check(["python", "a.py"]).findings] == [
        "path-run-outside"
    ]
    assert b"canary" not in open_sandbox(project_root=root).run(["python", "a.py"]).stdout


def test_system_directories_are_one_table(sandbox: Callable[..., Sandbox]) -> None:
    for text in ("/nix/store/x-hello/bin/hello", "/snap/bin/hello", "/opt/x/bin/hello"):
        assert sandbox(profile="workspace").check([text]).allowed, text


def install(folder: Path, *names: str) -> None:
    """Install packages into a new virtual environment."""
    subprocess.run([sys._base_executable, "-m", "venv", folder], check=True)
    home = folder.with_name(f"{folder.name}-home")  # pip's user agent asks rustc, whose rustup makes a file in the home
    home.mkdir()
    subprocess.run([folder / "bin" / "pip", "install", "-q", *names], check=True, env=os.environ | {"HOME": str(home)})


PROJECT = """\
[project]
name = "project"
version = "1"
requires-python = ">=3.9"
[tool.poetry]
package-mode = false
[tool.uv]
package = false
"""


@pytest.mark.real
def test_uv_and_poetry_run_the_projects_interpreter(
    home: Home, sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home.path / ".local/share/pipx/venvs/tools", "uv", "poetry")
    for name in ("uv", "poetry"):
        home.link(f".local/bin/{name}", f"../share/pipx/venvs/tools/bin/{name}")
    interpreter = home.python(f".local/share/uv/python/cpython-{VERSION}.9-linux-x86_64-gnu")
    (home.project / "pyproject.toml").write_text(PROJECT)
    use(home, monkeypatch, [".local/bin"])
    outside = {**os.environ, "PATH": f"{home.path}/.local/bin:/usr/bin:/bin"}
    subprocess.run(["uv", "venv", "-q", "--python", interpreter], cwd=home.project, env=outside, check=True)
    poetry = ["poetry", "env", "use", "-q", interpreter]
    held = sandbox(project_root=str(home.project), profile="workspace")
    for text in (
        ".venv/bin/python a.py",
        "uv run --offline --no-sync python a.py",
        "poetry run python a.py",
    ):
        done = held.run(text, shell=True)
        assert (done.verdict.findings, done.exit_code, done.stdout_text) == ((), 0, "ran []\n"), done.stderr_text
    # Without an environment in the project, poetry makes one in its cache.
    shutil.rmtree(home.project / ".venv")
    subprocess.run(poetry, cwd=home.project, env=outside, check=True)
    held = sandbox(project_root=str(home.project), profile="workspace")
    done = held.run("poetry run python a.py && poetry env info --path", shell=True)
    made = f"{home.path}/.cache/pypoetry/virtualenvs/project-"
    assert (done.verdict.findings, done.stdout_text.startswith(f"ran []\n{made}")) == ((), True), done.stderr_text


@pytest.mark.real
def test_npx_runs_a_package_of_the_project(
    home: Home, sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.write("work/project/node_modules/hello/cli.js", "#!/usr/bin/env node\nconsole.log('ran hello')\n")
    home.write(
        "work/project/node_modules/hello/package.json", '{"name": "hello", "version": "1.0.0", "bin": "cli.js"}', 0o644
    )
    home.link("work/project/node_modules/.bin/hello", "../hello/cli.js")
    use(home, monkeypatch, [])
    held = sandbox(project_root=str(home.project), profile="workspace")
    done = held.run(["npx", "hello"])
    assert (done.verdict.findings, done.exit_code, done.stdout_text) == ((), 0, "ran hello\n"), done.stderr_text
