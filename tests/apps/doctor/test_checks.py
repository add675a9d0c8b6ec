"""Facts of machines, judged: what each that is missing means, and the command that would bring it."""

import errno
from typing import Any

import pytest

from corral._lib.terminal import Terminal, columns
from corral.apps.doctor.check import Check
from corral.apps.doctor.checks import examine
from corral.apps.doctor.facts import Facts, Refusal
from corral.apps.doctor.probe_sandbox import SandboxProbe
from corral.apps.doctor.report import report_text
from corral.containment.filesystem.shared_files import Survey
from corral.containment.layers import LAYERS

INSIDE = SandboxProbe(
    backend="warden",
    enforcement="full",
    status={"NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0", "CapPrm": "0", "CapBnd": "1ffffffffff"},
    processes=1,
    scratch=("/home/user", "/tmp"),
    git='[user]\n\tname = "The Owner"\n\temail = "o@example.org"\n',
)
HEALTHY = Facts(
    corral="0.1.0",
    kernel="6.18.0",
    machine="x86_64",
    python="3.12.1",
    interpreter="/usr/bin/python3.12",
    uid=1000,
    refusals=dict.fromkeys(LAYERS),
    landlock_abi=7,
    settings={},
    security_modules="lockdown,yama,apparmor",
    is_filtered=False,
    container="",
    proc_covers=(),
    groups=dict.fromkeys(("pids", "memory", "cpu"), "/sys/fs/cgroup/user.slice"),
    bash="/bin/bash",
    bubblewrap="/usr/bin/bwrap",
    quarantine="/home/o/.local/state/corral-quarantine",
    can_quarantine=True,
    scratch="",
    project="/home/o/work",
    unusable="",
    inside=INSIDE,
)


def refused(layer: str, number: int, *also: str, **changes: Any) -> Facts:
    """Return a machine on which the kernel refused a layer."""
    words = f"call: {errno.errorcode[number]}"
    untried = {name: Refusal(0, "it was not tried") for name in also}
    missing = tuple(name for name in LAYERS if name in (layer, *also))
    inside = INSIDE.replace(enforcement="partial", missing_layers=missing)
    refusals = {**dict.fromkeys(LAYERS), layer: Refusal(number, words), **untried}
    return HEALTHY.replace(**{"refusals": refusals, "inside": inside} | changes)


def check(facts: Facts, name: str) -> Check:
    return next(check for check in examine(facts).checks if check.name == name)


def test_healthy_machine_has_nothing_to_fix() -> None:
    report = examine(HEALTHY)
    assert {check.status for check in report.checks} == {"ok"}
    assert [check.name for check in report.checks][:12] == list(LAYERS)
    assert [check for check in report.checks if check.fixes] == []
    assert report.enforcement == "full"


