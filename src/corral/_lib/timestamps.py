"""Formats times as UTC text that sorts by time: 2026-11-15T09:30:00.123Z."""

from __future__ import annotations

import time

_last_second: tuple[int, str] = (0, "1970-01-01T00:00:00")


def format_utc(now: float) -> str:
    """Return seconds since the epoch as text."""
    global _last_second  # noqa: PLW0603  one assignment, so a thread sees the old pair or the new one
    whole = int(now)
    second, text = _last_second
    if second != whole:
        # strftime is slow, so its result is reused for a second.
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        _last_second = (whole, text)
    return f"{text}.{int((now - whole) * 1000):03d}Z"
