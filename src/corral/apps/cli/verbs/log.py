"""`corral log`: what was tried, what was said and what became of it; live, one again in full, and whether all of it is there."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime

from corral._lib.terminal import printable, terminal_of
from corral._lib.timestamps import format_utc
from corral.audit import query
from corral.audit.audit_log import directory
from corral.audit.query import LogFilter
from corral.audit.render_log import Table, call_of, entry_lines
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.errors import CorralError
from corral.model.render_result import FAILURE_STATUS, json_text, verdict_text
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from corral._lib.terminal import Terminal

DAMAGED_STATUS = 1
MIN_ID = 4  # characters that name an entry


def main(options: argparse.Namespace) -> int:
    """Show the log, follow it, explain one entry of it or verify it."""
    place = directory(os.environ)
    if options.action == "verify":
        return _verify(place, options)
    if options.action == "show":
        return _show(place, options)
    return _list(place, filter_of(options), options)


def filter_of(options: argparse.Namespace) -> LogFilter:
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


def moment(text: str) -> str:
    """Read a time: 10m, 2h, 3d (ago), today, yesterday, or a date with or without a time, of this machine's zone."""
    now = datetime.now().astimezone()
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    if text[-1:] in units and text[:-1].isdecimal():
        return format_utc(now.timestamp() - int(text[:-1]) * units[text[-1]])
    if text in ("today", "yesterday"):
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return format_utc(midnight.timestamp() - (86400 if text == "yesterday" else 0))
    return format_utc(datetime.fromisoformat(text).astimezone(UTC).timestamp())


def local(entry: dict[str, Any]) -> str:
    """Return the time of an entry in this machine's zone."""
    try:
        return datetime.fromisoformat(str(entry.get("at"))).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return "????-??-?? ??:??:??"


def _list(place: str, wish: LogFilter, options: argparse.Namespace) -> int:
    found = query.entries(place, wish, last=options.number)
    terminal = terminal_of(sys.stdout, os.environ)
    table = Table(found, terminal, local)
    _print(found, table, options)
    if not found and not options.follow:
        print(f"corral: nothing in {printable(place)} fits", file=sys.stderr)
    if options.follow:
        after = found[-1]["seq"] if found else 0
        for entry in query.follow(place, wish, after=after):
            if entry is not None:
                _print([entry], table, options)
            sys.stdout.flush()
    return 0


def _print(entries: list[dict[str, Any]], table: Table, options: argparse.Namespace) -> None:
    for entry in entries:
        print(json_text(entry) if options.json else "\n".join(table.row(entry)))


def _show(place: str, options: argparse.Namespace) -> int:
    start = (options.id or "").lower()
    if len(start) < MIN_ID:
        raise CorralError(f"which entry? corral log show ID, with at least {MIN_ID} characters of an id in corral log")
    found = query.known_by(place, start)
    if len({entry.get("call") or entry.get("id") for entry in found}) != 1:
        what = "no entry" if not found else "more than one entry"
        print(f"corral: {what} has an id that begins with {printable(start)!r}; see corral log", file=sys.stderr)
        return FAILURE_STATUS
    if options.json:
        print("\n".join(map(json_text, found)))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    blocks = ["\n".join(entry_lines(entry, terminal, local)) for entry in found]
    print("\n\n".join([*blocks, *_today(found[0], terminal)]))
    return 0


def _today(entry: dict[str, Any], terminal: Terminal) -> list[str]:
    """Return what the guard says of the same call now."""
    call = call_of(entry)
    head = terminal.paint("head", "What the guard says of it today")
    if call is None:
        return [f"{head}\n    nothing: the call was cut, had secrets, or is none"]
    try:
        config = load(str(entry.get("root")), os.environ).config
    except CorralError as error:
        return [f"{head}\n    nothing: {printable(str(error))}"]
    return [f"{head}\n{verdict_text(call, vet(call, config, Machine.of(config)), terminal)}"]


def _verify(place: str, options: argparse.Namespace) -> int:
    report = query.verify(place)
    if options.json:
        print(json_text({name: getattr(report, name) for name in report._fields} | {"whole": not report.problems}))
        return DAMAGED_STATUS if report.problems else 0
    terminal = terminal_of(sys.stdout, os.environ)
    for problem in report.problems[: query.MAX_PROBLEMS]:
        print(f"{terminal.paint('deny', terminal.sign('deny'))} {printable(place)}/{printable(problem)}")
    more = len(report.problems) - query.MAX_PROBLEMS
    if more > 0:
        print(f"and {more} more")
    said = f"{report.lines} lines, {report.first} to {report.last}" if report.lines else "no lines"
    if report.dropped:
        said += f"; {report.dropped} older ones were rotated away"
    word = terminal.paint("deny", "damaged") if report.problems else terminal.paint("allow", "whole")
    print(f"{word}: {said}" + (f"\nhead {report.hash}" if report.lines else ""))
    return DAMAGED_STATUS if report.problems else 0
