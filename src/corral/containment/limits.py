"""Which bounds of `config.limits` hold, and by which rlimit. A bound that cannot be kept is named, never dropped."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.config import Limits

# name in `config.limits`: the kernel's name, and how far the hard limit lies above the soft one.
# CPU: a second lies between SIGXCPU, which a program may answer, and SIGKILL.
# Memory is RLIMIT_DATA, which holds for each process by itself: under RLIMIT_AS java does not start.
_RLIMITS = {
    "cpu_seconds": ("RLIMIT_CPU", 1),
    "memory_bytes": ("RLIMIT_DATA", 0),
    "open_files": ("RLIMIT_NOFILE", 0),
    "file_size_bytes": ("RLIMIT_FSIZE", 0),
}


def unenforceable(limits: Limits, backend: str) -> tuple[str, ...]:
    """Return the names of the bounds that are set and cannot be kept."""
    # RLIMIT_NPROC counts all processes of the user, and does not bind root: without a user namespace it is no bound.
    kept = _RLIMITS if backend == "none" else {*_RLIMITS, "processes"}
    return tuple(name for name in limits._fields if getattr(limits, name) is not None and name not in kept)


def rlimits(limits: Limits) -> list[tuple[str, int, int]]:
    """Return the resource limits to set in the command: the kernel's name, soft and hard."""
    return [
        (rlimit, value, value + above)
        for name, (rlimit, above) in _RLIMITS.items()
        if (value := getattr(limits, name)) is not None
    ]
