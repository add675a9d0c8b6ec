"""Which bounds of `config.limits` there are, and by what each is kept. What is set is kept: by a group, an rlimit or the meter."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from corral.policy.config import Limits

    Rlimit = tuple[str, int]

# The bounds that the keeper's side keeps for a command and all below it.
_COUNTED = ("cpu_seconds", "memory_bytes", "processes", "disk_bytes", "free_disk_bytes")
_RLIMITS = {"open_files": "RLIMIT_NOFILE", "file_size_bytes": "RLIMIT_FSIZE"}
# A warden that has no more than this itself could not run commands.
_ROOM_OF_A_WARDEN = {"RLIMIT_NOFILE": 256, "RLIMIT_DATA": 256 * 1024 * 1024}


def plan(limits: Limits) -> dict[str, object]:
    """Return what the keeper has to know of the bounds."""
    return {
        "limits": {name: value for name in _COUNTED if (value := getattr(limits, name)) is not None},
        "rlimits": [
            (rlimit, value) for name, rlimit in _RLIMITS.items() if (value := getattr(limits, name)) is not None
        ],
    }


def rlimits(plan: dict[str, Any]) -> list[Rlimit]:
    """Return the resource limits that a plan comes to, soft and hard, once its groups are known."""
    limits = plan["limits"]
    found: list[Rlimit] = list(plan["rlimits"])
    memory = limits.get("memory_bytes")
    if isinstance(memory, int) and "memory" not in plan["groups"]:
        # Data, since under RLIMIT_AS java does not start; and not for a share of the machine, since what sanitizers
        # reserve is more than any. It holds for each process and at once; the meter holds all of them together.
        found.append(("RLIMIT_DATA", memory))
    if plan["counts_by_user"]:
        found.append(("RLIMIT_NPROC", limits["processes"] + plan["not_counted"]))
    return found


def split(rlimits: Collection[Rlimit]) -> tuple[list[Rlimit], list[Rlimit]]:
    """Return those that the warden can set for itself, so that a start stays quick, and those that each command must."""
    own = [(name, value) for name, value in rlimits if value >= _ROOM_OF_A_WARDEN.get(name, 0)]
    return own, [rlimit for rlimit in rlimits if rlimit not in own]
