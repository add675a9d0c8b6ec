"""Tests that the commands which corral offers as next steps work where they are shown."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import alone
import pytest

from corral.apps.cli.next_steps import install_steps, on_path, own_command, with_own_command
from corral.apps.cli.verbs import demo
from corral.integrations.hooks import hook_command

REPOSITORY = Path(__file__).parents[3]
EMPTY = {"PATH": "/nonexistent", "HOME": "/nonexistent"}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make this process the script `corral` of an environment in a path with a space and a quote."""
    folder = tmp_path / "Tom's clone" / "bin"
    folder.mkdir(parents=True)
    path = folder / "corral"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m corral "$@"\n')
    path.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(path)])
    return path


def run_as_shell(command: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **(environ or {})}
    return subprocess.run(
        ["sh", "-c", command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_script_outside_of_path_is_named_by_its_quoted_path(
    script: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for here in (project, script.parent, script.parents[1]):
        monkeypatch.chdir(here)
        name = own_command(EMPTY)
        assert run_as_shell(f"{name} --version", here).stdout.startswith("corral ")


def test_script_on_path_is_named_by_its_name(script: Path) -> None:
    assert own_command({"PATH": f"/nonexistent:{script.parent}"}) == "corral"


def test_another_corral_on_path_is_not_this_one(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(script, other / "corral")
    assert own_command({"PATH": f"{other}:{script.parent}"}) == shlex.quote("Tom's clone/bin/corral")


def test_module_is_named_by_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "my tools" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/somewhere/corral/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(python))
    assert own_command(EMPTY) == "'my tools/python' -m corral"
    assert with_own_command("corral doctor", EMPTY) == "'my tools/python' -m corral doctor"
    assert with_own_command("pipx install .", EMPTY) == "pipx install ."


def test_directory_and_plain_file_are_no_programs(tmp_path: Path) -> None:
    (tmp_path / "a" / "corral").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "corral").touch()
    assert on_path("corral", {"PATH": f"{tmp_path}/a:{tmp_path}/b"}) == ""


@pytest.mark.parametrize(
    ("programs", "steps"),
    [
        pytest.param(("pipx", "uv"), ["pipx install .", "corral install codex"], id="pipx"),
        pytest.param(("uv",), ["uv tool install .", "corral install codex"], id="uv"),
        pytest.param(
            (),
            [
                "python3 -m venv ~/.corral && ~/.corral/bin/pip install .",
                "~/.corral/bin/corral install codex",
            ],
            id="neither",
        ),
        pytest.param(
            ("pipx", "corral"),
            [
                "python3 -m venv ~/.corral && ~/.corral/bin/pip install .",
                "~/.corral/bin/corral install codex",
            ],
            id="corral of the clone on PATH",
        ),
    ],
)
def test_clone_is_installed_elsewhere_first(
    programs: tuple[str, ...], steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": str(tmp_path), "HOME": "/nonexistent"}
    if not hook_command.is_misplaced(environ):
        pytest.skip("this corral is installed outside of any project")
    assert install_steps("codex", environ) == steps


def test_every_next_line_works_in_a_fresh_project(tmp_path: Path) -> None:
    project, home = tmp_path / "fresh project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    script = (
        "import os, sys; sys.argv = ['-m']\nfrom corral.apps.cli.verbs import demo\n"
        "for _, commands in demo.next_steps(os.environ): print(*commands, sep='\\n')"
    )
    environ = alone.environment(home, PATH="/usr/bin:/bin")
    shown = subprocess.run(
        [sys.executable, "-c", script], cwd=project, env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    commands = shown.stdout.splitlines()
    assert commands[0].endswith("-m corral run ls -la")
    assert commands[-1].endswith("-m corral selftest")
    done = run_as_shell(commands[0], project, environ)
    assert done.returncode == 0, done.stderr
    done = run_as_shell(commands[-1], project, environ)
    assert done.returncode in (0, 3), done.stderr  # 3 where this machine cannot show every attack


def test_installed_corral_offers_an_install_that_works(tmp_path: Path) -> None:
    home, bin_ = tmp_path / "home", tmp_path / "home" / ".local" / "bin"
    project = tmp_path / "project"
    bin_.mkdir(parents=True)
    project.mkdir()
    (bin_ / "corral").write_text(f'#!/bin/sh\nexec {shlex.join(alone.command())} "$@"\n')
    (bin_ / "corral").chmod(0o755)
    environ = alone.environment(home, PATH=f"{bin_}:/usr/bin:/bin")
    status = run_as_shell("corral", project, environ)
    assert "              $ corral install claude\n" in status.stdout
    done = run_as_shell("corral install claude --yes", project, environ)
    assert done.returncode == 0, done.stderr


def test_status_of_a_clone_offers_no_install_that_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environ = alone.environment(home, PATH="/usr/bin:/bin")
    corral = f"{shlex.quote(sys.executable)} -m corral"
    refused = run_as_shell(f"{corral} install claude --yes", tmp_path, environ)
    if refused.returncode == 0:
        pytest.skip("this corral is installed outside of any project")
    assert "is installed in" in refused.stderr
    shown = run_as_shell(corral, tmp_path, environ).stdout
    (offered,) = (line.strip() for line in shown.splitlines() if line.endswith("corral install claude"))
    assert offered.startswith("$ ")
    assert offered != f"$ {corral} install claude"
    assert " && " in offered


def test_demo_lists_three_things_to_do() -> None:
    assert [what for what, _ in demo.next_steps(os.environ)] == [
        "run one command contained",
        "let corral check every command of Claude Code",
        "attack the sandbox in more ways",
    ]
