"""Turns signals that end a process into exceptions."""

from __future__ import annotations

from signal import SIGHUP, SIGTERM, default_int_handler, signal


def raise_on_termination() -> None:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP too, so that running commands and open files are closed on the way out."""
    for number in (SIGTERM, SIGHUP):
        signal(number, default_int_handler)
