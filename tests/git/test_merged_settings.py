"""A change of the user's git configuration keeps the settings that commands made in their copy."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from git_world import environment, git, outside, start_from, words

from corral import Sandbox
from corral.git.config_file import merged

ALIAS = """'!f() { echo "a;b#c \\\\ d"; }; f'"""


@pytest.fixture
def project(git_template: Path, tmp_path: Path) -> Path:
    return start_from(git_template, "history", tmp_path / "place")


def run(box: Sandbox, step: str) -> str:
    result = box.run(words(step), env=environment(), timeout_seconds=60)
    assert result.exit_code == 0, (result.stderr_text, result)
    return result.stdout_text.strip()


def test_settings_of_commands_outlast_a_change_of_the_users(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    git(project, "config", "core.abbrev", "8")
    box = open_sandbox()
    run(box, f"git config merge.tool meld && git config alias.x {ALIAS} && git config --unset core.abbrev")
    alias = run(box, "git config alias.x")
    run(box, "git config --add x.many 1 && git config --add x.many 2 && git config 'x.A \"b\" c.y' z")
    assert outside("git config user.email me@example.org && git remote add mine ../x", project).returncode == 0

    asked = "git config merge.tool && git config user.email && git config alias.x && git config --get-all x.many"
    expected = ["meld", "me@example.org", *alias.splitlines(), "1", "2"]
    assert run(box, asked).splitlines() == expected
    assert run(box, "git config 'x.A \"b\" c.y' && git remote && ! git config core.abbrev").split() == ["z", "mine"]
    # Again, and in a later sandbox.
    git(project, "config", "core.pager", "cat")
    assert run(open_sandbox(), asked).splitlines() == expected
    assert outside("git config merge.tool || git config x.many || git config alias.x", project).returncode == 1


def test_setting_that_both_change_is_the_users(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox()
    run(box, "git config user.name 'An Agent' && git config pull.rebase true")
    git(project, "config", "user.name", "The User")
    assert run(box, "git config user.name && git config pull.rebase").splitlines() == ["The User", "true"]


def test_upstream_crosses_although_the_user_changes_settings(
    project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    git(project, "remote", "add", "origin", "https://example.org/x.git")
    box = open_sandbox()
    step = "git config branch.main.remote origin && git config branch.main.merge refs/heads/main"
    handle = box.start(
        words(f"touch build/ready; until [ -e build/go ]; do sleep 0.01; done; {step}"), env=environment()
    )
    git(project, "config", "core.pager", "cat")
    (project / "build" / "go").touch()
    assert handle.wait().exit_code == 0
    run(box, "true")
    assert git(project, "config", "branch.main.merge") == "refs/heads/main"
    assert run(box, "git config core.pager") == "cat"


def listed(folder: Path, text: str) -> dict[str, list[str]]:
    """Return the settings of a configuration as git reads them."""
    (folder / "config").write_text(text)
    done = subprocess.run(
        ["git", "config", "--file", "config", "--list", "-z"], cwd=folder, capture_output=True, check=True
    )
    found: dict[str, list[str]] = {}
    for each in done.stdout.decode().split("\0")[:-1]:
        key, _, value = each.partition("\n")
        found.setdefault(key, []).append(value)
    return found


def test_settings_are_merged_by_key(tmp_path: Path) -> None:
    chance = Random(16)
    keys = ["a.x", "a.y", "b.x", "b.s.x", "b.S.x", 'b.q"r.x', "c.x"]
    values = ["1", "two words", 'q"uo"te', "semi;colon", "back\\slash", "line\nbreak", " spaces ", ""]

    def change(text: str) -> str:
        (tmp_path / "config").write_text(text)
        for _ in range(chance.randrange(4)):
            verb = chance.choice([["--replace-all"], ["--add"], ["--unset-all"]])
            value = [] if verb == ["--unset-all"] else [chance.choice(values)]
            subprocess.run(
                ["git", "config", "--file", "config", *verb, chance.choice(keys), *value], cwd=tmp_path, check=False
            )
        return (tmp_path / "config").read_text()

    for _ in range(25):
        old = change(change("# of the user's\n[a]\n\tx = 1 ; why\n"))
        new, private = change(old), change(old)
        before, after, mine = (listed(tmp_path, text) for text in (old, new, private))
        found = listed(tmp_path, merged(old, new, private))
        for key in {*before, *after, *mine}:
            expected = after if after.get(key) != before.get(key) else mine
            assert found.get(key) == expected.get(key), (key, old, new, private)
