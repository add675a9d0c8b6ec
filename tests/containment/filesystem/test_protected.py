"""Commands cannot change, move or plant files that run later outside the sandbox, and everyday git still works."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral import Containment, PolicyError, Sandbox
from corral.containment.filesystem.protected import common_directory, find
from corral.guard import toolchains


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(
        '[user]\n\tname = The User\n\temail = "o@example.org"\n[alias]\n\tx = status\n'
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
def test_protected_paths_cannot_be_changed(repository: Path, open_sandbox: Callable[..., Sandbox], text: str) -> None:
    before = snapshot(repository)
    held = open_sandbox()
    result = held.run(text, shell=True)
    assert (result.enforcement, snapshot(repository)) == ("full", before)
    loose = open_sandbox(containment=Containment(backend="none"))
    loose.run(text, shell=True)
    assert snapshot(repository) != before


REFERENCED = {
    "by hooksPath": ("core.hooksPath", ".githooks", "echo x >> .githooks/pre-commit", ".githooks/pre-commit"),
    "by hooksPath and rename": ("core.hooksPath", ".githooks", "mv .githooks x; mkdir .githooks; echo x > .githooks/pre-commit", ".githooks/pre-commit"),
    "by an include": ("include.path", "../shared.gitconfig", "echo '[alias]' >> shared.gitconfig", "shared.gitconfig"),
    "by a link": ("", "", "echo x >> real-hooks/pre-commit", "real-hooks/pre-commit"),
    "by a link to a link": ("", "", "rm second && echo x > second", "second"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFERENCED.values(), ids=REFERENCED)
def test_targets_of_protected_references_stay(
    repository: Path, open_sandbox: Callable[..., Sandbox], case: tuple[str, ...]
) -> None:
    key, value, text, name = case
    (repository / ".githooks").mkdir()
    (repository / "first").write_text("")
    (repository / "second").symlink_to("first")
    (repository / ".profile").symlink_to("second")
    for path in (".githooks/pre-commit", "real-hooks/pre-commit", "shared.gitconfig"):
        (repository / path).write_text("# mine\n")
    if key:
        git(repository, "config", key, value)
    before = (repository / name).read_bytes()
    assert open_sandbox().run(text, shell=True).enforcement == "full"
    assert (repository / name).read_bytes() == before
    open_sandbox(containment=Containment(backend="none")).run(text, shell=True)
    assert (repository / name).read_bytes() != before


def test_missing_target_of_protected_reference_is_planted(
    repository: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    git(repository, "config", "core.hooksPath", "tools/hooks")
    (repository / ".profile").symlink_to("later")
    held = open_sandbox()
    result = held.run("mkdir -p tools/hooks && touch tools/hooks/pre-commit later", shell=True)
    assert sorted(violation.target for violation in result.violations) == [f"{repository}/later", f"{repository}/tools"]


def snapshot(root: Path) -> dict[str, object]:
    """Return content and mode of the protected files in the repositories."""
    found: dict[str, object] = {"husky": os.path.islink(root / ".husky") and os.readlink(root / ".husky")}
    for name in (".git", "vendor/inner/.git"):
        for path in (root / name / "config", root / name / "hooks"):
            found[str(path)] = path.exists() and (path.stat().st_mode, path.is_file() and path.read_bytes())
        hooks = root / name / "hooks"
        found[name] = hooks.is_dir() and sorted((path.name, path.read_bytes()) for path in hooks.iterdir())
    for name in (".envrc", ".vscode/settings.json"):
        found[name] = (root / name).exists() and (root / name).read_bytes()
    return found


def test_change_of_git_config_stays_in_the_sandbox(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    before = (repository / ".git" / "config").read_bytes()
    held = open_sandbox()
    (repository / "set.sh").write_text("git config core.fsmonitor 'touch canary'\n")
    result = held.run(["bash", "set.sh"])
    assert (result.exit_code, [violation.kind for violation in result.violations]) == (0, ["git"])
    assert held.run(["git", "config", "core.fsmonitor"]).stdout == b"touch canary\n"
    assert (repository / ".git" / "config").read_bytes() == before


PLANTS = {
    "a start-up file": ("touch .bashrc", [".bashrc"]),
    "settings of an agent": ("mkdir -p .claude && touch .claude/settings.json", [".claude"]),
    "settings of an editor beside others": ("touch .vscode/tasks.json", [".vscode/tasks.json"]),
    "a link": ("ln -s /etc .idea", [".idea"]),
    "hooks in a directory that may be there": ("mkdir -p .github/hooks .github/workflows", [".github/hooks"]),
}


@pytest.mark.parametrize(("text", "planted"), PLANTS.values(), ids=PLANTS)
def test_planted_name_is_quarantined_and_reported(
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


def test_command_line_reports_planted_file(held: Sandbox, project: Path) -> None:
    (project / "plant.py").write_text("open('.envrc', 'w').write('x')\nprint('done')\n")
    command = [sys.executable, "-m", "corral", "run", "--profile", "strict", "--", "python3", "plant.py"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"corral: planted: {project}/.envrc: ")
    assert not (project / ".envrc").exists()


def test_commit_has_the_users_name(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    held = open_sandbox()
    done = held.run(
        "echo 2 > file && git commit -qam second && git branch b && git stash list && git gc -q", shell=True
    )
    assert (done.exit_code, done.stderr, done.violations) == (0, b"", ())
    assert git(repository, "log", "-1", "--format=%an %ae %s") == "The User o@example.org second"
    assert held.run(["git", "config", "--get", "alias.x"]).stdout == b"status\n"


def test_linked_worktree_commits_to_its_repository(
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
    pointer = (linked / ".git").read_bytes()
    changed = held.run("echo 'gitdir: /etc' > .git", shell=True)
    assert [violation.kind for violation in changed.violations] == ["planted"]
    assert (linked / ".git").read_bytes() == pointer


@pytest.fixture
def family(repository: Path, tmp_path: Path) -> Path:
    """A project with a submodule, a worktree inside, and a bare repository."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q")
    (origin / "file").write_text("1")
    git(origin, "add", "file")
    git(origin, "commit", "-qm", "first")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(origin), "libs/sub")
    git(repository, "commit", "-qm", "submodule")
    git(repository, "worktree", "add", "-q", "trees/w")
    git(repository, "clone", "-q", "--bare", str(origin), "bare")
    return repository


