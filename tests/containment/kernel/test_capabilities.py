"""Tests the capabilities and flags of a command, read from its /proc/self/status."""

import os
import resource
from collections.abc import Callable

import pytest

from corral import Containment, Sandbox

# CHOWN, DAC_OVERRIDE, FOWNER, FSETID: root keeps these, since the files of its project may belong to other users.
OF_FILES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
KEPT = OF_FILES if os.geteuid() == 0 else 0


def status(box: Sandbox) -> dict[str, str]:
    lines = box.run(["cat", "/proc/self/status"]).stdout_text.splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_command_has_only_file_capabilities_as_root(held: Sandbox, name: str) -> None:
    assert int(status(held)[name], 16) & ~KEPT == 0


def test_without_containment_root_has_all_capabilities(loose: Sandbox) -> None:
    if os.geteuid() == 0:
        assert int(status(loose)["CapEff"], 16) & ~KEPT


def test_no_new_privs_and_seccomp_are_set(held: Sandbox, loose: Sandbox) -> None:
    found = status(held)
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    # Each process has one filter of its warden, and those that this test itself runs under.
    outside = status(loose)
    assert int(found["Seccomp_filters"]) == int(outside["Seccomp_filters"]) + 1


def test_core_dumps_are_disabled(held: Sandbox, open_sandbox: Callable[..., Sandbox]) -> None:
    assert held.run(["bash", "-c", "ulimit -c; ulimit -Hc"]).stdout == b"0\n0\n"
    assert held.run(["bash", "-c", "ulimit -c unlimited"]).exit_code == 1
    died = held.run(["bash", "-c", "kill -SEGV $$"])
    assert (died.signal, held.run(["ls"]).stdout) == (11, b"")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
        assert open_sandbox(containment=Containment(backend="none")).run(["bash", "-c", "ulimit -Hc"]).stdout != b"0\n"
