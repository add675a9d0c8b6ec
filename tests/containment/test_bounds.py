"""Limits hold for root and for an ordinary user, and the result names the one that was hit."""

from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import attempt

from corral import Containment, Limits, PolicyError, Sandbox

FORKS = """
children = []
try:
    for _ in range(facts['tries']):
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        children.append(pid)
except OSError:
    print(len(children), file=sys.stderr)
    print('Resource temporarily unavailable', file=sys.stderr)
for pid in children:
    os.kill(pid, 9)
return len(children) == facts['tries']
"""


@pytest.fixture
def bounded(open_sandbox: Callable[..., Sandbox]) -> Callable[..., Sandbox]:
    """A maker of contained sandboxes with limits."""
    return lambda **limits: open_sandbox(limits=Limits(**limits))


def kinds(box: Sandbox, body: str, **facts: object) -> tuple[str, list[str]]:
    """Return how a program went, and the kinds of violations of its result."""
    results = []
    run = box.run
    box.run = lambda *words, **options: results.append(run(*words, **options)) or results[-1]  # type: ignore[method-assign, func-returns-value]
    went = attempt(box, body, **facts).partition(":")[0]
    return went, [violation.kind for violation in results[-1].violations]


def test_processes_are_counted_for_one_command(bounded: Callable[..., Sandbox], loose: Sandbox) -> None:
    box = bounded(processes=12)
    assert attempt(loose, FORKS, tries=30) == "succeeded"
    for _ in range(2):
        assert attempt(box, FORKS, tries=9) == "succeeded"
        assert kinds(box, FORKS, tries=30)[0] == "held"


def test_who_starts_too_many_is_told_so(bounded: Callable[..., Sandbox]) -> None:
    box = bounded(processes=12)
    went, violations = kinds(box, FORKS, tries=30)
    assert (went, violations) == ("held", ["process-limit"])
    assert kinds(box, FORKS, tries=5) == ("succeeded", [])


def test_endless_forks_are_contained_and_gone(bounded: Callable[..., Sandbox]) -> None:
    box = bounded(processes=40)
    result = box.run("f() { f | f & }; f 2>/dev/null; sleep 1", shell=True, timeout_seconds=10)
    assert result.enforcement == "full"
    assert box.run(["true"]).ok
    assert box.run("ls /proc > /tmp/l; grep -c '^[0-9]' /tmp/l", shell=True).stdout == b"2\n"


def test_wardens_are_counted_apart(bounded: Callable[..., Sandbox]) -> None:
    box = bounded(processes=12)
    with box.start("for i in 1 2 3 4 5 6 7 8; do sleep 30 & done; wait", shell=True):
        assert attempt(box, FORKS, tries=9) == "succeeded"


def test_memory_is_refused_and_said(bounded: Callable[..., Sandbox], loose: Sandbox) -> None:
    body = (
        "try:\n    return len(bytearray(300_000_000))\nexcept MemoryError:\n    print('MemoryError', file=sys.stderr)"
    )
    assert kinds(bounded(memory_bytes=100_000_000), body) == ("held", ["memory-limit"])
    assert attempt(loose, body) == "succeeded"


def test_without_a_kernel_layer_a_bound_on_processes_is_an_error(
    open_sandbox: Callable[..., Sandbox], project: Path
) -> None:
    with pytest.raises(PolicyError, match=r"limits\.processes"):
        open_sandbox(containment=Containment(backend="none"), limits=Limits(processes=5))
