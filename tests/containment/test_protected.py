"""What runs later outside: it cannot be changed, moved or planted, and everyday git still works."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corral import Containment, PolicyError, Sandbox
from corral.containment import toolchains
from corral.containment.protected import common_directory, find


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(
        '[user]\n\tname = The Owner\n\temail = "o@example.org"\n[alias]\n\tx = y\n'
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def repository(project: Path) -> Path:
    """The project as a repository with one commit, and another repository in it."""
    for folder in (project, project / "vendor" / "inner"):
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q")
        (folder / "file").write_text("1")
        git(folder, "add", "file")
        git(folder, "commit", "-qm", "first")
    (project / ".envrc").write_text("")
    (project / ".vscode").mkdir()
    (project / ".vscode" / "settings.json").write_text("{}")
    (project / "real-hooks").mkdir()
    (project / ".husky").symlink_to("real-hooks")
    return project


CHANGES = {
    "a hook": "echo x > .git/hooks/pre-commit",
    "a hook by a link to its directory": "ln -sfn .git/hooks h; echo x > h/pre-commit",
    "the configuration": "echo x >> .git/config",
    "the configuration by rename": "echo x > c; mv -f c .git/config",
    "the configuration by a hard link": "ln .git/config c && echo x >> c",
    "the configuration by its removal": "rm -f .git/config",
    "the whole repository by rename": "mv .git x && mkdir .git",
    "the hooks by rename": "mv .git/hooks .git/other && mkdir .git/hooks",
    "a hook of a repository within": "echo x > vendor/inner/.git/hooks/pre-commit",
    "a repository within by rename of its parent": "mv vendor v && mkdir -p vendor/inner/.git",
    "a start-up file": "echo x > .envrc",
    "a start-up file by rename": "echo x > e; mv -f e .envrc",
    "settings of an editor": "echo x > .vscode/settings.json",
    "settings of an editor by rename": "mv .vscode v; mkdir .vscode; echo x > .vscode/settings.json",
    "a link to a directory of hooks": "rm .husky && ln -s /tmp .husky",
    "the mode of a hook": "chmod 777 .git/hooks",
}


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_what_is_protected_stays(repository: Path, open_sandbox: Callable[..., Sandbox], text: str) -> None:
    before = snapshot(repository)
    held = open_sandbox()
    result = held.run(text, shell=True)
    assert (result.enforcement, snapshot(repository)) == ("full", before)
    loose = open_sandbox(containment=Containment(backend="none"))
    loose.run(text, shell=True)
    assert snapshot(repository) != before


def snapshot(root: Path) -> dict[str, object]:
    """Return what is protected in the repositories, by content and mode."""
    found: dict[str, object] = {"husky": os.path.islink(root / ".husky") and os.readlink(root / ".husky")}
    for name in (".git", "vendor/inner/.git"):
        for path in (root / name / "config", root / name / "hooks"):
            found[str(path)] = path.exists() and (path.stat().st_mode, path.is_file() and path.read_bytes())
        hooks = root / name / "hooks"
        found[name] = hooks.is_dir() and sorted((path.name, path.read_bytes()) for path in hooks.iterdir())
    for name in (".envrc", ".vscode/settings.json"):
        found[name] = (root / name).exists() and (root / name).read_bytes()
    return found


def test_a_change_that_was_refused_is_said_with_a_way_out(
    repository: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    result = open_sandbox().run(["git", "remote", "add", "origin", "/nowhere"])
    assert result.exit_code != 0
    (violation,) = result.violations
    assert (violation.kind, violation.target, violation.inferred) == ("protected", f"{repository}/.git/config", True)
    assert violation.instead


PLANTS = {
    "a start-up file": ("touch .bashrc", [".bashrc"]),
    "a pointer to another repository": ("echo /tmp > .git/commondir", [".git/commondir"]),
    "a second configuration": ("touch .git/config.worktree", [".git/config.worktree"]),
    "settings of an agent": ("mkdir -p .claude && touch .claude/settings.json", [".claude"]),
    "settings of an editor beside others": ("touch .vscode/tasks.json", [".vscode/tasks.json"]),
    "a link": ("ln -s /etc .idea", [".idea"]),
    "hooks in a directory that may be there": ("mkdir -p .github/hooks .github/workflows", [".github/hooks"]),
}


@pytest.mark.parametrize(("text", "planted"), PLANTS.values(), ids=PLANTS)
def test_what_is_planted_is_moved_away_and_said(
    repository: Path, tmp_path: Path, open_sandbox: Callable[..., Sandbox], text: str, planted: list[str]
) -> None:
    held = open_sandbox()
    assert held.run(["true"]).violations == ()
    result = held.run(text, shell=True)
    assert [(v.kind, v.target, v.inferred) for v in result.violations] == [
        ("planted", f"{repository}/{name}", False) for name in planted
    ]
    assert not any(os.path.lexists(repository / name) for name in planted)
    names = {path.name for path in (tmp_path / "state").rglob("*")}
    assert {Path(name).name for name in planted} <= names
    assert held.run(["true"]).violations == ()


def test_the_command_line_says_what_was_planted(held: Sandbox, project: Path) -> None:
    (project / "plant.py").write_text("open('.envrc', 'w').write('x')\nprint('done')\n")
    command = [sys.executable, "-m", "corral", "run", "--profile", "strict", "--", "python3", "plant.py"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"corral: planted: {project}/.envrc: it was moved to ")
    assert not (project / ".envrc").exists()


def test_the_owner_commits_by_name(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    held = open_sandbox()
    done = held.run(
        "echo 2 > file && git commit -qam second && git branch b && git stash list && git gc -q", shell=True
    )
    assert (done.exit_code, done.stderr, done.violations) == (0, b"", ())
    assert git(repository, "log", "-1", "--format=%an %ae %s") == "The Owner o@example.org second"
    assert held.run(["git", "config", "--get", "alias.x"]).exit_code == 1


def test_a_linked_worktree_commits_to_its_repository(
    repository: Path, tmp_path: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    linked = tmp_path / "linked"
    git(repository, "worktree", "add", "-q", str(linked))
    assert common_directory(str(linked)) == str(repository / ".git")
    held = open_sandbox(project_root=str(linked))
    assert held.run("echo 3 > file && git commit -qam third", shell=True).ok
    assert git(linked, "log", "-1", "--format=%s") == "third"
    assert not held.run(f"echo x > {repository}/.git/hooks/pre-commit", shell=True).ok
    assert not held.run(["ls", str(repository / "file")]).ok
    assert not held.run("echo 'gitdir: /etc' > .git", shell=True).ok


def test_a_pointer_without_a_way_back_shows_nothing(project: Path, outside: Path) -> None:
    (project / ".git").write_text(f"gitdir: {outside}\n")
    assert common_directory(str(project)) is None
    (outside / "gitdir").write_text("/elsewhere/.git\n")
    assert common_directory(str(project)) is None


def test_a_project_without_anything_protects_names_only(project: Path) -> None:
    found = find(str(project))
    assert (found.pinned, found.readonly, found.repositories) == ((), (), ())
    assert [(path, role) for path, role, _, _ in found.directories] == [(str(project), "")]


@pytest.mark.parametrize("name", [".git/hooks", ".git/config", "", ".."])
def test_a_grant_that_would_open_the_protected_is_an_error(
    repository: Path, open_sandbox: Callable[..., Sandbox], name: str
) -> None:
    path = os.path.normpath(repository / name)
    with pytest.raises(PolicyError, match=r"containment\.write"):
        open_sandbox(containment=Containment(write=(path,))).run(["true"])


def test_the_owner_grants_more_by_path(outside: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    other = outside / "other"
    other.mkdir()
    held = open_sandbox(containment=Containment(read=(str(outside),), write=(str(other),)))
    assert held.run(["cat", str(outside / "secret")]).stdout == b"canary"
    assert held.run(f"echo x > {other}/new", shell=True).ok
    assert not held.run(f"echo x >> {outside}/secret", shell=True).ok
    assert ((other / "new").read_text(), (outside / "secret").read_text()) == ("x\n", "canary")


def test_a_project_may_be_read_only(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    (project / "file").write_text("1")
    held = open_sandbox(containment=Containment(project="read-only"))
    result = held.run("cat file; echo 2 > file; echo 3 > /tmp/scratch && cat /tmp/scratch", shell=True)
    assert (result.stdout, (project / "file").read_text()) == (b"13\n", "1")


def test_a_home_directory_as_project_shows_no_credentials(tmp_path: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("canary")
    (home / ".netrc").write_text("canary")
    (home / "notes").write_text("mine")
    held = open_sandbox(project_root=str(home))
    assert held.run("cat notes .netrc .ssh/id; ls -A .ssh", shell=True).stdout == b"mine"


def test_prefixes_of_programs_are_found_and_a_home_directory_is_not(tmp_path: Path) -> None:
    home, project = tmp_path / "h", tmp_path / "h" / "project"
    tools = home / ".tools" / "node" / "bin"
    for folder in (
        tools,
        home / ".local" / "bin",
        home / "venvs" / "a" / "bin",
        home / "pythons" / "3" / "bin",
        project,
    ):
        folder.mkdir(parents=True)
    (home / ".local" / "bin" / "linked").symlink_to(home / "venvs" / "a" / "bin" / "linked")
    (home / ".local" / "bin" / "script").symlink_to(home / "script")
    (home / "venvs" / "a" / "pyvenv.cfg").write_text(f"home = {home}/pythons/3/bin\n")
    found = toolchains.find([str(tools), str(home / ".local" / "bin"), str(home), "/usr/bin"], str(home), str(project))
    assert found == [str(home / name) for name in (".local/bin", ".tools/node", "pythons/3", "venvs/a")]
