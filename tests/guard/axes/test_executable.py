"""Tests the name axis: near misses first, then refusals by name, path, link and copy."""

from __future__ import annotations

import pytest

from corral import DEFAULT_DENYLIST, Decision, SandboxConfig
from corral.axes import _check_executable_denylist
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.call import Axis, Call

ALLOWED = {
    "a harmless program": ["ls", "-la"],
    "a dangerous word as an argument": ["grep", "rm", "notes.txt"],
    "a name that begins like a denied one": ["rmdirs"],
    "a name that ends like a denied one": ["farm"],
    "a program of the project": ["./script.py"],
    "a denied name in another case": ["RM", "x"],
}
REFUSED = {
    "by name": (["rm", "x"], "rm"),
    "by its path": (["/bin/rm", "x"], "rm"),
    "by another path": (["/usr/bin/rm", "-rf", "x"], "rm"),
    "through a link": (["./tidy", "x"], "rm"),
    "by a dotted variant": (["mkfs.ext4", "/dev/sda"], "mkfs"),
    "behind a wrapper": (["env", "rm", "x"], "rm"),
    "behind several wrappers": (["nice", "env", "A=1", "timeout", "5", "rm", "x"], "rm"),
    "privileges": (["sudo", "ls"], "sudo"),
    "permissions": (["chmod", "777", "x"], "chmod"),
    "processes": (["kill", "-9", "1"], "kill"),
    "power": (["shutdown", "now"], "shutdown"),
    "the network": (["curl", "http://localhost"], "curl"),
    "a listener": (["nc", "-l", "80"], "nc"),
    "a firewall": (["iptables", "-F"], "iptables"),
    "a scheduler": (["crontab", "x"], "crontab"),
    "a kernel module": (["insmod", "x.ko"], "insmod"),
    "mounts": (["mount", "x", "y"], "mount"),
    "containers": (["docker", "ps"], "docker"),
    "evaluation": (["eval", "ls"], "eval"),
    "a disk": (["dd", "if=a", "of=b"], "dd"),
}


@pytest.mark.parametrize("argv", [pytest.param(a, id=name) for name, a in ALLOWED.items()])
def test_unlisted_name_is_allowed(strict: SandboxConfig, argv: list[str]) -> None:
    assert _check_executable_denylist(argv, strict) is None


@pytest.mark.parametrize(("argv", "name"), [pytest.param(*case, id=name) for name, case in REFUSED.items()])
def test_listed_name_is_refused(strict: SandboxConfig, argv: list[str], name: str) -> None:
    reason = _check_executable_denylist(argv, strict)
    assert reason is not None
    assert "denylist" in reason
    rules = [f.rule for f in vet(Call(argv), strict).findings if f.axis is Axis.NAME]
    assert rules == [f"name-{name}"]


def test_user_can_replace_the_denylist(project: str) -> None:
    config = SandboxConfig(project_root=project, denylist={"frobnicate"})
    assert _check_executable_denylist(["frobnicate"], config) is not None
    assert _check_executable_denylist(["rm", "x"], config) is None


def test_user_can_extend_the_denylist(project: str) -> None:
    config = SandboxConfig(project_root=project, denylist=DEFAULT_DENYLIST | {"frobnicate"})
    assert _check_executable_denylist(["frobnicate"], config) is not None
    assert _check_executable_denylist(["rm", "x"], config) is not None


def test_name_listed_by_the_user_is_refused_under_workspace(project: str) -> None:
    config = SandboxConfig(project_root=project, profile="workspace", denylist={"ls"})
    assert vet(Call(["ls"]), config).decision is Decision.DENY


def test_copy_made_in_the_call_is_judged_as_its_source(strict: SandboxConfig) -> None:
    verdict = vet(Call("cp /bin/rm ./x && ./x -rf y", shell=True), strict)
    assert "name-rm" in [f.rule for f in verdict.findings]


def test_link_made_in_the_call_is_judged_as_its_target(strict: SandboxConfig) -> None:
    verdict = vet(Call("ln -s /bin/rm x; ./x y", shell=True), strict)
    assert "name-rm" in [f.rule for f in verdict.findings]


class Linked(Machine):
    """A machine whose project is below a system directory and contains a link to rm."""

    def resolve(self, path: str, cwd: str) -> str:
        absolute = self.absolute(path, cwd)
        return "/usr/bin/rm" if absolute == f"{self.root}/tidy" else absolute


@pytest.mark.parametrize("root", ["/opt/app", "/usr/src/app", "/usr/local/src/x", "/snap/x", "/srv/app"])
def test_link_is_followed_in_a_project_below_usr(strict: SandboxConfig, root: str) -> None:
    for call in (Call(["./tidy", "x"]), Call([f"{root}/tidy", "x"]), Call("env ./tidy x", shell=True)):
        assert "name-rm" in [f.rule for f in vet(call, strict, Linked(root)).findings]


@pytest.mark.parametrize("root", ["/opt/app", "/usr/src/app"])
def test_project_below_usr_is_no_system_directory(strict: SandboxConfig, root: str) -> None:
    findings = vet(Call(f"PATH={root}/bin:$PATH; ls", shell=True), strict, Linked(root)).findings
    assert "structure-shadow" in [f.rule for f in findings]
    findings = vet(Call("PATH=/usr/bin:$PATH; ls", shell=True), strict, Linked(root)).findings
    assert [f for f in findings if f.rule == "structure-shadow" and "/usr/bin " in f.reason] == []
