"""Tests how findings are merged: one per cause, which quotes the command and its offending arguments."""

from __future__ import annotations

import pytest

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

ROOT = "/usr/share"  # neither scratch nor a home directory
WORKSPACE = SandboxConfig(project_root=ROOT, profile="workspace")

# Each command has one finding, whose reason quotes these words.
QUOTED = {
    "gh pr view": "gh pr",
    "gh pr view 12 --comments": "gh pr",
    "aws s3 ls": "aws s3",
    "aws --profile dev s3 ls s3://bucket": "aws --profile dev",
    "terraform apply": "terraform apply",
    "git fetch": "git fetch",
    "git fetch --all": "git fetch --all",
    "git push origin main": "git push origin",
    "git restore .": "git restore .",
    "git restore a.py": "git restore",
    "git restore --staged --worktree .": "git restore --worktree",
    "git checkout -- a.py": "git checkout",
    "git checkout -- .": "git checkout",
    "git checkout -f -- a.py": "git checkout -f",
    "git stash drop": "git stash drop",
    "git bisect reset": "git bisect reset",
    "pip install a b c": "pip install a b c",
    "curl https://a.example https://b.example": "curl https://a.example https://b.example",
    "curl https://a.example https://a.example": "curl https://a.example",
    "timeout 5 gh pr view": "gh pr",
}


@pytest.mark.parametrize(("command", "quoted"), QUOTED.items(), ids=list(QUOTED))
def test_one_cause_gives_one_finding(command: str, quoted: str) -> None:
    (found,) = vet(Call(command, shell=True), WORKSPACE).findings
    assert found.reason.startswith(f"`{quoted}` ")


def test_two_commands_give_two_findings() -> None:
    found = vet(Call("git restore . && git restore .", shell=True), WORKSPACE).findings
    assert [(f.rule, f.start) for f in found] == [("argv-git-discard", 12), ("argv-git-discard", 29)]


def test_two_effects_give_two_findings() -> None:
    found = vet(Call("git push --force origin main", shell=True), WORKSPACE).findings
    assert {f.rule for f in found} == {"argv-git-network", "argv-git-history"}


def test_finding_points_at_the_first_word_it_names() -> None:
    (found,) = vet(Call("pip install a b", shell=True), WORKSPACE).findings
    assert (found.text, found.start, found.length) == ("a, b", 12, 1)


def test_finding_without_argument_points_at_the_subcommand() -> None:
    (found,) = vet(Call("gh pr view", shell=True), WORKSPACE).findings
    assert (found.text, found.start, found.length) == ("pr", 3, 2)


def test_long_list_of_arguments_is_cut() -> None:
    (found,) = vet(Call(f"pip install {' '.join(f'package{i}' for i in range(100))}", shell=True), WORKSPACE).findings
    assert len(found.reason) < 200
