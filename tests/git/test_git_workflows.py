"""Workflows of several git commands give the user the same repository when each command is contained as with plain git."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from git_workflows import COMMITS, FILES, PARTS, USER, Workflow
from git_workflows_branches import BRANCHES, MERGES, REBASES
from git_workflows_repositories import MAINTENANCE, REPOSITORIES, SUBMODULES, WORKTREES
from git_workflows_user import WITH_USER
from git_world import environment, outside, start_from, view_of, words

from corral import Containment, Sandbox, SandboxResult

ALL = (*FILES, *COMMITS, *BRANCHES, *MERGES, *REBASES, *WITH_USER, *WORKTREES, *SUBMODULES, *REPOSITORIES, *MAINTENANCE)
Outputs = list[tuple[str, int | None, bytes]]


def run_plainly(workflow: Workflow, project: Path) -> Outputs:
    """Run every step with plain git, and return the steps with their exit codes and outputs."""
    outputs: Outputs = []
    for number, step in enumerate(workflow.steps):
        done = outside(step.removeprefix(USER), project, number)
        assert done.returncode == 0, (step, done.stdout, done.stderr)
        outputs.append((step, done.returncode, done.stdout.replace(bytes(project), b"")))
    return outputs


def run_contained(workflow: Workflow, project: Path, run: Callable[..., SandboxResult]) -> Outputs:
    """Run every step of a command's in a sandbox and every step of the user's outside, and return the same as `run_plainly`."""
    outputs: Outputs = []
    for number, step in enumerate(workflow.steps):
        if step.startswith(USER):
            done = outside(step.removeprefix(USER), project, number)
            outputs.append((step, done.returncode, done.stdout.replace(bytes(project), b"")))
            continue
        result = run(words(step), env=environment(number), timeout_seconds=60)
        assert result.enforcement == "full", result.missing_layers
        # Ordinary work must not look like an attack.
        alarms = [violation for violation in result.violations if violation.kind in ("protected", "planted")]
        assert alarms == [] or workflow.differs, step
        outputs.append((step, result.exit_code, result.stdout.replace(bytes(project), b"")))
    return outputs


def cases() -> list[object]:
    """Return a case for each workflow. Five of six, and those with a further program, are only in the long tests."""
    marks = [[pytest.mark.real] if one.needs or number % 6 else [] for number, one in enumerate(ALL)]
    return [pytest.param(one, id=one.name, marks=mark) for one, mark in zip(ALL, marks, strict=True)]


@pytest.fixture
def folders(git_template: Path, tmp_path: Path) -> Callable[[Workflow], tuple[Path, Path]]:
    """A function that makes the project for plain git and the project for contained commands."""

    def make(workflow: Workflow) -> tuple[Path, Path]:
        if workflow.needs and not shutil.which(workflow.needs):
            pytest.skip(f"{workflow.needs} is not installed")
        plain, contained = (start_from(git_template, workflow.start, tmp_path / name) for name in ("plain", "boxed"))
        return plain, contained

    return make


def must_be_alike(workflow: Workflow, plain: Path, contained: Path) -> None:
    """Compare what the user's git shows of both projects, without the parts that may differ."""
    expected, seen = (view_of(folder, workflow.repositories) for folder in (plain, contained))
    compared = [part for part in expected if part.rpartition(": ")[2] not in workflow.differs]
    different = [part for part in compared if seen[part] != expected[part]]
    assert {part: seen[part] for part in different} == {part: expected[part] for part in different}


@pytest.mark.parametrize("workflow", cases())
def test_contained_workflow_ends_like_plain_git(
    workflow: Workflow, folders: Callable[[Workflow], tuple[Path, Path]], open_sandbox: Callable[..., Sandbox]
) -> None:
    plain, contained = folders(workflow)
    expected = run_plainly(workflow, plain)
    outputs = run_contained(workflow, contained, open_sandbox(project_root=str(contained)).run)
    if "output" not in workflow.differs:
        assert outputs == expected
    must_be_alike(workflow, plain, contained)


def named(always: list[str], long: list[str]) -> list[object]:
    """Return a case for each of these workflows; the second list is only in the long tests."""
    by_name = {one.name: one for one in ALL}
    marks = [*[[]] * len(always), *[[pytest.mark.real]] * len(long)]
    return [
        pytest.param(by_name[name], id=name, marks=mark) for name, mark in zip([*always, *long], marks, strict=True)
    ]


# Each depends on something that a command leaves for the next one.
LONG = named(
    [
        "merge with conflict, step by step",
        "interactive rebase, edited over several commands",
        "the user commits between two commands",
        "worktree with commits",
        "commit inside a submodule",
        "init in an empty project",
    ],
    [
        "add one hunk of two",
        "merge begun by the user",
        "rebase with conflict, continued",
        "rebase aborted",
        "interactive rebase, list edited between two commands",
        "cherry-pick of a range with conflict",
        "patch by mail with conflict",
        "bisect",
        "several stashes",
        "the user packs and collects",
        "rebase in a linked worktree",
        "clone",
        "bare repository",
        "collect garbage",
    ],
)


@pytest.mark.parametrize("workflow", LONG)
def test_workflow_continues_in_a_new_sandbox(
    workflow: Workflow, folders: Callable[[Workflow], tuple[Path, Path]], open_sandbox: Callable[..., Sandbox]
) -> None:
    plain, contained = folders(workflow)

    def run(*words: Any, **options: Any) -> SandboxResult:
        with open_sandbox(project_root=str(contained)) as box:
            return box.run(*words, **options)

    assert run_contained(workflow, contained, run) == run_plainly(workflow, plain)
    must_be_alike(workflow, plain, contained)


@pytest.mark.parametrize("backend", ["bubblewrap"])
@pytest.mark.parametrize("workflow", LONG)
def test_workflow_ends_like_plain_git_by_another_backend(
    workflow: Workflow,
    backend: str,
    folders: Callable[[Workflow], tuple[Path, Path]],
    open_sandbox: Callable[..., Sandbox],
) -> None:
    plain, contained = folders(workflow)
    box = open_sandbox(project_root=str(contained), containment=Containment(backend=backend))
    assert run_contained(workflow, contained, box.run) == run_plainly(workflow, plain)
    must_be_alike(workflow, plain, contained)


APPLIED = named(
    ["commit", "merge left in conflict", "branch below a deleted name", "worktree added and removed"],
    [
        "remove files",
        "strange names",
        "merge with conflict, step by step",
        "rebase with conflict, continued",
        "interactive rebase, edited over several commands",
        "several stashes",
        "tags",
        "reset of three kinds",
    ],
)


@pytest.mark.parametrize("workflow", APPLIED)
def test_applied_transaction_ends_like_plain_git(
    workflow: Workflow, folders: Callable[[Workflow], tuple[Path, Path]], open_sandbox: Callable[..., Sandbox]
) -> None:
    plain, contained = folders(workflow)
    before = view_of(contained, workflow.repositories)
    with open_sandbox(project_root=str(contained)).transaction() as transaction:
        outputs = run_contained(workflow, contained, transaction.run)
        assert outputs == run_plainly(workflow, plain)
        assert view_of(contained, workflow.repositories) == before
        assert transaction.apply().ok
    must_be_alike(workflow, plain, contained)


def test_table_has_enough_workflows_and_reasons() -> None:
    assert len(ALL) >= 65
    assert len({one.name for one in ALL}) == len(ALL)
    for one in ALL:
        assert len(one.steps) > 1
        assert set(one.differs) <= set(PARTS), one.name
        assert all(reason.endswith(".") for reason in one.differs.values())