FAMILY = {
    "a submodule's hook": "echo x > .git/modules/libs/sub/hooks/pre-commit",
    "a submodule's configuration": "git -C libs/sub config core.fsmonitor x",
    "a submodule's repository by rename": "mv .git/modules/libs/sub x && mkdir .git/modules/libs/sub",
    "all submodules by rename": "mv .git/modules x",
    "a submodule's pointer": "echo 'gitdir: /etc' > libs/sub/.git",
    "a worktree's pointer": "rm -f trees/w/.git; echo 'gitdir: /etc' > trees/w/.git",
    "a worktree's repository": "echo /tmp > .git/worktrees/w/commondir",
    "a worktree's way back": "echo /tmp > .git/worktrees/w/gitdir",
    "a bare repository's hook": "echo x > bare/hooks/update",
    "a bare repository's configuration": "git -C bare config core.fsmonitor x",
    "a bare repository by rename": "mv bare b",
    "a hook by a hard link to a sample": "ln .git/modules/libs/sub/hooks/update.sample x && echo x >> x",
    "a nested hook by its descriptor": "exec 9< vendor/inner/.git/hooks; echo x > /proc/self/fd/9/pre-commit",
}


def family_snapshot(root: Path) -> dict[str, object]:
    names = ["libs/sub/.git", "trees/w/.git", ".git/worktrees/w/commondir", ".git/worktrees/w/gitdir", "bare/config"]
    names += [".git/modules/libs/sub/config", "vendor/inner/.git/config"]
    found: dict[str, object] = {name: (root / name).read_bytes() if (root / name).is_file() else None for name in names}
    for name in ("bare/hooks", ".git/modules/libs/sub/hooks", "vendor/inner/.git/hooks"):
        folder = root / name
        found[name] = sorted((path.name, path.read_bytes()) for path in folder.iterdir()) if folder.is_dir() else None
    return found


@pytest.mark.parametrize("text", FAMILY.values(), ids=FAMILY)
def test_nested_repositories_cannot_be_changed(family: Path, open_sandbox: Callable[..., Sandbox], text: str) -> None:
    before = family_snapshot(family)
    result = open_sandbox().run(text, shell=True)
    assert (result.enforcement, family_snapshot(family)) == ("full", before)
    open_sandbox(containment=Containment(backend="none")).run(text, shell=True)
    assert family_snapshot(family) != before


@pytest.mark.parametrize("name", [".", "libs/sub", "trees/w", "vendor/inner"])
def test_nested_repositories_take_commits(family: Path, open_sandbox: Callable[..., Sandbox], name: str) -> None:
    done = open_sandbox().run(
        f"cd {name} && echo 2 > file && git commit -qam second && git branch b && git tag t && git status --short",
        shell=True,
    )
    assert (done.exit_code, done.stderr, done.violations) == (0, b"", ())
    assert git(family / name, "log", "-1", "--format=%an %ae %s") == "The User o@example.org second"


