"""Settings that commands write into `.git/config` cross to the user as plain git writes them, or stay and are reported with a reason."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import environment, git, outside, start_from, words

from corral import Sandbox
from corral.git.config_file import OTHER, UNSAFE_URL, parse
from corral.guard.git_remotes import read_remotes
from golden import check

MARK = "corralunconfirmed"
PREPARED = """git clone -q --bare . build/remote.git && git remote add origin ./build/remote.git && git fetch -q origin
git -C build/remote.git branch only main && git fetch -q origin
git config -f .gitmodules submodule.lib.path lib && git config -f .gitmodules submodule.lib.url https://forge.example/lib.git
git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),lib && git add .gitmodules && git commit -qm module"""
CROSSING = (
    "git remote add fork https://forge.example/me/x.git",
    "git remote add mine git@forge.example:me/x.git",
    "git remote add -t main one ssh://forge.example/me/one",
    "git remote add beside ../beside",
    "git remote rename one two",
    "git remote set-url two https://forge.example/me/two",
    "git remote remove mine",
    "git config user.name 'An \"odd\" #name; x'",
    "git config user.email agent@example.org",
    "git config --unset user.email",
    "git branch -q side2 side && git push -q -u origin side2",
    "git branch -q -u origin/side side",
    "git checkout -q --track origin/only",
    "git checkout -q -b new --track origin/main",
    "git branch --unset-upstream new",
    "git branch -q -m new newer",
    "git submodule -q init",
    "git worktree add -q -b tree build/tree main",
    "printf '[remote \"placed\"]\\n\\turl = https://forge.example/placed\\n' >> .git/config",
)


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    made = start_from(git_template, "history", tmp_path / "place")
    done = outside(PREPARED, made)
    assert done.returncode == 0, done.stderr
    return made


def settings(folder: Path) -> list[str]:
    """Return the settings of a repository, without corral's mark of a remote that a command added."""
    return sorted(line for line in git(folder, "config", "--local", "--list").splitlines() if MARK not in line)


