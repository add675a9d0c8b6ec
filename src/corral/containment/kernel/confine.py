"""Enters every layer that confines a warden and its commands. The order matters, and no layer can be left again."""

from __future__ import annotations

import os
from errno import ESTALE

from corral.containment.kernel import capabilities, landlock, mounts, namespaces, process_tree, seccomp
from corral.containment.kernel.syscalls import MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.containment.plan import WardenPlan


def confine(told: WardenPlan) -> None:
    """Confine this process by the layers of its plan. It was started in its pid and net namespaces."""
    plan, layers = told.plan, told.layers
    if told.backend == "bubblewrap":
        # Bubblewrap has made the namespaces, the tree and the filter. It follows links, so check what it bound.
        for expected in (plan.project, *told.expected):
            _recognise(*expected)
        give_up(told)
        return
    namespaces.unshare(*(name for name in ("mount", "ipc", "uts", "cgroup") if name in layers))
    if "mount" in layers:
        mounts.enter(plan.steps, plan.scratch, told.known, own_proc="proc" in layers)
        _recognise(*plan.project)
    capabilities.join_empty_keyring()
    capabilities.disable_core_dumps()
    give_up(told)
    if "seccomp" in layers:
        guarded = (os.getpid(),) if "pid" in layers else (os.getpid(), told.keeper)
        seccomp.install(program(told, guarded))


def give_up(told: WardenPlan) -> None:
    """Give up every right that commands must not have."""
    plan, layers = told.plan, told.layers
    capabilities.set_no_new_privs()
    if "landlock" in layers:
        # After the last mount: a rule binds to what lies at a path when it is made.
        rules = plan.rules if "mount" in layers else plan.rules_without_mounts
        deny_tcp = "net" not in layers and plan.network != "on"
        known = None if "mount" in layers else told.known
        landlock.confine(rules, deny_tcp=deny_tcp, logged=plan.is_audited, known=known)
    capabilities.drop(capabilities.FILE_CAPABILITIES if told.all_ids_mapped and os.geteuid() == 0 else ())
    process_tree.hide()


def program(told: WardenPlan, guarded: Sequence[int]) -> list[seccomp.Instruction]:
    """Return the filter that goes with the other layers of a plan."""
    return seccomp.program(
        MACHINE,
        guarded=guarded,
        own_pids="pid" in told.layers,
        own_files="mount" in told.layers,
        network="net" in told.layers or told.plan.network == "on",
        is_root=os.geteuid() == 0,
        ptrace=told.plan.ptrace,
        reserves_disk=not {"disk_bytes", "free_disk_bytes"} & set(told.limits.limits),
    )


def _recognise(path: str, device: int, inode: int) -> None:
    """Raise an error if a path is not the directory that the host saw when it made the sandbox."""
    found = os.lstat(path)
    if (found.st_dev, found.st_ino) != (device, inode):
        raise OSError(ESTALE, f"{path} was replaced since the sandbox was made")