def test_submodule_directory_may_be_the_project(family: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    sub = family / "libs" / "sub"
    assert common_directory(str(sub)) == str(family / ".git" / "modules" / "libs" / "sub")
    held = open_sandbox(project_root=str(sub))
    assert held.run("echo 2 > file && git commit -qam second", shell=True).ok
    assert git(sub, "log", "-1", "--format=%s") == "second"
    assert not held.run(f"echo x > {family}/.git/modules/libs/sub/hooks/pre-commit", shell=True).ok


RENAMES = {
    "out of a directory with a repository": "mv vendor/file file2",
    "into one": "mv file vendor/inner/moved",
    "between two": "mv vendor/file libs/sub/moved",
    "a directory across": "mkdir d && touch d/e && mv d vendor/d",
    "by git": "git mv file vendor/moved && git commit -qm moved",
    "a hard link": "ln file vendor/linked",
}


@pytest.mark.parametrize("text", RENAMES.values(), ids=RENAMES)
def test_rename_across_pinned_directories_works(family: Path, open_sandbox: Callable[..., Sandbox], text: str) -> None:
    (family / "vendor" / "file").write_text("1")
    script = "import os, sys\nos.rename(sys.argv[1], sys.argv[2])\n"
    (family / "rename.py").write_text(script)
    if text.startswith(("mv", "touch", "mkdir")):
        text = text.replace("mv", "python3 rename.py")  # unlike mv, it does not copy if it cannot rename
    done = open_sandbox().run(text, shell=True)
    assert (done.exit_code, done.stderr, done.violations) == (0, b"", ())


@pytest.mark.parametrize(
    "words",
    [
        ["mv", ".git", "x"],
        ["rm", "-rf", ".git/hooks"],
        ["mv", "vendor", "v"],
    ],
    ids=" ".join,
)
def test_refused_change_of_git_is_protected_violation(
    repository: Path, open_sandbox: Callable[..., Sandbox], words: list[str]
) -> None:
    result = open_sandbox().run(words)
    assert result.exit_code != 0
    assert {(violation.kind, bool(violation.instead)) for violation in result.violations} == {("protected", True)}


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if "objects" not in path.parts)


