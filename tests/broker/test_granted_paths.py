"""Tests what a grant of a path opens, and what is checked once more when it is opened."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral import Sandbox, SandboxConfig, SandboxResult, Verdict
from corral.broker.listings import Listings
from corral.broker.openings import open_grants
from corral.model.errors import PolicyError
from corral.model.grant import Grant


@pytest.mark.parametrize("kind", ["read", "write"])
def test_path_that_became_a_link_after_the_question_is_not_opened(project: Path, tmp_path: Path, kind: str) -> None:
    shown, other = tmp_path / "shown", tmp_path / "other"
    shown.mkdir()
    other.mkdir()
    config = SandboxConfig(str(project), profile="workspace")
    opened = open_grants(config, (Grant(kind, str(shown)),)).config.containment
    assert (*opened.read, *opened.write) == (str(shown),)
    shown.rmdir()
    shown.symlink_to(other)
    with pytest.raises(PolicyError, match="leads elsewhere now"):
        open_grants(config, (Grant(kind, str(shown)),))


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home directory with a project, and things beside it. Not below /tmp, which is the sandbox's own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        made = Path(base).resolve() / "home"
        for name in ("work/app", "docs/deep", "tools/kit", ".claude/commands", ".ssh"):
            (made / name).mkdir(parents=True)
        (made / "docs/plan.txt").write_text(SECRET)
        (made / "docs/deep/other.txt").write_text(SECRET)
        (made / "tools/kit/words").write_text("from the kit")
        (made / "tools/kit/run").write_text('#!/bin/sh\ncat "$(dirname "$0")/words"\n')
        (made / "tools/kit/run").chmod(0o755)
        (made / ".claude/commands/x.md").write_text("a note")
        (made / ".claude/.credentials.json").write_text(SECRET)
        (made / ".ssh/id_rsa").write_text(SECRET)
        # It reads and writes everything it can reach, whatever the guard knows about it.
        (made / "work/app/probe").write_text(PROBE)
        monkeypatch.setenv("HOME", str(made))
        yield made


SECRET = "content of the user"
PROBE = """
import os, sys
home, found = sys.argv[1], []
for at, _, names in os.walk(home):
    for name in names:
        path = os.path.join(at, name)
        try:
            if "content of " + "the user" in open(path).read():
                found.append(path[len(home) + 1:])
        except OSError:
            pass
for path in ("docs/plan.txt", "docs/new", "work/beside", "tools/kit/words", ".claude/commands/x.md"):
    try:
        with open(f"{home}/{path}", "a") as file:
            file.write("changed")
    except OSError:
        pass
print("found", *sorted(found))
"""


def run(home: Path, text: str) -> tuple[list[tuple[str, str]], SandboxResult]:
    """Run a call with a yes, and a program that tries to use more than was asked about."""
    asked: list[tuple[str, str]] = []

    def on_ask(_: object, verdict: Verdict) -> bool:
        asked.extend(grant.opening for grant in verdict.grants)
        return True

    config = SandboxConfig(str(home / "work/app"), profile="workspace", posture="balanced")
    with Sandbox(config, on_ask=on_ask) as box:
        return asked, box.run(f"{text}; python3 probe {home}", shell=True)


CALLS = {
    "names": ("ls ~/docs", [("list", "{}/docs")], "deep\nplan.txt\nfound\n"),
    "names of a tree": ("find ~/docs -type f -size 19c | sort", [("list", "{}/docs/**")], "{}/docs/deep/other.txt\n{}/docs/plan.txt\nfound\n"),
    "names at one level": ("find . -name none; test -e ~/docs/deep/other.txt || echo no", [], "no\nfound\n"),
    "program": ("~/tools/kit/run", [("read", "{}/tools/kit")], "from the kitfound\n"),
    "note": ("cat ~/.claude/commands/x.md", [("read", "{}/.claude/commands/x.md")], "a notefound\n"),
    "new file": ("echo made > ../new", [("create", "{}/work/new")], "found\n"),
    "new directory": ("mkdir -p ~/fresh && chmod 750 ~/fresh && echo made > ~/fresh/new", [("write", "{}/fresh")], "found\n"),
    "missing path": ("rm -rf ~/work/gone && echo done", [], "done\nfound\n"),
}  # fmt: skip


@pytest.mark.usefixtures("_full")
@pytest.mark.parametrize("name", CALLS)
def test_yes_opens_what_the_call_needs_and_nothing_else(name: str, home: Path) -> None:
    text, wanted, printed = CALLS[name]
    before = contents(home)
    asked, result = run(home, text)
    assert asked == [(kind, target.format(home)) for kind, target in wanted]
    assert (result.stdout_text, result.denied) == (printed.replace("{}", str(home)), False), result.stderr_text
    made = {path: text for path, text in contents(home).items() if before.get(path) != text}
    assert made == {"new file": {"work/new": "made\n"}, "new directory": {"fresh/new": "made\n"}}.get(name, {})


def contents(home: Path) -> dict[str, str]:
    return {str(path.relative_to(home)): path.read_text() for path in sorted(home.rglob("*")) if path.is_file()}


def test_probe_finds_and_changes_everything_without_a_sandbox(home: Path) -> None:
    found = subprocess.run(
        ["python3", str(home / "work/app/probe"), str(home)], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["found", ".claude/.credentials.json", ".ssh/id_rsa", "docs/deep/other.txt", "docs/plan.txt"]  # fmt: skip
    assert (home / "work/beside").read_text() == "changed"


def test_names_in_secret_directories_are_not_listed(home: Path) -> None:
    config = SandboxConfig(str(home / "work/app"), profile="workspace")
    listings = Listings(config, [f"{home}/**"], os.environ)
    try:
        shown = Path(listings.directory + str(home))
        assert sorted(path.name for path in shown.iterdir()) == [".claude", ".ssh", "docs", "tools", "work"]
        assert not list((shown / ".ssh").iterdir())
        assert (shown / "docs/plan.txt").stat().st_size == len(SECRET)
        assert (shown / "docs/plan.txt").stat().st_mtime_ns == (home / "docs/plan.txt").stat().st_mtime_ns
        assert (shown / "docs/plan.txt").read_bytes() == bytes(len(SECRET))
    finally:
        listings.close()
    assert not Path(listings.directory).exists()


def test_too_many_names_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.broker.listings.MAX_NAMES", 3)
    config = SandboxConfig(str(home / "work/app"), profile="workspace")
    with pytest.raises(PolicyError, match="more than 3 names"):
        open_grants(config, (Grant("list", f"{home}/docs/**"),))


def test_file_that_appeared_after_the_question_is_not_opened(home: Path) -> None:
    config = SandboxConfig(str(home / "work/app"), profile="workspace")
    (home / "work/new").write_text("of the user")
    with pytest.raises(PolicyError, match="cannot be made"):
        open_grants(config, (Grant("create", f"{home}/work/new"),))
