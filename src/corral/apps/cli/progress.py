"""A line on the terminal that is drawn over and over, and gone afterwards. Where stderr is no terminal, nothing is drawn."""

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
    """One line, below whatever else is said."""

    def __init__(self) -> None:
        self.terminal = terminal_of(sys.stderr, os.environ)
        self.is_drawn = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._drawn_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the line was last drawn long enough ago."""
        return self.is_drawn and monotonic() - self._drawn_at >= REDRAW_SECONDS

    def draw(self, text: str) -> None:
        """Show this instead of what stands there."""
        if self.is_drawn:
            self._drawn_at = monotonic()
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()

    def count(self, what: str, number: int) -> None:
        """Show how far something is, though not each time."""
        if self.is_due:
            self.draw(f"corral: {number} {what}"[: self.terminal.columns - 1])

    def wipe(self) -> None:
        """Leave an empty line."""
        if self.is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()