@pytest.mark.parametrize(
    ("layer", "number", "changes", "commands"),
    [
        pytest.param(
            "user",
            errno.ENOSPC,
            {"settings": {"user.max_user_namespaces": "0"}},
            ["echo user.max_user_namespaces=28633 | sudo tee /etc/sysctl.d/60-corral.conf && sudo sysctl --system"],
            id="no user namespaces by a limit",
        ),
        pytest.param(
            "net",
            errno.ENOSPC,
            {"settings": {"user.max_net_namespaces": "0"}},
            ["echo user.max_net_namespaces=28633 | sudo tee /etc/sysctl.d/60-corral.conf && sudo sysctl --system"],
            id="no network namespaces by a limit",
        ),
        pytest.param(
            "mount",
            errno.ENOSPC,
            {},
            ["echo user.max_mnt_namespaces=28633 | sudo tee /etc/sysctl.d/60-corral.conf && sudo sysctl --system"],
            id="a limit by the kernel's own name",
        ),
        pytest.param(
            "user",
            errno.EPERM,
            {"settings": {"kernel.unprivileged_userns_clone": "0"}},
            ["echo kernel.unprivileged_userns_clone=1 | sudo tee /etc/sysctl.d/60-corral.conf && sudo sysctl --system"],
            id="only root, on Debian",
        ),
        pytest.param(
            "mount",
            errno.EACCES,
            {"settings": {"kernel.apparmor_restrict_unprivileged_userns": "1"}},
            ["corral doctor --emit apparmor"],
            id="AppArmor, on Ubuntu",
        ),
        pytest.param(
            "user",
            errno.EPERM,
            {"container": "docker"},
            ["corral doctor --emit docker"],
            id="Docker",
        ),
        pytest.param(
            "user",
            errno.EPERM,
            {"container": "podman"},
            ["corral doctor --emit podman"],
            id="Podman",
        ),
        pytest.param(
            "user", errno.EPERM, {"container": "kubernetes"}, ["corral doctor --emit kubernetes"], id="Kubernetes"
        ),
        pytest.param("user", errno.EPERM, {"is_filtered": True}, [""], id="another sandbox"),
        pytest.param("user", errno.EPERM, {}, [""], id="nothing that explains it"),
        pytest.param(
            "user", errno.EINVAL, {}, ["grep CONFIG_USER_NS /boot/config-$(uname -r)"], id="a kernel without them"
        ),
        pytest.param(
            "proc",
            errno.EPERM,
            {"proc_covers": ("/proc/kcore", "/proc/keys")},
            ["sudo umount /proc/kcore /proc/keys"],
            id="covered parts of /proc",
        ),
        pytest.param(
            "landlock",
            errno.EOPNOTSUPP,
            {},
            [
                (
                    "echo 'GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT lsm=landlock,lockdown,yama,apparmor\"' "
                    "| sudo tee /etc/default/grub.d/corral.cfg && sudo update-grub && sudo reboot"
                )
            ],
            id="Landlock not started",
        ),
        pytest.param(
            "landlock",
            errno.ENOSYS,
            {"kernel": "5.10.0"},
            ["grep CONFIG_SECURITY_LANDLOCK /boot/config-$(uname -r)"],
            id="a kernel before Landlock",
        ),
        pytest.param("seccomp", errno.ENOSYS, {"machine": "riscv64"}, [""], id="a machine without a table"),
        pytest.param(
            "seccomp",
            errno.EINVAL,
            {},
            ["grep CONFIG_SECCOMP_FILTER /boot/config-$(uname -r)"],
            id="a kernel without filters",
        ),
    ],
)
def test_refused_layer_is_explained(layer: str, number: int, changes: dict[str, object], commands: list[str]) -> None:
    found = check(refused(layer, number, **changes), layer)
    assert (found.status, found.means) == ("fail", LAYERS[layer].without)
    assert found.found == f"call: {errno.errorcode[number]}"
    assert [fix.command for fix in found.fixes] == commands
    assert all(fix.why for fix in found.fixes)


def test_covered_proc_in_docker_needs_docker_options() -> None:
    facts = refused("proc", errno.EPERM, proc_covers=("/proc/kcore",), container="docker")
    assert [fix.command for fix in check(facts, "proc").fixes] == ["", "corral doctor --emit docker"]


def test_layer_by_the_launcher_holds() -> None:
    facts = refused("user", errno.EPERM).replace(inside=INSIDE)
    found = check(facts, "user")
    assert found.status == "ok"
    assert found.found.endswith("; by the launcher, because this process could not: call: EPERM")


def test_setting_alone_proves_nothing() -> None:
    settings = {
        "user.max_user_namespaces": "0",
        "kernel.apparmor_restrict_unprivileged_userns": "1",
        "kernel.unprivileged_userns_clone": "0",
    }
    assert {check.status for check in examine(HEALTHY.replace(settings=settings)).checks} == {"ok"}


def test_layer_missing_in_the_sandbox_is_missing() -> None:
    inside = INSIDE.replace(enforcement="partial", missing_layers=("net",))
    assert check(HEALTHY.replace(inside=inside), "net").status == "fail"


def test_layer_of_another_backend_names_it() -> None:
    facts = refused("mount", errno.EACCES).replace(inside=INSIDE.replace(backend="bubblewrap"))
    found = check(facts, "mount")
    assert (found.status, found.fixes) == ("ok", ())
    assert "by bubblewrap" in found.found
    assert found.found.endswith("call: EACCES")


def test_layer_on_a_missing_layer_has_no_own_fix() -> None:
    facts = refused("mount", errno.EACCES, "pid", "proc")
    for name, below in (("pid", "mount"), ("proc", "pid")):
        assert below in check(facts, name).found
        assert check(facts, name).fixes == ()


@pytest.mark.parametrize(("abi", "status", "lacking"), [(1, "warn", 6), (3, "warn", 4), (5, "warn", 2), (6, "ok", 1)])
def test_older_landlock_lists_missing_features(abi: int, status: str, lacking: int) -> None:
    found = check(HEALTHY.replace(landlock_abi=abi), "landlock")
    assert (found.status, found.means.count("Linux ")) == (status, lacking)
    assert f"version {abi}" in found.found
    assert [fix.command for fix in found.fixes] == ["uname -r"]


