"""Git inside the sandbox has the user's settings, as git outside has, without those that name programs."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from git_world import environment, git, outside, start_from, words

from corral import Containment, Sandbox
from corral.containment.filesystem import scratch
from corral.git.configuration.carried_settings import carried
from corral.git.configuration.user_settings import read_settings
from golden import check

COMMITTED = "git add -A && git commit -qm all && git ls-tree -r --format='%(objectname) %(path)' HEAD"
SETTINGS = """
[user]
    name = "The \\"Real\\" User"
    email = user@example.org
[init]
    defaultBranch = trunk
[pull]
    rebase = true
[merge]
    conflictStyle = diff3
[diff]
    algorithm = histogram
[diff "ini"]
    xfuncname = "^\\\\[(.*)\\\\]$"
[color "status"]
    changed = yellow bold
[rerere]
    enabled
[versionsort]
    suffix = -rc
    suffix = -pre
[alias]
    last = log -1 --format='%s'
[pretty]
    line = %h %an; # %s
"""


class World:
    """A home directory and a repository of the user's."""

    def __init__(self, home: Path, project: Path) -> None:
        self.home, self.project = home, project

    def configure(self, text: str, name: str = ".gitconfig") -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def plain(self, step: str) -> str:
        """Run a step with the user's git in a copy of the project, and return its output."""
        copy = self.home.parent / "plain" / self.project.name
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(self.project, copy, symlinks=True)
        done = outside(step, copy)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()


@pytest.fixture
def world(git_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for kind, place in (("CONFIG", ".config"), ("CACHE", ".cache"), ("STATE", ".state")):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / place))
    return World(home, start_from(git_template, "history", tmp_path / "place"))


@pytest.fixture
def make(world: World, open_sandbox: Callable[..., Sandbox]) -> Callable[..., Sandbox]:
    """A function that makes a sandbox over the project, after the home directory is as the test wants it."""

    def open_one(**containment: object) -> Sandbox:
        return open_sandbox(project_root=str(world.project), containment=Containment(**containment))  # type: ignore[arg-type]

    return open_one


def said(box: Sandbox, step: str, **more: str) -> str:
    result = box.run(words(step), env=environment() | more, timeout_seconds=60)
    assert result.exit_code == 0, (result.stderr_text, result)
    return result.stdout_text


