"""Parses which entries of the log a user asks for, for `corral log` and `corral view`."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from datetime import UTC, datetime

from corral._lib.terminal import printable
from corral._lib.timestamps import format_utc
from corral.apps.cli.verb import Options, argument
from corral.audit.query import LogFilter
from corral.integrations.hooks.registry import HOSTS

EVENTS = ("hook", "run", "check", "try", "batch", "mcp", "trust", "grant", "transaction", "gate")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def filter_of(options: Options) -> LogFilter:
    """Return which entries the command line asks for."""
    return LogFilter(
        since=options.since or "",
        until=options.until or "",
        decision=options.decision,
        rule=options.rule,
        project=os.path.realpath(options.project) if options.project else "",
        text=options.text,
        host=options.host,
        event=options.event,
        trials=options.trials,
    )


def entry_count(text: str) -> int:
    """Parse a number of entries."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{printable(text)} is not a number of entries")
    return int(text)


def _time(text: str) -> str:
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{printable(text)} is not a time, such as 2h, today or 2026-11-15T09:30") from None


def parse_time(text: str) -> str:
    """Parse a time in this machine's zone: 10m, 2h or 3d (ago), today, yesterday, or a date with or without a time."""
    now = datetime.now().astimezone()
    if text[-1:] in _UNIT_SECONDS and text[:-1].isdecimal():
        return format_utc(now.timestamp() - int(text[:-1]) * _UNIT_SECONDS[text[-1]])
    if text in ("today", "yesterday"):
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return format_utc(midnight.timestamp() - (86400 if text == "yesterday" else 0))
    return format_utc(datetime.fromisoformat(text).astimezone(UTC).timestamp())


FILTERS = (
    argument("--since TIME", "Show entries from this time on.", type=_time),
    argument("--until TIME", "Show entries up to this time.", type=_time),
    argument("--decision VERDICT", "Show entries with this verdict.", choices=("allow", "ask", "deny"), default=""),
    argument("--rule ID", "Show entries with a finding of this rule.", default="", completes="rules"),
    argument("--project DIR", "Show entries of this project.", default=""),
    argument("--text TEXT", "Show commands that contain TEXT.", default=""),
    argument("--host NAME", "Show entries of this agent.", default="", completes=tuple(HOSTS)),
    argument("--event NAME", f"Show entries of this kind: {', '.join(EVENTS)}.", default="", completes=EVENTS),
    argument("--trials", "Show the calls too by which corral tries its own hooks."),
)
