"""Reduces a script that shows a hole to the few tokens that show it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(r"[\w./-]+|[ \t]+|\n|[^\w\s]|\s")


def reduced(pieces: list[str], joint: str, shows: Callable[[str], bool], *, seconds: float = 4.0) -> str:
    """Drop pieces, then tokens, while the script still shows the hole. The time is bounded."""
    end = time.monotonic() + seconds

    def holds(parts: list[str], between: str) -> bool:
        return time.monotonic() < end and shows(between.join(parts))

    pieces = _without(pieces, lambda parts: holds(parts, joint))
    text = joint.join(pieces)
    while time.monotonic() < end:
        shorter = "".join(_without(_TOKEN.findall(text), lambda parts: holds(parts, "")))
        if shorter == text:
            break
        text = shorter
    return text


def _without(parts: list[str], holds: Callable[[list[str]], bool]) -> list[str]:
    """Return as few of the parts as possible, in order, for which the test holds."""
    size = max(1, len(parts) // 2)
    while True:
        at = 0
        while at < len(parts):
            fewer = parts[:at] + parts[at + size :]
            if fewer and holds(fewer):
                parts = fewer
            else:
                at += size
        if size == 1:
            return parts
        size //= 2