def test_no_files_are_left_behind(family: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    before = listing(family), git(family, "status", "--porcelain", "--ignored")
    held = open_sandbox()
    for words in (["true"], ["false"], ["git", "status"], ["git", "remote", "add", "x", "y"], ["touch", ".bashrc"]):
        held.run(words)
    held.run("mv .git x; git init -q; mkdir .claude; touch sub/.envrc; sleep 9", shell=True, timeout_seconds=0.3)
    held.close()
    assert (listing(family), git(family, "status", "--porcelain", "--ignored")) == before


def test_gitdir_pointer_without_back_reference_shows_nothing(project: Path, outside: Path) -> None:
    (project / ".git").write_text(f"gitdir: {outside}\n")
    assert common_directory(str(project)) is None
    (outside / "gitdir").write_text("/elsewhere/.git\n")
    assert common_directory(str(project)) is None


def test_empty_project_has_no_protected_paths(project: Path) -> None:
    found = find(str(project))
    assert (found.pinned, found.readonly, found.repositories) == ((), (), ())
    assert [(path, role) for path, role, _, _ in found.directories] == [(str(project), "")]


WRITE_REFUSED = {
    "hooks": ("{project}/.git/hooks", "protected"),
    "a file in the hooks": ("{project}/.git/hooks/pre-commit.sample", "protected"),
    "the configuration of git": ("{project}/.git/config", "protected"),
    "a link to hooks": ("{project}/link", "protected"),
    "the project": ("{project}", "contains the project"),
    "what holds the project": ("{project}/..", "contains the project"),
    "corral": ("{corral}", "belongs to corral"),
    "what corral needs": ("{tree_sitter}", "belongs to corral"),
    "the interpreter": ("{base}/bin", "belongs to corral"),
    "the environment": ("{prefix}", "belongs to corral"),
    "the policy": ("{home}/.config/corral", "corral"),
    "what holds the policy": ("{home}/.config", "corral"),
    "the quarantine": ("{state}/corral", "keeps the user's files"),
    "keys": ("{home}/.ssh", ".ssh"),
    "a key": ("{home}/.ssh/id", ".ssh"),
    "the home directory": ("{home}", "would open|corral"),
    "processes": ("/proc/self", "kernel"),
}
READ_REFUSED = {
    "keys": ("{home}/.ssh", ".ssh"),
    "a key": ("{home}/.ssh/id", ".ssh"),
    "a link to a key": ("{home}/fine", ".ssh"),
    "the home directory": ("{home}", "would open"),
    "a directory above the home directory": ("{home}/..", "would open"),
    "the machine's passwords": ("/etc/shadow", "/etc/shadow"),
    "processes": ("/proc", "kernel"),
    "the user's log": ("{state}/corral", "policy or audit log"),
    "a directory above the user's log": ("{state}", "policy or audit log"),
}


@pytest.fixture
def places(repository: Path, tmp_path: Path) -> dict[str, str]:
    """Paths that a grant could name."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("canary")
    (home / "fine").symlink_to(home / ".ssh" / "id")
    (home / ".config" / "corral").mkdir(parents=True)
    (tmp_path / "state" / "corral").mkdir(parents=True)
    (repository / "link").symlink_to(".git/hooks")
    import tree_sitter

    return {
        "project": str(repository),
        "home": str(home),
        "state": str(tmp_path / "state"),
        "corral": os.path.dirname(corral.__file__),
        "tree_sitter": os.path.dirname(tree_sitter.__file__),
        "base": sys.base_prefix,
        "prefix": sys.prefix,
    }


@pytest.mark.parametrize(("path", "why"), WRITE_REFUSED.values(), ids=WRITE_REFUSED)
def test_write_grant_of_protected_path_is_an_error(
    places: dict[str, str], open_sandbox: Callable[..., Sandbox], path: str, why: str
) -> None:
    given = path.format(**places)
    with pytest.raises(PolicyError, match=rf"containment\.write names '.*'.*({why})") as raised:
        open_sandbox(containment=Containment(write=(given,))).run(["true"])
    assert os.path.realpath(given) in str(raised.value)


@pytest.mark.parametrize(("path", "why"), READ_REFUSED.values(), ids=READ_REFUSED)
def test_read_grant_of_credentials_is_an_error(
    places: dict[str, str], open_sandbox: Callable[..., Sandbox], path: str, why: str
) -> None:
    with pytest.raises(PolicyError, match=rf"containment\.read names '.*'.*({why})"):
        open_sandbox(containment=Containment(read=(path.format(**places),))).run(["true"])


@pytest.mark.parametrize("name", ["read", "write"])
@pytest.mark.parametrize("path", ["/", "//", "relative", ""])
def test_grant_of_root_or_relative_path_is_an_error(name: str, path: str) -> None:
    with pytest.raises(PolicyError, match=f"containment.{name}"):
        Containment(**{name: (path,)})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["read", "write"])
def test_grant_of_missing_path_is_an_error(open_sandbox: Callable[..., Sandbox], tmp_path: Path, name: str) -> None:
    with pytest.raises(PolicyError, match="does not exist"):
        open_sandbox(containment=Containment(**{name: (str(tmp_path / "none"),)})).run(["true"])  # type: ignore[arg-type]


def test_protected_paths_in_write_grant_stay(outside: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    git(outside, "init", "-q")
    held = open_sandbox(containment=Containment(write=(str(outside),)))
    assert held.run(["touch", f"{outside}/new"]).ok
    assert not held.run(f"echo x > {outside}/.git/hooks/pre-commit", shell=True).ok
    assert not held.run(["mv", f"{outside}/.git", f"{outside}/x"]).ok
    result = held.run(["touch", f"{outside}/.envrc"])
    assert [violation.target for violation in result.violations] == [f"{outside}/.envrc"]
    assert not (outside / ".envrc").exists()


def test_read_and_write_grants_open_paths(outside: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    other = outside / "other"
    other.mkdir()
    held = open_sandbox(containment=Containment(read=(str(outside),), write=(str(other),)))
    assert held.run(["cat", str(outside / "secret")]).stdout == b"canary"
    assert held.run(f"echo x > {other}/new", shell=True).ok
    assert not held.run(f"echo x >> {outside}/secret", shell=True).ok
    assert ((other / "new").read_text(), (outside / "secret").read_text()) == ("x\n", "canary")


def test_project_may_be_read_only(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    (project / "file").write_text("1")
    held = open_sandbox(containment=Containment(project="read-only"))
    result = held.run("cat file; echo 2 > file; echo 3 > /tmp/scratch && cat /tmp/scratch", shell=True)
    assert (result.stdout, (project / "file").read_text()) == (b"13\n", "1")


def test_home_directory_as_project_hides_credentials(tmp_path: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("canary")
    (home / ".netrc").write_text("canary")
    (home / "notes").write_text("mine")
    held = open_sandbox(project_root=str(home))
    assert held.run("cat notes .netrc .ssh/id; ls -A .ssh", shell=True).stdout == b"mine"


def test_prefixes_are_found_but_not_the_home_directory(tmp_path: Path) -> None:
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
    names = (".local/bin", ".tools/node/bin", "pythons/3/bin", "venvs/a/bin", "venvs/a/pyvenv.cfg")
    assert found.shown == tuple(str(home / name) for name in names)
