"""Computes SHA-256 without hashlib, whose import takes a millisecond."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_sha256: Any = None


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of some bytes as 64 hexadecimal digits."""
    global _sha256  # noqa: PLW0603  the import is looked up once
    if _sha256 is None:
        _sha256 = _find_sha256()
    digest: str = _sha256(data).hexdigest()
    return digest


def _find_sha256() -> Any:
    # The C module is _sha256 up to Python 3.11 and _sha2 from 3.12 on.
    for name in ("_sha256", "_sha2", "hashlib"):
        try:
            return __import__(name).sha256
        except (ImportError, AttributeError):
            continue
    raise ImportError("this Python has no SHA-256")
