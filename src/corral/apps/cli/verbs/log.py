"""`corral log`: lists and follows the log, shows one entry in full, and verifies that no line was removed or changed."""

from __future__ import annotations

import os
import sys
from datetime import datetime

from corral._lib.terminal import Terminal, printable, terminal_of
from corral.apps.cli.log_filter import FILTERS, entry_count, filter_of
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.apps.output_files import OutputDirectory
from corral.audit import query
from corral.audit.audit_log import directory
from corral.audit.render_log import Table, call_of, entry_lines
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.integrations.telemetry.log_metrics import text_of
from corral.model.errors import CorralError
from corral.model.render_result import FAILURE_STATUS, json_text, verdict_text
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


DAMAGED_STATUS = 1
MIN_ID = 4  # characters that name an entry
VERB = Verb(
    "inspect",
    "Show the log: each call, its verdict and its result.",
    examples="""\
corral log                             list the latest calls, the newest last
corral log --decision deny --since 1d  list what was refused since yesterday
corral log -f                          follow the log
corral log show 3f2a91c0               show one entry in full and judge it again
corral log verify                      check that no line was removed or changed
corral log --metrics corral.prom       count the entries for Prometheus
""",
    notes="""\
A time is 10m, 2h, 3d, today, yesterday or 2026-11-15T09:30. A rule is an id or the start of one: name, path-outside.
""",
    exit_codes="0; 1 verify found damage, 125 corral itself failed",
    usage=("log [options]", "log show ID", "log verify"),
    arguments=(
        argument("action", nargs="?", choices=("show", "verify")),
        argument("id", nargs="?"),
        argument("-f --follow", "Keep printing new entries."),
        argument(
            "-n N", "Show the last N entries (default: 50; 0 for all).", dest="number", type=entry_count, default=50
        ),
        argument(
            "--metrics FILE",
            "Count the entries, and write this file for Prometheus' node exporter (- for stdout). It ends in .prom.",
        ),
        *FILTERS,
    ),
)


def check_arguments(options: Options, _: list[str]) -> None:
    """Refuse metrics of anything but the list, and in a file that the exporter would not read."""
    if options.metrics and (options.action or options.follow or options.json):
        raise UsageError("--metrics counts entries; it takes only filters")
    if options.metrics and options.metrics != "-" and not options.metrics.endswith(".prom"):
        raise UsageError(f"--metrics writes a file that ends in .prom, and {printable(options.metrics)} does not")


def main(options: Options) -> int:
    """List the log, count it, show one entry or verify it."""
    if options.metrics:
        return _count(directory(os.environ), options)
    return {None: _list, "show": _show, "verify": _verify}[options.action](directory(os.environ), options)


def _local_time(entry: dict[str, Any]) -> str:
    try:
        return datetime.fromisoformat(str(entry.get("at"))).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return "????-??-?? ??:??:??"


def _list(place: str, options: Options) -> int:
    wish = filter_of(options)
    found = query.entries(place, wish, last=options.number)
    table = Table(found, terminal_of(sys.stdout, os.environ), _local_time)
    _print(found, table, options)
    if not found and not options.follow:
        print(f"corral: no entry in {printable(place)} matches", file=sys.stderr)
    if options.follow:
        for entry in query.follow(place, wish, after=found[-1]["seq"] if found else 0):
            if entry is not None:
                _print([entry], table, options)
            sys.stdout.flush()
    return 0


def _count(place: str, options: Options) -> int:
    text = text_of(query.walk(place, filter_of(options)))
    if options.metrics == "-":
        sys.stdout.write(text)
        return 0
    above, _, name = options.metrics.rpartition("/")
    try:
        # Replaced as a whole, so that the exporter never reads half a file, and several writers do not mix.
        with OutputDirectory(above or ("/" if options.metrics.startswith("/") else ".")) as folder:
            folder.write(name, (text,), mode=0o644)
    except OSError as error:
        raise CorralError(f"cannot write {options.metrics}: {error.strerror}") from None
    return 0


def _print(entries: list[dict[str, Any]], table: Table, options: Options) -> None:
    for entry in entries:
        print(json_text(entry) if options.json else "\n".join(table.row(entry)))


def _show(place: str, options: Options) -> int:
    start = (options.id or "").lower()
    if len(start) < MIN_ID:
        raise CorralError(f"name an entry: corral log show ID, with at least {MIN_ID} characters of its id")
    found = query.known_by(place, start)
    if len({entry.get("call") or entry.get("id") for entry in found}) != 1:
        what = "no entry" if not found else "more than one entry"
        print(f"corral: {what} has an id that begins with {printable(start)!r}; see corral log", file=sys.stderr)
        return FAILURE_STATUS
    if options.json:
        print("\n".join(map(json_text, found)))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    blocks = ["\n".join(entry_lines(entry, terminal, _local_time)) for entry in found]
    print("\n\n".join([*blocks, _judged_again(found[0], terminal)]))
    return 0


def _judged_again(entry: dict[str, Any], terminal: Terminal) -> str:
    """Return the guard's verdict on the same call under the policy of today."""
    call = call_of(entry)
    head = terminal.paint("head", "Verdict today")
    if call is None:
        return f"{head}\n    none: the log does not contain the whole call"
    try:
        config = load(str(entry.get("root")), os.environ).config
    except CorralError as error:
        return f"{head}\n    none: {printable(str(error))}"
    return f"{head}\n{verdict_text(call, vet(call, config, Machine.of(config)), terminal)}"


def _verify(place: str, options: Options) -> int:
    report = query.verify(place)
    status = DAMAGED_STATUS if report.problems else 0
    if options.json:
        print(json_text({name: getattr(report, name) for name in report._fields} | {"whole": not report.problems}))
        return status
    terminal = terminal_of(sys.stdout, os.environ)
    for problem in report.problems[: query.MAX_PROBLEMS]:
        print(f"{terminal.paint('deny', terminal.sign('deny'))} {printable(place)}/{printable(problem)}")
    more = len(report.problems) - query.MAX_PROBLEMS
    if more > 0:
        print(f"and {more} more")
    text = f"{report.lines} lines, {report.first} to {report.last}" if report.lines else "no lines"
    if report.dropped:
        text += f"; {report.dropped} older lines were rotated away"
    word = terminal.paint("deny", "damaged") if report.problems else terminal.paint("allow", "whole")
    print(f"{word}: {text}" + (f"\nhead {report.hash}" if report.lines else ""))
    return status
