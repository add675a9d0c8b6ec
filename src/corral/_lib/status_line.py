"""Draws one status line on the terminal and redraws it in place. Draws nothing if stderr is not a terminal."""

from __future__ import annotations

import os
import sys
from time import monotonic

from corral._lib.terminal import terminal_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

REDRAW_SECONDS = 0.1


class StatusLine:
    """A line below all other output. It is cleared when the block ends."""

    def __init__(self) -> None:
        self.terminal = terminal_of(sys.stderr, os.environ)
        self.is_drawn = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._drawn_at = 0.0

    @property
    def is_due(self) -> bool:
        """True if the line may be redrawn now."""
        return self.is_drawn and monotonic() - self._drawn_at >= REDRAW_SECONDS

    def draw(self, text: str) -> None:
        """Replace the line."""
        if self.is_drawn:
            self._drawn_at = monotonic()
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()

    def count(self, what: str, number: int) -> None:
        """Show a count. Calls that come too soon after the last are ignored."""
        if self.is_due:
            self.draw(f"corral: {number} {what}"[: self.terminal.columns - 1])

    def clear(self) -> None:
        """Leave an empty line."""
        if self.is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
