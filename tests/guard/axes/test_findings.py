"""Findings as a reader sees them: one for each cause, in a sentence that names only what helps."""

from __future__ import annotations

import pytest

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

ROOT = "/usr/share"  # neither scratch nor a home, wherever the tests run
WORKSPACE = SandboxConfig(project_root=ROOT, profile="workspace")

ONCE = {
    "gh pr view": "gh would use the network, and the network is off.",
    "gh pr view 12 --comments": "gh would use the network, and the network is off.",
    "aws s3 ls": "aws would use the network, and the network is off.",
    "aws --profile dev s3 ls s3://bucket": "aws would use the network, and the network is off.",
    "terraform apply": "terraform would use the network, and the network is off.",
    "git fetch": "git would use the network, and the network is off.",
    "git fetch --all": "git would use the network (--all), and the network is off.",
    "git push origin main": "git would use the network (origin), and the network is off.",
    "git restore .": "git would throw away uncommitted work (.).",
    "git restore a.py": "git would throw away uncommitted work.",
    "git restore --staged --worktree .": "git would throw away uncommitted work (--worktree, .).",
    "git checkout -- a.py": "git would throw away uncommitted work.",
    "git checkout -- .": "git would throw away uncommitted work.",
    "git checkout -f -- a.py": "git would throw away uncommitted work (-f).",
    "git stash drop": "git would rewrite or delete history.",
    "git bisect reset": "git would throw away uncommitted work.",
    "pip install a b c": "pip would install packages (a, b, c), which runs their code and needs the network.",
    "curl https://a.example https://b.example": "curl would use the network (https://a.example, https://b.example), and the network is off.",
    "curl https://a.example https://a.example": "curl would use the network (https://a.example), and the network is off.",
    "timeout 5 gh pr view": "gh would use the network, and the network is off.",
}


@pytest.mark.parametrize(("command", "reason"), ONCE.items(), ids=list(ONCE))
def test_one_cause_is_one_finding(command: str, reason: str) -> None:
    assert [f.reason for f in vet(Call(command, shell=True), WORKSPACE).findings] == [reason]


def test_two_commands_are_two_causes() -> None:
    found = vet(Call("git restore . && git restore .", shell=True), WORKSPACE).findings
    assert [(f.rule, f.start) for f in found] == [("argv-git-discard", 12), ("argv-git-discard", 29)]


def test_two_effects_of_one_command_are_two_causes() -> None:
    found = vet(Call("git push --force origin main", shell=True), WORKSPACE).findings
    assert {f.rule for f in found} == {"argv-git-network", "argv-git-history"}


def test_a_finding_points_at_the_first_word_that_it_names() -> None:
    (found,) = vet(Call("pip install a b", shell=True), WORKSPACE).findings
    assert (found.text, found.start, found.length) == ("a, b", 12, 1)


def test_a_finding_without_a_name_points_at_the_subcommand() -> None:
    (found,) = vet(Call("gh pr view", shell=True), WORKSPACE).findings
    assert (found.text, found.start, found.length) == ("pr", 3, 2)


def test_a_long_list_of_names_is_cut() -> None:
    (found,) = vet(Call(f"pip install {' '.join(f'package{i}' for i in range(100))}", shell=True), WORKSPACE).findings
    assert len(found.reason) < 200


@pytest.mark.parametrize("command", ["docker ps", "docker --version", "kubectl get pods", "podman run x"])
def test_a_container_engine_is_for_the_user_to_run(command: str) -> None:
    (found,) = vet(Call(command, shell=True), WORKSPACE).findings
    assert found.instead == (
        "Ask the user to run it in their own terminal. In Claude Code the user can type ! before the command."
    )


def test_a_newline_outside_a_shell_is_named() -> None:
    found = vet(Call(["echo", "a\nb"]), SandboxConfig(project_root=ROOT)).findings
    assert [f.reason for f in found] == [
        (
            "Argument 1 contains a newline, a shell metacharacter, but this call uses no shell. "
            "If you need a shell, pass one string with shell=True."
        )
    ]