def notes(box: Sandbox, step: str) -> list[str]:
    result = box.run(words(step), env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, result.stderr_text
    return [each.detail for each in result.violations if each.kind == "git"]


def test_settings_are_those_of_git_outside(world: World, make: Callable[..., Sandbox]) -> None:
    world.configure(SETTINGS)
    world.configure("[status]\n\tshort = true\n", ".config/git/config")
    keys = "user.name user.email init.defaultBranch pull.rebase merge.conflictStyle diff.algorithm diff.ini.xfuncname color.status.changed "
    keys += "versionsort.suffix alias.last pretty.line status.short"
    step = (
        "".join(f"git config --get-all {key}; " for key in keys.split()) + "git config --bool rerere.enabled; git last"
    )
    step += "; git init -q build/new && git -C build/new symbolic-ref HEAD; git status"
    assert said(make(), step) == world.plain(step)


INCLUDES = {
    "for the git directory": ('[includeIf "gitdir:**/project/"]\n\tpath = work\n', "work@example.org"),
    "for another git directory": ('[includeIf "gitdir:**/elsewhere/"]\n\tpath = work\n', "user@example.org"),
    "for the branch": ('[includeIf "onbranch:main"]\n\tpath = ~/work\n', "work@example.org"),
    "for every repository": ("[include]\n\tpath = work\n", "work@example.org"),
}


@pytest.mark.parametrize(("text", "expected"), INCLUDES.values(), ids=INCLUDES)
def test_included_file_counts_as_outside(text: str, expected: str, world: World, make: Callable[..., Sandbox]) -> None:
    world.configure("[user]\n\temail = user@example.org\n" + text)
    world.configure("[user]\n\temail = work@example.org\n", "work")
    assert said(make(), "git config user.email") == world.plain("git config user.email") == f"{expected}\n"


@pytest.mark.parametrize("place", ["usual", "named", "behind a link", "in the working tree"])
def test_ignored_file_is_not_committed(place: str, world: World, make: Callable[..., Sandbox]) -> None:
    world.configure("*.secret\n", "dotfiles/ignore" if place == "behind a link" else ".config/git/ignore")
    if place == "behind a link":
        (world.home / ".config" / "git").mkdir(parents=True)
        (world.home / ".config" / "git" / "ignore").symlink_to(world.home / "dotfiles" / "ignore")
    elif place == "named":
        (world.home / ".config" / "git" / "ignore").rename(world.home / "ignored")
        world.configure("[core]\n\texcludesFile = ~/ignored\n")
    elif place == "in the working tree":
        (world.home / ".config" / "git" / "ignore").rename(world.project / "ignored")
        world.configure("[core]\n\texcludesFile = ignored\n")
    (world.project / "api.secret").write_text("key")
    (world.project / "new.txt").write_text("text")
    expected = world.plain(COMMITTED)
    assert "new.txt" in expected
    assert "secret" not in expected
    assert said(make(), COMMITTED) == expected
    assert "api.secret" not in git(world.project, "ls-tree", "-r", "--name-only", "HEAD")


def test_attributes_and_line_ends_are_as_outside(world: World, make: Callable[..., Sandbox]) -> None:
    world.configure("*.crlf text eol=crlf\n", ".config/git/attributes")
    world.configure("[core]\n\tautocrlf = input\n")
    (world.project / "a.crlf").write_bytes(b"one\r\ntwo\r\n")
    (world.project / "b.text").write_bytes(b"one\r\ntwo\r\n")
    expected = world.plain(COMMITTED)
    assert said(make(), COMMITTED) == expected


def test_template_of_the_message_is_as_outside(world: World, make: Callable[..., Sandbox]) -> None:
    world.configure("Ticket: none\n", "templates/message")
    world.configure("[commit]\n\ttemplate = ~/templates/message\n")
    step = "GIT_EDITOR='sed -i 1iSubject' git commit -q --allow-empty && git log -1 --format=%B"
    assert said(make(), step) == world.plain(step)


PROGRAMS = {
    "core.pager": "delta",
    "core.editor": "vi",
    "core.hooksPath": "~/hooks",
    "filter.crypt.clean": "crypt",
    "diff.external": "difft",
    "diff.pdf.textconv": "pdftotext",
    "merge.ours.driver": "true",
    "alias.sh": "!id",
    "alias.co": "checkout",
    "alias.conf": "-c core.pager=id log",
    "alias.open": "grep -Oid x",
    "init.templateDir": "~/t",
    "url.ssh://a.example/.insteadOf": "a:",
    "interactive.diffFilter": "delta --color-only",
    "trailer.sign.command": "id",
    "credential.helper": "store",
}


def test_no_setting_that_names_a_program_is_there_inside(world: World, make: Callable[..., Sandbox]) -> None:
    for key, value in PROGRAMS.items():
        git(world.project, "config", "--global", key, value)
    box = make()
    (note,) = notes(box, "git commit -q --allow-empty -m one")
    reported = {"core.hooksPath", "filter.crypt.clean", "diff.external", "diff.pdf.textconv", "merge.ours.driver", "alias.sh", "alias.co",
                "alias.conf", "alias.open", "init.templateDir", "url.ssh://a.example/.insteadOf", "trailer.sign.command"}  # fmt: skip
    assert {*note.partition("user's: ")[2].lower().split(", ")} == {key.lower() for key in reported}
    check("violations", "settings of the user's git that commands do not get", note)
    for key in PROGRAMS:
        assert said(box, f"git config --global --includes {key} || true") == ""
    # Once in a session.
    assert notes(box, "git commit -q --allow-empty -m two") == []
    assert notes(make(), "git commit -q --allow-empty -m three") == []


@pytest.mark.parametrize("way", ["by an include", "behind a link"])
def test_a_command_cannot_have_a_file_read_by_name(way: str, world: World, make: Callable[..., Sandbox]) -> None:
    world.configure("PRIVATE KEY\n", ".ssh/id")
    if way == "by an include":
        world.configure(f"[include]\n\tpath = {world.project}/shared.gitconfig\n")
        # A command cannot make this file. It may have been there before.
        said(make(), "echo x > shared.gitconfig")
        assert not (world.project / "shared.gitconfig").exists()
        (world.project / "shared.gitconfig").write_text("[core]\n\texcludesFile = ~/.ssh/id\n")
        attack = "true"
    else:
        world.configure(f"[core]\n\texcludesFile = {world.project}/ignore\n")
        attack = f"ln -s {world.home}/.ssh/id ignore"
    said(make(), attack)
    # The user's own git reads it.
    assert git(world.project, "status", "--porcelain", "-uall").strip()
    shown = git(world.project, "config", "--path", "core.excludesFile")
    assert Path(shown).read_text() == "PRIVATE KEY\n"
    assert "PRIVATE" not in said(make(), "find ~ -maxdepth 1 -type f -exec cat {} +")


def test_git_is_asked_again_only_after_a_change(world: World, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f'#!/bin/sh\necho x >>{log}\nexec {shutil.which("git")} "$@"\n')
    (folder / "git").chmod(0o755)
    world.configure("[user]\n\tname = One\n[include]\n\tpath = more\n")

    def name() -> str | None:
        settings, error = read_settings(str(world.project), os.environ, [str(folder)])
        assert error == ""
        return {key: value for _, _, key, value in settings}.get("user.name")

    def times() -> int:
        return len(log.read_text().split())

    assert [name(), name(), times()] == ["One", "One", 1]
    world.configure("[user]\n\tname = Two\n", "more")
    assert [name(), name(), times()] == ["Two", "Two", 2]
    world.configure("[user]\n\tname = Three\n")
    assert [name(), name(), times()] == ["Three", "Three", 3]
    git(world.project, "switch", "-q", "side")
    assert [name(), times()] == ["Three", 4]


def test_configuration_that_git_cannot_read_is_reported(world: World, make: Callable[..., Sandbox]) -> None:
    world.configure("[include]\n\tpath = .gitconfig\n")
    assert outside("git status", world.project).returncode != 0
    box = make()
    found = notes(box, "GIT_CONFIG_GLOBAL=/dev/null git update-ref refs/heads/new HEAD")
    assert any("lacks settings of the user's: all (" in note and "include depth" in note for note in found)


def test_settings_are_sorted_by_scope() -> None:
    settings = (("system", "/etc/gitconfig", "core.pager", "less"), ("local", ".git/config", "user.name", "Local"),
                ("global", "/h/.gitconfig", "user.name", "Global"), ("global", "/h/.gitconfig", "delta.features", "x"))  # fmt: skip
    found = carried(settings, has_lfs=False)
    assert (found.settings, found.left_out) == ((("user.name", "Global"),), ())


def test_home_of_an_earlier_version_gets_the_settings(tmp_path: Path) -> None:
    place, home = str(tmp_path / "s"), tmp_path / "s" / "home"

    def settings(text: str) -> str:
        for _ in range(2):
            scratch.make(place, place, {".gitconfig": scratch.block(text.encode())})
        asked = ["git", "config", "--file", home / ".gitconfig", "--get-regexp", "name|alias"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    scratch.make(place, place, {".gitconfig": b"[alias]\n\tst = status\n"})
    assert settings("[user]\n\tname = New\n") == "user.name New\nalias.st status\n"
    # A command's settings stay; a change by the user replaces corral's part.
    subprocess.run(["git", "config", "--file", home / ".gitconfig", "user.name", "Mine"], check=True)
    assert settings("[user]\n\tname = New\n") == "user.name Mine\nalias.st status\n"
    assert settings("[user]\n\tname = Newer\n") == "user.name Newer\nalias.st status\n"
    # What a command puts in the place of corral's file does no harm outside.
    (home / ".gitconfig").unlink()
    (home / ".gitconfig").symlink_to(tmp_path / "target")
    scratch.make(place, place, {".gitconfig": scratch.block(b"[user]\n")})
    assert not (tmp_path / "target").exists()


def test_global_settings_can_be_asked_for(world: World, make: Callable[..., Sandbox]) -> None:
    (world.home / ".gitconfig").write_text("[user]\n\tname = The User\n")
    box = make()
    assert said(box, "git config --global user.name") == "The User\n"
    assert "user.name=The User" in said(box, "git config --global --list")


# --- signing ----------------------------------------------------------------------------------------------------------


def test_unsigned_commit_is_reported(world: World, make: Callable[..., Sandbox]) -> None:
    world.configure("[commit]\n\tgpgSign = true\n[user]\n\tsigningKey = ABCD\n")
    assert outside("git commit -q --allow-empty -m signed", world.project).returncode != 0
    before = git(world.project, "rev-parse", "main")
    box = make()
    # The branch moves once: a comparison between two moves of it would give a note for each.
    step = "git commit-tree -p $last -m more HEAD^{tree}"
    found = notes(box, f"last=HEAD; last=$({step}); last=$({step}); git merge -q --ff-only $last")
    assert [each[:21] for each in found] == ["not signed: 2 commits"], found
    (note,) = found
    check("violations", "commits without a signature", note.replace(before, "OLD"))
    assert note.endswith(f"git rebase -f -S {before} main")
    assert notes(box, "git branch other && git stash list") == []


def test_unsigned_commit_is_refused_by_the_setting(world: World, make: Callable[..., Sandbox]) -> None:
    world.configure("[commit]\n\tgpgSign = true\n")
    box = make(unsigned_commits="refuse")
    refused = box.run(words("git commit -q --allow-empty -m one"), env=environment())
    assert refused.exit_code == 128
    check("violations", "a commit that is refused without a key", refused.stderr_text)
    assert len(notes(box, "git commit -q --no-gpg-sign --allow-empty -m one")) == 1


def test_signature_that_is_asked_for_fails_with_a_reason(world: World, make: Callable[..., Sandbox]) -> None:
    # The setting is the repository's, so it holds inside too.
    git(world.project, "config", "commit.gpgSign", "true")
    refused = make().run(words("git commit -q --allow-empty -m one"), env=environment())
    assert "corral: the user signs commits" in refused.stderr_text


# --- git-lfs ----------------------------------------------------------------------------------------------------------

LFS = """git add -A && git commit -qm big && git cat-file -s HEAD:big.bin && git status --short && rm big.bin && git checkout -- big.bin && wc -c big.bin"""


@pytest.mark.real
def test_large_file_is_committed_as_a_pointer(world: World, make: Callable[..., Sandbox]) -> None:
    if not shutil.which("git-lfs"):
        pytest.skip("git-lfs is not installed")
    # As `git lfs install` writes it. The system's own configuration may have it too.
    world.configure(
        '[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n\tprocess = git-lfs filter-process\n\trequired = true\n'
    )
    (world.project / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (world.project / "big.bin").write_bytes(os.urandom(3000))
    step = f"export GIT_CONFIG_SYSTEM=/dev/null; {LFS}"
    expected = world.plain(step)
    assert said(make(), step) == expected == "129\n3000 big.bin\n"
    assert git(world.project, "cat-file", "-s", "HEAD:big.bin") == "129"
    assert git(world.project, "status", "--short") == ""
    assert (world.project / "big.bin").stat().st_size == 3000


def test_filter_of_git_lfs_is_known_by_its_words() -> None:
    usual = ("global", "/h/.gitconfig", "filter.lfs.clean", "git-lfs clean -- %f")
    other = ("global", "/h/.gitconfig", "filter.lfs.clean", "id; git-lfs clean -- %f")
    assert carried([usual], has_lfs=True).settings == (("filter.lfs.clean", "git-lfs clean -- %f"),)
    assert carried([usual], has_lfs=False).left_out == carried([other], has_lfs=True).left_out == ("filter.lfs.clean",)