@pytest.mark.parametrize(
    ("changes", "name", "status", "words"),
    [
        pytest.param({"bash": ""}, "bash", "fail", "sudo apt install bash", id="no bash"),
        pytest.param({"bubblewrap": ""}, "bubblewrap", "warn", "sudo apt install bubblewrap", id="no bubblewrap"),
        pytest.param({"groups": {"pids": "/g"}}, "cgroups", "warn", "systemd-run", id="no control groups"),
        pytest.param({"can_quarantine": False}, "quarantine", "warn", "XDG_STATE_HOME", id="no place for quarantine"),
        pytest.param({"unusable": "no"}, "project", "fail", "corral doctor --root DIR", id="an unusable project"),
        pytest.param(
            {"inside": INSIDE.replace(git="")}, "git", "warn", "git config --global", id="no name for commits"
        ),
        pytest.param({"git_left_out": ("core.hookspath",)}, "git config", "warn", "git config", id="git settings"),
        pytest.param({"inside": INSIDE.replace(scratch=("/tmp",))}, "scratch", "fail", "TMPDIR", id="no scratch"),
        pytest.param(
            {"inside": INSIDE.replace(writable_own=("/home/o/work/corral",))},
            "own files",
            "fail",
            "pipx install .",
            id="a package that commands can write",
        ),
    ],
)
def test_surroundings_are_checked(changes: dict[str, Any], name: str, status: str, words: str) -> None:
    found = check(HEALTHY.replace(**changes), name)
    assert (found.status, words in found.fixes[0].command) == (status, True)


@pytest.mark.parametrize(
    ("status", "name"),
    [
        pytest.param({"NoNewPrivs": "0"}, "privileges", id="rights to gain"),
        pytest.param({"CapEff": "200000", "CapPrm": "200000"}, "privileges", id="a capability"),
        pytest.param({"Seccomp": "0"}, "seccomp", id="no filter"),
    ],
)
def test_capabilities_of_a_real_command_count(status: dict[str, str], name: str) -> None:
    inside = INSIDE.replace(status={**INSIDE.status, **status})
    assert check(HEALTHY.replace(inside=inside), name).status == "fail"


def test_core_dumps_are_reported() -> None:
    assert check(HEALTHY.replace(inside=INSIDE.replace(can_dump_core=True)), "rlimits").status == "fail"


def test_sandbox_failure_is_reported() -> None:
    report = examine(HEALTHY.replace(inside=SandboxProbe("the keeper did not start")))
    assert (report.enforcement, report.means.endswith("the keeper did not start")) == ("none", True)


BROKEN = (
    HEALTHY,
    refused("user", errno.EPERM, "mount", "pid", "proc", "net", "ipc", "uts", "cgroup", container="docker"),
    refused("mount", errno.EACCES, "pid", settings={"kernel.apparmor_restrict_unprivileged_userns": "1"}, bash=""),
    HEALTHY.replace(inside=SandboxProbe("the keeper did not start"), landlock_abi=1, unusable="a\x1b[2Jb"),
)


@pytest.mark.parametrize("facts", BROKEN)
@pytest.mark.parametrize("width", [24, 40, 60, 80, 120])
def test_report_fits_the_terminal(facts: Facts, width: int) -> None:
    wide = [line for line in report_text(examine(facts), Terminal(width)).splitlines() if columns(line) > width]
    assert [line for line in wide if "'" not in line and len(line.strip(" $\\").split()) > 1] == []


@pytest.mark.parametrize("facts", BROKEN)
def test_ascii_report_has_the_same_text(facts: Facts) -> None:
    rich = report_text(examine(facts), Terminal(80, color=True))
    plain = report_text(examine(facts), Terminal(80, unicode=False))
    assert plain.isascii()
    assert plain.replace("\n", "").isprintable()
    for code in ("1;31", "1;33", "1;32", "1;36", "1", "2", "0"):
        rich = rich.replace(f"\x1b[{code}m", "")
    assert rich.translate(str.maketrans("✓⚠✗", "+!x")) == plain


def test_hard_links_to_files_outside_are_reported() -> None:
    shared = Survey(3, 5 << 20, ("/home/o/work/node_modules/.pnpm",))
    assert check(HEALTHY, "hard links").status == "ok"
    copied = check(HEALTHY.replace(shared=shared), "hard links")
    left = check(HEALTHY.replace(shared=shared, still_shared=shared), "hard links")
    assert (copied.status, left.status) == ("ok", "warn")
    assert all("3 files in node_modules/.pnpm" in each.found for each in (copied, left))
    assert [fix.command.split()[-1] for fix in left.fixes] == ["--reinstall", "--package-import-method=copy"]


def test_wrapped_command_is_still_the_command() -> None:
    facts = refused("landlock", errno.EOPNOTSUPP)
    (fix,) = check(facts, "landlock").fixes
    text = report_text(examine(facts), Terminal(60))
    shown = text[text.index("$ echo") + 2 :].partition("\n    ✗")[0].partition("\n  ✗")[0].partition("\n  ✓")[0]
    assert " ".join(line.strip().removesuffix(" \\") for line in shown.splitlines()) == fix.command
