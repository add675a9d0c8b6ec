"""Every file of the table that runs later is quarantined in every place where its tool would read it, and no similar file is."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from names_that_run_later import DIRECTORIES, ROWS, examples, home_examples

from corral import Containment, Sandbox
from corral.containment.filesystem.runs_later import runs_later

PLANT = """
import json, os, sys
for path in json.load(open("list")):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w").write("x")
"""
SIMILAR = [
    *("package.json", "Makefile", "CLAUDE.md", "AGENTS.md", ".npmrc", "conftest.py", ".editorconfig", ".gitignore"),
    *(".vscode/extensions.json", ".github/workflows/ci.yml", ".github/copilot-instructions.md", "src/lefthook.md"),
    *("code-workspace", "a.code-workspaces", "mise.md", "amise.toml", "user", "in", "out", ".tool-versions", "a.user"),
    *("bin/mise", "_darcs", "src/.vscode", "src/.config", "docs/.github"),
    *(".config/app.toml", ".local/share/app/x", "bin/x", ".ssh/x", ".bash_history", "head", "refs/x", "objects/x"),
]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plant(box: Sandbox, root: Path, paths: list[str]) -> list[str]:
    """Let a command create the files. Return those that are there afterwards."""
    (root / "list").write_text(json.dumps(paths))
    (root / "plant.py").write_text(PLANT)
    result = box.run(["python3", "plant.py"])
    assert (result.exit_code, result.enforcement) == (0, "none" if box.config.containment.backend == "none" else "full")
    left = [path for path in paths if os.path.lexists(root / path)]
    assert len(left) == len(paths) or any(violation.kind == "planted" for violation in result.violations)
    return left


# Repositories have tests of their own: a command may make one, if it holds only files that git itself writes.
PLANTED = [row for row in ROWS if row != "git"]


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_planted_file_is_quarantined_in_every_place(
    project: Path, open_sandbox: Callable[..., Sandbox], directory: str
) -> None:
    paths = examples(directory, PLANTED)
    assert plant(open_sandbox(), project, paths) == []
    assert plant(open_sandbox(containment=Containment(backend="none")), project, paths) == paths


def test_existing_file_cannot_be_changed(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    paths = [*examples(".", PLANTED), *examples("src/deep", PLANTED)]
    plant(open_sandbox(containment=Containment(backend="none")), project, paths)
    script = "import json\nfor path in json.load(open('list')):\n try: open(path, 'w').write('changed')\n except OSError: pass\n"
    (project / "change.py").write_text(script)
    open_sandbox().run(["python3", "change.py"])
    assert [path for path in paths if (project / path).read_text() != "x"] == []
    open_sandbox(containment=Containment(backend="none")).run(["python3", "change.py"])
    assert {(project / path).read_text() for path in paths} == {"changed"}


def test_file_that_points_to_a_repository_is_quarantined(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    assert plant(open_sandbox(), project, [".jj/repo", "src/.jj/repo", "src/.git"]) == []
    made = open_sandbox().run(
        "mkdir -p .jj/repo/store a && ln -s a mise && ln -s a .hg && touch b && ln b .vscode", shell=True
    )
    assert made.exit_code == 0
    assert sorted(violation.target.rpartition("/")[2] for violation in made.violations) == [".hg", "mise"]
    assert (project / ".jj" / "repo" / "store").is_dir()


def test_similar_files_stay(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    assert plant(open_sandbox(), project, SIMILAR) == SIMILAR


def test_startup_files_are_quarantined_where_the_project_is_home(
    project: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = home_examples()
    assert {".ssh/an-example", ".gitconfig", ".config/systemd/an-example", ".local/bin/an-example"} < set(paths)
    assert plant(open_sandbox(), project, paths[:20]) != []
    monkeypatch.setenv("HOME", str(project))
    for path in paths[:20]:
        (project / path).unlink(missing_ok=True)
        for above in (project / path).parents:
            if above != project and above.is_relative_to(project) and above.is_dir() and not any(above.iterdir()):
                above.rmdir()
    assert plant(open_sandbox(), project, paths) == []
    assert plant(open_sandbox(containment=Containment(backend="none")), project, paths) == paths


def test_startup_files_are_quarantined_in_a_part_of_home(
    project: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    (project / ".config").mkdir()
    box = open_sandbox(project_root=str(project / ".config"))
    paths = ["git/config", "fish/conf.d/x.fish", "autostart/x.desktop", "systemd/user/x.service", "app/settings"]
    assert plant(box, project / ".config", paths) == ["app/settings"]


REPOSITORY = ("HEAD", "objects/ab/cd", "refs/heads/main", "config", "hooks/pre-commit", "info/attributes", "commondir")
PARTS = {
    "a bare repository that is there": ("bare", [f"bare/{name}" for name in (*REPOSITORY, "anything", "deep/er/x")]),
    "a linked worktree's directory": ("linked", ["linked/config.worktree", "linked/gitdir", "linked/HEAD"]),
    "the last part of one": ("nearly", ["nearly/HEAD", "nearly/head", "nearly/Head"]),
    "the last part in another order": ("headed", ["headed/refs/x", "headed/objects/x", "headed/REFS/x"][:1]),
    "a directory with HEAD": ("lonely", ["lonely/commondir", "lonely/CommonDir"]),
    "a first HEAD": ("src", ["src/HEAD", "src/a/HEAD"]),
    "the state of an operation": (".git", [".git/rebase-merge/git-rebase-todo", ".git/sequencer/todo", ".git/rebase-apply/author-script", ".git/MERGE_MSG"]),
    "everything else in it": (".git", [".git/index", ".git/x", ".Git/x", ".GIT/config", "src/.git", "src/.git/x", ".g\u200cit/config", "vendor/.git/logs/x"]),
    "a configured directory of hooks": ("githooks", ["githooks/pre-commit", "githooks/deep/x"]),
    "an included configuration": ("shared.gitconfig", ["shared.gitconfig"]),
    "the target of a protected link": ("real", ["real/pre-commit"]),
}  # fmt: skip


@pytest.fixture
def repository(project: Path) -> Path:
    """A project with directories that are, or nearly are, repositories."""
    for directory in (
        "bare/objects",
        "bare/refs",
        "nearly/objects",
        "nearly/refs",
        "headed/objects",
        "real",
        "src",
        "linked",
        "lonely",
    ):
        (project / directory).mkdir(parents=True)
    for file in ("bare/HEAD", "headed/HEAD", "lonely/HEAD", "linked/HEAD", "linked/commondir"):
        (project / file).write_text("ref: refs/heads/main\n")
    (project / ".git").mkdir()
    (project / ".git" / "config").write_text(
        "[core]\n\thooksPath = githooks\n[include]\n\tpath = ../shared.gitconfig\n"
    )
    (project / ".husky").symlink_to("real")
    (project / ".envrc").symlink_to(".")
    return project


@pytest.mark.parametrize(("_part", "paths"), PARTS.values(), ids=PARTS)
def test_parts_of_a_repository_run_later(repository: Path, _part: str, paths: list[str]) -> None:
    root = str(repository)
    assert [path for path in paths if not runs_later(f"{root}/{path}", root)] == []


def test_parts_that_one_call_writes_are_judged_together(project: Path) -> None:
    root = str(project)
    for parts in (["b/Head", "b/objects/x", "b/refs/x", "b/config"], ["b/Head", "b/commondir", "b/config"]):
        written = [f"{root}/{path}" for path in parts]
        assert [runs_later(path, root, written) for path in written] == [True] * len(parts)
        assert not runs_later(written[-1], root)


def test_ordinary_files_do_not_run_later(repository: Path) -> None:
    root = str(repository)
    ordinary = [
        *SIMILAR,
        "nearly/config",
        "nearly/hooks/x",
        "src/config",
        "src/hooks/x",
        "config",
        "real2/x",
        "githooks2",
    ]
    assert [path for path in ordinary if runs_later(f"{root}/{path}", root)] == []


def test_startup_files_of_home_run_later(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(project)
    paths = [f"{root}/{path}" for path in home_examples()]
    assert not all(runs_later(path, root) for path in paths)
    monkeypatch.setenv("HOME", root)
    assert [path for path in paths if not runs_later(path, root)] == []
    assert not runs_later(f"{root}/bin/tool", f"{root}/bin")  # the user chose this directory as the project
    assert not runs_later(f"{root}/work/bin/tool", root)