def notes(box: Sandbox, step: str) -> str:
    result = box.run(words(step), env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, (step, result.stderr_text)
    return "\n".join(each.detail for each in result.violations if each.kind == "git")


def test_settings_cross_as_plain_git_writes_them(
    project: Path, tmp_path: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    plain = tmp_path / "plain" / "project"
    shutil.copytree(project, plain, symlinks=True)
    box = open_sandbox(project_root=str(project))
    for step in CROSSING:
        assert outside(step, plain).returncode == 0, step
        assert "stay in the sandbox" not in notes(box, step), step
        assert settings(project) == settings(plain), step
    shown = ["worktree", "list", "--porcelain"]
    assert git(project, *shown).replace(str(project), "") == git(plain, *shown).replace(str(plain), "")


PULLS = "git pull would merge another branch into a branch of the user's"
PUSHES = "it would send pushes elsewhere"
STAYING = {
    "git remote set-url origin https://evil.example/x": ("remote.origin.url", "it is a remote of the user's"),
    "git remote set-url --push origin https://evil.example/x": ("remote.origin.pushurl", PUSHES),
    "git config branch.main.pushRemote evil": ("branch.main.pushremote", PUSHES),
    "git config remote.pushDefault evil": ("remote.pushdefault", PUSHES),
    "git config url.https://evil.example/.insteadOf https://forge.example/": (
        "url.https://evil.example/.insteadof",
        PUSHES,
    ),
    "git config user.signingKey ABCD": ("user.signingkey", OTHER),
    "git config core.pager id": ("core.pager", OTHER),
    "git config core.hooksPath hooks": ("core.hookspath", OTHER),
    "git config core.excludesFile ignored": ("core.excludesfile", OTHER),
    "git config include.path ../more": ("include.path", OTHER),
    "git config alias.x '!id'": ("alias.x", OTHER),
    "git config remote.origin.uploadpack id": ("remote.origin.uploadpack", OTHER),
    "git config --add remote.origin.fetch '+refs/heads/*:refs/heads/*'": (
        "remote.origin.fetch",
        "it is a remote of the user's",
    ),
    "git config remote.evil.url 'ext::id'": ("remote.evil.url", UNSAFE_URL),
    "git config remote.bare.url http://forge.example/x": ("remote.bare.url", UNSAFE_URL),
    "git branch -q -u origin/side main": ("branch.main.merge", PULLS),
}


def test_other_settings_stay_and_are_named_with_the_reason(
    project: Path, tmp_path: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    git(project, "config", "branch.main.remote", "origin")
    box = open_sandbox(project_root=str(project))
    before = (project / ".git" / "config").read_bytes()
    for step, (key, why) in STAYING.items():
        # Outside, it is written.
        copy = tmp_path / "copy" / "project"
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(project, copy, symlinks=True)
        assert outside(step, copy).returncode == 0, step
        assert (copy / ".git" / "config").read_bytes() != before, step
        assert f"{key} ({why})" in notes(box, step), step
        assert (project / ".git" / "config").read_bytes() == before, step


def test_remote_of_a_command_is_certain_after_the_user_confirms_it(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    def unconfirmed() -> set[str]:
        found = read_remotes(str(project), str(project), str(project.parent))
        assert found is not None
        assert found.is_certain
        assert found.is_certain_for("origin")
        return {name for name in found.urls if not found.is_certain_for(name)}

    box = open_sandbox(project_root=str(project))
    told = notes(box, "git remote add fork https://forge.example/fork && git remote add own https://forge.example/own")
    check("violations", "remotes that a command added", told)
    assert unconfirmed() == {"fork", "own"}
    # A command can neither confirm it nor have a branch of the user's follow it.
    assert "branch.main.remote (" in notes(
        box, f"git config --unset remote.fork.{MARK} || true; git config branch.main.remote fork"
    )
    assert unconfirmed() == {"fork", "own"}
    assert notes(box, "git remote remove own") == ""
    assert f"remote.own.{MARK}" not in git(project, "config", "--local", "--list")

    confirm = told.partition("To confirm it: ")[2].partition("\n")[0]
    assert outside(confirm, project).returncode == 0
    assert unconfirmed() == set()
    # It is the user's now.
    assert "it is a remote of the user's" in notes(box, "git remote set-url fork https://evil.example/x")
    assert git(project, "remote", "get-url", "fork") == "https://forge.example/fork"


VALUES = ["1", "two words", 'q"uo"te', "semi;colon", "back\\slash", "line\nbreak", " spaces ", "", "tab\there", "#a"]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_parsed_as_git_parses_them(value: str, tmp_path: Path) -> None:
    for key in ("a.x", "b.s S.x", 'b.q"r\\t.x'):
        subprocess.run(["git", "config", "--file", tmp_path / "config", key, value], check=True)
    text = (tmp_path / "config").read_text()
    assert parse(text) == dict.fromkeys([("a", "", "x"), ("b", "s S", "x"), ("b", 'q"r\\t', "x")], (value,))


UNUSUAL = {
    "continued": ("[a]\n\tx = one \\\n two\n", ("one  two",)),
    "comment": ("[a]\n\tx = one # two\n", ("one",)),
    "quoted part": ('[a]\n\tx = one" # "two ; three\n', ("one # two",)),
    "no value": ("[a]\n\tx\n", ("true",)),
    "open quote": ('[a]\n\tx = "one\n', None),
    "unknown escape": ("[a]\n\tx = \\q\n", None),
}


@pytest.mark.parametrize(("text", "expected"), UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_values_are_parsed_or_left_out(text: str, expected: tuple[str, ...] | None, tmp_path: Path) -> None:
    assert parse(text).get(("a", "", "x")) == expected
    (tmp_path / "config").write_text(text)
    done = subprocess.run(["git", "config", "--file", tmp_path / "config", "a.x"], capture_output=True, check=False)
    assert (done.returncode == 0) == (expected is not None)
    if expected not in (None, ("true",)):
        assert done.stdout.decode() == f"{expected[0]}\n"  # type: ignore[index]
