"""Descendants: all of them are found, by either of the kernel's lists, and those to be spared are spared."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from corral.containment import tree
from observe import alive, children, eventually, unique_seconds


@pytest.fixture
def family() -> Iterator[tuple[int, str]]:
    """A shell with a child, and a grandchild in a session of its own."""
    seconds = unique_seconds()
    text = f"sleep {seconds} & (setsid sleep {seconds}; :) & wait"
    with subprocess.Popen(["bash", "-c", text]) as shell:
        eventually(lambda: len(alive(seconds)) == 2)
        yield shell.pid, seconds
        for pid in alive(seconds):
            os.kill(pid, 9)


def test_all_descendants_are_found_parents_first(family: tuple[int, str]) -> None:
    shell, seconds = family
    found = tree.descendants(shell)
    assert set(alive(seconds)) < set(found)
    assert len(found) == 3
    (subshell,) = set(found) - set(alive(seconds))
    (grandchild,) = children(subshell)
    assert found.index(subshell) < found.index(grandchild)


def test_a_kernel_without_lists_of_children_gives_the_same(
    family: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, _ = family
    expected = set(tree.descendants(shell))
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert set(tree.descendants(shell)) == expected


def test_the_spared_and_what_is_below_them_are_left_out(family: tuple[int, str]) -> None:
    shell, seconds = family
    assert tree.descendants(os.getpid(), spared={shell}) == []
    spared = next(pid for pid in children(shell) if pid not in alive(seconds))
    (only,) = tree.descendants(shell, spared={spared})
    assert only in alive(seconds)


def test_a_process_that_is_gone_has_no_descendants() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert tree.descendants(process.pid) == []


def test_one_pass_reaches_everyone_there_is(family: tuple[int, str]) -> None:
    shell, seconds = family
    expected = {shell, *tree.descendants(shell)}
    assert tree.kill_descendants() >= expected
    eventually(lambda: alive(seconds) == [])
