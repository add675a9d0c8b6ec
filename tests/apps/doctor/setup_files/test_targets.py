"""The files of `corral doctor --emit`: each parses, opens what it names and nothing else, and says why."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from machines import run_corral

from corral.apps.doctor.setup_files.seccomp import OPENED, docker_profile, oci_profile
from corral.apps.doctor.setup_files.targets import TARGETS
from corral.containment.processes.keeper_command import LAUNCHER

# What a container's processes must not get, because it reaches the machine or has a long record of holes.
NEVER = {
    "bpf",
    "io_uring_setup",
    "keyctl",
    "open_by_handle_at",
    "init_module",
    "kexec_load",
    "userfaultfd",
    "reboot",
    "ptrace",
}


def allowed(profile: dict[str, Any]) -> set[str]:
    """Return the calls that a profile allows with any arguments to a container without capabilities."""
    rules = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args")]
    return {name for rule in rules if "caps" not in rule.get("includes", {}) for name in rule["names"]}


def text(name: str) -> str:
    return TARGETS[name].text()


def test_docker_profile_opens_only_the_named_calls() -> None:
    profile = json.loads(text("docker"))
    opened, *default = profile["syscalls"]
    assert (opened["names"], opened["action"]) == (list(OPENED), "SCMP_ACT_ALLOW")
    assert all(f"{name} {use}" in opened["comment"] for name, use in OPENED.items())
    assert allowed(profile) - allowed({"syscalls": default}) == set(OPENED)
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert allowed(profile) & (NEVER - {"ptrace"}) == set()  # Docker allows ptrace since Linux 4.8
    assert "Apache License 2.0" in profile["comment"]


def test_profile_without_conditions_keeps_the_conditional_calls_closed() -> None:
    profile = oci_profile()
    assert {key for rule in profile["syscalls"] for key in rule} <= {"names", "action", "args", "errnoRet"}
    assert allowed(profile) >= {*OPENED, "arch_prctl", "arm_fadvise64_64"}
    assert (
        allowed(profile) & (NEVER - {"ptrace"} | {"chroot", "syslog", "settimeofday", "clone", "s390_runtime_instr"})
        == set()
    )
    # As in Docker's: clone() without new namespaces, and clone3() looks as if the kernel lacked it.
    (cloned,) = [rule for rule in profile["syscalls"] if rule["names"] == ["clone"]]
    assert cloned["args"][0]["value"] == 0x7E020000
    (newer,) = [rule for rule in profile["syscalls"] if rule["names"] == ["clone3"]]
    assert (newer["action"], newer["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)


def test_pod_has_the_profile_and_no_root() -> None:
    config, pod = yaml.safe_load_all(text("kubernetes"))
    assert json.loads(config["data"]["corral.json"]) == oci_profile()
    spec = pod["spec"]
    assert (spec["hostUsers"], spec["securityContext"]["runAsNonRoot"]) == (False, True)
    assert spec["securityContext"]["seccompProfile"] == {"type": "Localhost", "localhostProfile": "corral.json"}
    assert spec["containers"][0]["securityContext"] == {
        "procMount": "Unmasked",
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(f"#   {name}: {use}\n" in text("kubernetes") for name, use in OPENED.items())


def test_devcontainer_names_the_profile_and_has_no_root() -> None:
    data = json.loads(re.sub(r"(?m)^//.*$", "", text("devcontainer")))
    options = list(zip(data["runArgs"][::2], data["runArgs"][1::2], strict=True))
    assert options == [
        ("--security-opt", "seccomp=${localWorkspaceFolder}/.devcontainer/corral-seccomp.json"),
        ("--security-opt", "systempaths=unconfined"),
        ("--security-opt", "no-new-privileges"),
        ("--cap-drop", "ALL"),
    ]
    assert (data["containerUser"], data["remoteUser"]) == ("USER", "USER")


def test_jobs_check_the_layers_before_they_run_anything() -> None:
    github = yaml.safe_load(text("github-actions"))
    steps = [step.get("run", "").strip() for step in github["jobs"]["test"]["steps"]]
    assert steps[-2:] == ["corral doctor", "corral run -- make test"]
    assert github["permissions"] == {"contents": "read"}
    gitlab = yaml.safe_load(text("gitlab"))
    assert gitlab["corral"]["script"] == ["corral doctor", "corral run -- make test"]


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_left_unconfined(name: str) -> None:
    whole = text(name) + TARGETS[name].use
    # Docker's only option that uncovers /proc has the word in its name. AppArmor's `peer=` names who may send a signal.
    found = re.sub(r"systempaths=unconfined|signal \(receive\) peer=unconfined", "", whole).lower()
    assert "unconfined" not in found
    assert "privileged:" not in found
    assert "--privileged" not in found
    assert not re.search(r"%[A-Z]+%", text(name))


@pytest.mark.parametrize("name", sorted(set(TARGETS) - {"launcher"}))
def test_file_says_what_it_opens_and_why(name: str) -> None:
    assert re.search(r"Opens|what corral needs to make a sandbox|calls that make a sandbox", text(name))


def test_apparmor_profile_is_for_the_launcher_alone() -> None:
    attached = re.findall(r"(?m)^profile (\S+) (\S+) ?(\S*)", text("apparmor"))
    assert [(name, path) for name, path, _ in attached] == [
        ("corral-keeper", LAUNCHER),
        ("corral-container", "flags=(attach_disconnected,"),
    ]
    assert "python" not in re.sub(r"(?m)^ *#.*$", "", text("apparmor")).lower()


@pytest.mark.real
def test_apparmor_accepts_the_profiles(tmp_path: Path) -> None:
    parser = shutil.which("apparmor_parser")
    if parser is None:
        pytest.skip("apparmor_parser is not installed")
    profiles = text("apparmor")
    version = subprocess.run([parser, "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.findall(r"version (\d+)", version)[0]) < 4:
        # Older parsers know all rules but these.
        profiles = re.sub(r"(?m)^  (userns|mqueue),$", "", profiles.replace("abi/4.0", "abi/3.0"))
    file = tmp_path / "corral"
    file.write_text(profiles)
    done = subprocess.run(
        [parser, "--skip-kernel-load", "--skip-cache", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    file.write_text(profiles.replace("pivot_root,", "pivot_roof,"))
    wrong = subprocess.run(
        [parser, "--skip-kernel-load", "--skip-cache", str(file)], capture_output=True, text=True, check=False
    )
    assert wrong.returncode != 0


def test_output_goes_to_the_file(tmp_path: Path) -> None:
    done = run_corral("doctor", "--emit", "docker", "--output", "corral-seccomp.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads((tmp_path / "corral-seccomp.json").read_text()) == docker_profile()
    assert "seccomp=corral-seccomp.json" in done.stderr
    printed = run_corral("doctor", "--emit", "docker", cwd=tmp_path)
    assert printed.stdout == (tmp_path / "corral-seccomp.json").read_text()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        pytest.param(["--emit", "lxc"], list(TARGETS), id="an unknown target"),
        pytest.param(["--output", "x"], ["--emit"], id="a file without a target"),
        pytest.param(["--emit", "docker", "--json"], ["--json"], id="a file and the checks"),
        pytest.param(["--emit", "docker", "--output", "missing/x"], ["missing/x"], id="a directory that is missing"),
    ],
)
def test_wrong_use_is_refused(words: list[str], wanted: list[str], tmp_path: Path) -> None:
    done = run_corral("doctor", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    assert [word for word in wanted if word not in done.stderr] == []
