"""The audit log: writing, querying, redacting."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.audit.audit_log import Log as Log


def __getattr__(name: str) -> object:
    # Loaded on first use, so that importing one module of the room does not import the log.
    if name != "Log":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from corral.audit.audit_log import Log  # noqa: PLC0415

    return Log
