"""Decides how each limit of `config.limits` is kept: by a control group, a resource limit or the keeper's meter."""

from __future__ import annotations

import os

from corral._lib.own_cgroups import own_memory_limit
from corral.containment.kernel.capabilities import disable_core_dumps
from corral.containment.kernel.layer import RIGHTS, Attack, Layer, Remedy
from corral.containment.plan import LimitPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from corral.containment.plan import Place, Plan, Rlimit
    from corral.policy.config import Limits

# The limits that hold for a command and all its descendants together.
_COUNTED = ("cpu_seconds", "memory_bytes", "processes", "disk_bytes", "free_disk_bytes", "free_inodes")
_RLIMITS = {"open_files": "RLIMIT_NOFILE", "file_size_bytes": "RLIMIT_FSIZE"}
# A warden with less than this cannot run commands.
_LEAST_OF_A_WARDEN = {"RLIMIT_NOFILE": 256, "RLIMIT_DATA": 256 * 1024 * 1024}
CONTROLLED = {"pids": "processes", "memory": "memory_bytes", "cpu": "cpu_seconds"}
_KEPT_BY_CGROUP = ("pids", "memory")  # the cpu controller only counts


def counted(limits: Limits) -> dict[str, float]:
    """Return the limits on a whole command that the config sets."""
    return {name: value for name in _COUNTED if (value := getattr(limits, name)) is not None}


def rlimits(limits: Limits) -> tuple[Rlimit, ...]:
    """Return the limits on each process that the config sets."""
    return tuple((rlimit, value) for name, rlimit in _RLIMITS.items() if (value := getattr(limits, name)) is not None)


def decide(plan: Plan, cgroups: Mapping[str, Place], *, own_pids: bool, uncounted: int) -> LimitPlan:
    """Decide how each limit is kept on this machine."""
    limits, rlimits = dict(plan.limits), list(plan.rlimits)
    memory = limits.get("memory_bytes")
    if isinstance(memory, float):
        limits["memory_bytes"] = int(memory * own_memory_limit())
    elif memory is not None and "memory" not in cgroups:
        # RLIMIT_DATA, since java does not start under RLIMIT_AS. Not for a share of the machine, since sanitizers reserve
        # more than any share. It holds at once and for each process; the meter limits all processes together.
        rlimits.append(("RLIMIT_DATA", memory))
    # The kernel counts for RLIMIT_NPROC by user and user namespace, and it does not count root.
    by_user = "processes" in limits and "pids" not in cgroups and own_pids and os.geteuid() != 0
    if by_user:
        rlimits.append(("RLIMIT_NPROC", int(limits["processes"]) + uncounted))
    kept_by_kernel = {CONTROLLED[controller] for controller in _KEPT_BY_CGROUP if controller in cgroups}
    return LimitPlan(
        limits,  # type: ignore[arg-type]  # the only float was a share of memory
        tuple(rlimits),
        cgroups,
        uncounted,
        by_user,
        is_metered=bool(set(limits) - kept_by_kernel),
    )


def split(rlimits: Collection[Rlimit]) -> tuple[list[Rlimit], list[Rlimit]]:
    """Split the limits into those of the warden, which its commands inherit, and those that each command must set."""
    own = [(name, value) for name, value in rlimits if value >= _LEAST_OF_A_WARDEN.get(name, 0)]
    return own, [rlimit for rlimit in rlimits if rlimit not in own]


LAYERS = (
    Layer(
        "limits",
        11,
        keeps="no core dumps, and the configured limits",
        without="The limits of the config are not kept.",
        needs=(),
        probe=None,
        stage=RIGHTS,
        enter=lambda _: disable_core_dumps(),
        bubblewrap="entered by the warden",
        enters_in_bubblewrap=True,
        remedy=Remedy(),
        self_test=Attack(
            "processes",
            "leave a core dump",
            "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (1, 1))\nreturn True",
        ),
        confines=False,
    ),
)
