"""A moment as text, in UTC: 2026-11-15T09:30:00.123Z. Such texts are in order where their moments are."""

from __future__ import annotations

import time

_last_second: tuple[int, str] = (0, "1970-01-01T00:00:00")


def format_utc(now: float) -> str:
    """Return a time of the epoch as text."""
    global _last_second  # noqa: PLW0603  one assignment, so threads see the old pair or the new
    whole = int(now)
    second, text = _last_second
    if second != whole:
        # Once a second: the C library's way to a date is long.
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        _last_second = (whole, text)
    return f"{text}.{int((now - whole) * 1000):03d}Z"
