"""Builds seccomp profiles for container engines: Docker's default, plus the system calls that make a sandbox."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Rule = Mapping[str, Any]

_DEFAULT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "docker-seccomp.json")
# Each system call that corral needs and Docker's default refuses, with its use. No other call is opened.
OPENED = {
    "unshare": "enters the namespaces of a sandbox",
    "mount": "mounts the sandbox's own /proc, /dev/pts and scratch directories",
    "umount2": "takes the container's file system away from the sandbox",
    "pivot_root": "makes the sandbox's tree its root directory",
    "open_tree": "clones a mount that the sandbox shows",
    "move_mount": "attaches a mount in the sandbox's tree",
    "mount_setattr": "makes mounts of the sandbox read-only",
    "fsopen": "begins the empty file system in which the tree is built",
    "fsconfig": "sets its size",
    "fsmount": "mounts it",
    "setns": "protects a file again that was replaced on the host while a command runs",
    "name_to_handle_at": "tells a new file from the old one that had the same inode",
}
ABOUT = (
    "Docker's default, and what corral needs to make a sandbox: "
    + "; ".join(f"{name} {use}" for name, use in OPENED.items())
    + ". A process needs no privileges for these calls in a user namespace of its own, and gets none outside it. They let "
    "the container's processes reach more of the kernel's code. A command in corral's sandbox may make none of them: "
    "corral's own filter refuses them."
)
_ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM")
_MACHINES = frozenset({"amd64", "x32", "x86", "arm64", "arm"})
_KERNEL = (5, 12)  # corral's sandbox needs this one or a later one


def docker_profile() -> dict[str, Any]:
    """Return the profile in Docker's format, whose rules can depend on the container's capabilities."""
    with open(_DEFAULT, encoding="utf-8") as file:
        profile: dict[str, Any] = json.load(file)
    opened = {"names": list(OPENED), "action": "SCMP_ACT_ALLOW", "comment": ABOUT}
    return profile | {"syscalls": [opened, *profile["syscalls"]]}


def oci_profile() -> dict[str, Any]:
    """Return the profile in the format of the OCI runtime specification, for a container without capabilities.

    This format has no conditions, so an engine that reads it ignores those of Docker's and would allow too much.
    """
    profile = docker_profile()
    rules = [
        {name: value for name, value in rule.items() if name in ("names", "action", "args", "errnoRet")}
        for rule in profile["syscalls"]
        if _applies(rule)
    ]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": 1,
        "architectures": list(_ARCHITECTURES),
        "syscalls": rules,
    }


def _applies(rule: Rule) -> bool:
    wanted, unwanted = rule.get("includes", {}), rule.get("excludes", {})
    if wanted.get("caps") or ((arches := wanted.get("arches")) and not _MACHINES & {*arches}):
        return False
    if (oldest := wanted.get("minKernel")) and tuple(map(int, oldest.split("."))) > _KERNEL:
        return False
    return not _MACHINES & {*unwanted.get("arches", ())}
