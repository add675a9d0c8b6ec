"""The user's policy: settings, files, trust, approvals, grants."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.policy.loader import load as load


def __getattr__(name: str) -> object:
    # Loaded on first use, so that importing one module of the room does not import the loader.
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from corral.policy.loader import load  # noqa: PLC0415

    return load
