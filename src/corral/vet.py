"""All axes over one call; a crashed one refuses."""

from __future__ import annotations

from corral.model import Call, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.config import SandboxConfig


def vet(call: Call, config: SandboxConfig) -> Verdict:
    """Judge a call; run nothing."""
    return Verdict()
