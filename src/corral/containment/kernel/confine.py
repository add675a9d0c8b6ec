"""Puts on, in one order that matters, every layer that holds a warden and its commands. What has been put on stays."""

from __future__ import annotations

import os
from errno import ESTALE

from corral.containment.kernel import capabilities, landlock, mounts, namespaces, process_tree, seccomp
from corral.containment.kernel.syscalls import MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any


def confine(plan: dict[str, Any], layers: Collection[str], keeper: int) -> None:
    """Confine this process as far as the layers go; the pid and net namespaces are those it was started in."""
    if plan["backend"] == "bubblewrap":
        # It has made the namespaces and the tree, and its filter is on already. It follows links, so what it bound is compared.
        for expected in (plan["project"], *plan["expected"]):
            _recognise(*expected)
        give_up(plan, layers)
        return
    namespaces.unshare(*(name for name in ("mount", "ipc", "uts", "cgroup") if name in layers))
    if "mount" in layers:
        mounts.enter(plan["steps"], plan["scratch"], plan["known"], own_proc="proc" in layers)
        _recognise(*plan["project"])
    capabilities.join_empty_keyring()
    capabilities.disable_core_dumps()
    give_up(plan, layers)
    if "seccomp" in layers:
        seccomp.install(program(plan, layers, (os.getpid(),) if "pid" in layers else (os.getpid(), keeper)))


def give_up(plan: dict[str, Any], layers: Collection[str]) -> None:
    """Give up, in the tree that is there now, every right that is not for commands."""
    capabilities.set_no_new_privs()
    if "landlock" in layers:
        # After the last mount: a rule binds to what lies there when it is made.
        rules = plan["rules"] if "mount" in layers else plan["rules_without_mounts"]
        deny_tcp = "net" not in layers and plan["network"] != "on"
        known = None if "mount" in layers else plan["known"]
        landlock.confine(rules, deny_tcp=deny_tcp, logged=plan["audited"], known=known)
    capabilities.drop(capabilities.FILE_CAPABILITIES if plan["full_map"] and os.geteuid() == 0 else ())
    process_tree.hide()


def program(plan: dict[str, Any], layers: Collection[str], guarded: Sequence[int]) -> list[seccomp.Instruction]:
    """Return the filter that stands beside these layers."""
    return seccomp.program(
        MACHINE,
        guarded=guarded,
        own_pids="pid" in layers,
        own_files="mount" in layers,
        network="net" in layers or plan["network"] == "on",
        is_root=os.geteuid() == 0,
        ptrace=plan["ptrace"],
        reserves_disk=not {"disk_bytes", "free_disk_bytes"} & set(plan["limits"]),
    )


def _recognise(path: str, device: int, inode: int) -> None:
    """Refuse to go on in another directory than the host saw when the sandbox was made, such as one that a link leads to."""
    found = os.lstat(path)
    if (found.st_dev, found.st_ino) != (device, inode):
        raise OSError(ESTALE, f"{path} was replaced since the sandbox was made")
