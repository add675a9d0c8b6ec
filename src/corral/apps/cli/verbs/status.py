"""`corral` alone: shows what is active here, from the quick checks of `corral doctor`, and the commands refused last."""

from __future__ import annotations

import os
import sys

from corral import __version__
from corral._lib.terminal import Terminal, clip, pad, printable, terminal_of, wrap
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.next_steps import install_steps, with_own_command
from corral.apps.cli.verb import Options, Verb
from corral.apps.doctor.quick_checks import quick_checks
from corral.audit import audit_log
from corral.audit.query import LogFilter, command_of, entry_of
from corral.model.errors import PolicyError
from corral.model.render_result import FAILURE_STATUS, json_text
from corral.policy.config import checked_root
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from corral.apps.doctor.check import Check

MAX_REFUSALS = 3
TAIL_BYTES = 512 * 1024  # of the log; older refusals are not news
LABEL_COLUMNS = len("approved  ")
SIGNS = {"ok": ("allow", "allow"), "warn": ("warn", "ask"), "fail": ("deny", "deny")}  # sign and colour of a status
VERB = Verb(
    "inspect",
    "Show what is active here. `corral` alone does the same.",
    examples="""\
corral                       the short form
corral status --root ../other
corral --json | jq -r '.checks[] | select(.status != "ok") | .command'
""",
    notes="""\
Shows the profile, the policy files and whether they are trusted, the kernel's layers, the agents that ask corral, and
the commands that were refused last. It probes the layers but starts no sandbox, and finds hooks but does not call them.
`corral doctor` does both.
""",
    exit_codes="0; 125 the policy cannot be used, so that every call is refused, or corral itself failed",
    arguments=(ROOT,),
)


def main(options: Options) -> int:
    """Print the status. Returns 125 if the policy cannot be used, because corral then refuses every call."""
    root = checked_root(options.root)
    try:
        policy, broken = load(root, os.environ), ""
    except PolicyError as error:
        policy, broken = None, str(error)
    checks = [_facts(check) for check in quick_checks(policy, broken, root, os.environ)]
    refused = recent_refusals(audit_log.directory(os.environ), root)
    if options.json:
        facts = {"version": __version__, "root": root, "profile": policy.config.rules.name if policy else None}
        print(json_text({**facts, "checks": checks, "refused": refused}))
    else:
        print("\n".join(_text(root, checks, refused, terminal_of(sys.stdout, os.environ))))
    return FAILURE_STATUS if broken else 0


def _facts(check: Check) -> dict[str, str]:
    """Return a check as JSON-ready data, with a command that works from the current directory."""
    command = next((fix.command for fix in check.fixes), "")
    start, _, host = command.partition("corral install ")
    command = " && ".join(install_steps(host, os.environ)) if host and not start else command
    text = f"{check.found}. {check.means}" if check.means else check.found
    command = with_own_command(command, os.environ)
    return {"about": check.name, "status": check.status, "text": text, "command": command}


def recent_refusals(place: str, root: str) -> list[dict[str, str]]:
    """Return the calls of a project that were refused last, the newest last. Reads only the end of the log."""
    try:
        with open(f"{place}/log.jsonl", "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return []
    found: list[dict[str, str]] = []
    for line in reversed(lines):
        entry = entry_of(line)
        if entry is None or entry.get("root") != root or entry.get("event") == "check" or not _is_refused(entry):
            continue
        if not LogFilter().fits(entry):
            continue
        rules = [str(finding.get("rule", "")) for finding in entry.get("findings", ())]
        about = {name: str(entry.get(name, "")) for name in ("at", "id", "host")}
        found.append({**about, "command": command_of(entry), "rule": rules[0] if rules else "", "why": _why(entry)})
        if len(found) == MAX_REFUSALS:
            break
    return found[::-1]


def _is_refused(entry: dict[str, Any]) -> bool:
    result = entry.get("result")
    return entry.get("decision") == "deny" or (isinstance(result, dict) and result.get("denied") is True)


def _why(entry: dict[str, Any]) -> str:
    findings: list[dict[str, Any]] = entry.get("findings") or [{}]
    return str(entry.get("error") or findings[0].get("reason") or entry.get("reason", ""))


def _text(root: str, checks: list[dict[str, str]], refused: list[dict[str, str]], terminal: Terminal) -> Iterator[str]:
    dot, cut = terminal.sign("dot"), terminal.sign("cut")
    room = max(terminal.columns - len(f"corral {__version__} - "), 8)
    shown = printable(root)
    shown = shown if len(shown) <= room else cut + shown[len(cut) - room :]  # the end of a path says more
    yield terminal.paint("head", f"corral {__version__}") + f" {dot} {shown}"
    yield ""
    last = ""
    for check in checks:
        yield from _check_lines(check, "" if check["about"] == last else check["about"], terminal)
        last = check["about"]
    if refused:
        yield ""
        yield terminal.paint("head", "Refused last")
        for call in refused:
            yield from _refusal_lines(call, terminal)
    yield ""
    commands = ("corral log" if refused else "corral demo", "corral doctor", "corral --help")
    more = f"More: {f' {dot} '.join(with_own_command(each, os.environ) for each in commands)}"
    yield from (terminal.paint("dim", line) for line in wrap(more, terminal.columns, "  "))


def _check_lines(check: dict[str, str], label: str, terminal: Terminal) -> Iterator[str]:
    indent = " " * (4 + LABEL_COLUMNS)
    sign, style = SIGNS[check["status"]]
    first, *rest = wrap(printable(check["text"]), terminal.columns, indent)
    mark = terminal.paint(style, terminal.sign(sign))
    yield f"  {mark} {terminal.paint('dim', pad(label, LABEL_COLUMNS))}{first[len(indent) :]}"
    yield from rest
    if check["command"]:
        yield indent + terminal.paint("mark", f"$ {check['command']}")


def _local_time(at: str) -> str:
    from calendar import timegm  # noqa: PLC0415  only a refusal needs them
    from time import localtime, strftime, strptime  # noqa: PLC0415

    try:
        then = timegm(strptime(at[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return "?"
    is_today = strftime("%x", localtime(then)) == strftime("%x")
    return strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M", localtime(then))


def _refusal_lines(call: dict[str, str], terminal: Terminal) -> Iterator[str]:
    cut = terminal.sign("cut")
    by = f" {terminal.sign('dot')} {printable(call['host'])}" if call["host"] else ""
    yield f"  {terminal.paint('deny', terminal.sign('deny'))} {terminal.paint('dim', _local_time(call['at']) + by)}"
    yield f"    {clip(printable(call['command'] or '(no call)'), terminal.columns - 4, cut)}"
    why = f"{call['rule']}: {call['why']}" if call["rule"] else call["why"]
    yield f"    {terminal.paint('dim', clip(printable(why), terminal.columns - 4, cut))}"
