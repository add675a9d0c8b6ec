"""All axes over one call; a crashed one refuses."""

from __future__ import annotations

from corral.model import Call, Step, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.config import SandboxConfig


def vet(call: Call, config: SandboxConfig) -> Verdict:
    """Judge a call; run nothing."""
    return Verdict()


def trace(call: Call, config: SandboxConfig) -> tuple[Step, ...]:
    """Return every command that the call would run, in the order in which the guard looked at them."""
    return ()
