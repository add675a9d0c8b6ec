"""Renders entries of the audit log for people: one row each, or one entry in full. Pure. Escapes control characters."""

from __future__ import annotations

from corral._lib.terminal import clip, columns, pad, printable
from corral.audit.query import command_of
from corral.model.call import Call, Decision
from corral.model.call_excerpt import one_line
from corral.model.grant import GIVER_TEXTS
from corral.model.render_result import decision_label, labelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from corral._lib.terminal import Terminal

    Entry = dict[str, Any]

ID_CHARACTERS = 8
RULE_COLUMNS = 22
PROJECT_COLUMNS = 14
MIN_COMMAND_COLUMNS = 24  # with less room, the command has its own line
_GAP = "  "


class Table:
    """Rows with fitting columns. Day and project appear only if there are several."""

    def __init__(self, entries: Sequence[Entry], terminal: Terminal, local: Any) -> None:
        self._terminal = terminal
        self._local = local
        days = {self._local(e)[:10] for e in entries}
        self._time_from = 11 if len(days) <= 1 else 5
        names = {_project(e) for e in entries}
        self._project = min(max(map(columns, names)), PROJECT_COLUMNS) if len(names) > 1 else 0
        self._rule = min(max([columns(_why(e)) for e in entries] or [0]), RULE_COLUMNS)

    def row(self, entry: Entry) -> list[str]:
        """Return the lines of one entry: time, id, verdict, rule or ending, project, command."""
        terminal, cut = self._terminal, self._terminal.sign("cut")
        decision = _decision(entry)
        cells = [
            self._local(entry)[self._time_from : 19],
            terminal.paint("dim", printable(str(entry.get("id", "")))[:ID_CHARACTERS]),
            terminal.paint(str(decision), decision_label(decision, terminal.replace(color=False))),
            pad(clip(_why(entry), self._rule, cut), self._rule),
        ]
        used = 19 - self._time_from + ID_CHARACTERS + len("? allow") + self._rule + 4 * len(_GAP)
        if self._project:
            cells.append(pad(clip(_project(entry), self._project, cut), self._project))
            used += self._project + len(_GAP)
        room = terminal.columns - used
        if room >= MIN_COMMAND_COLUMNS:
            return [_GAP.join([*cells, _shown(entry, room, cut)]).rstrip()]
        # Keep the id even on a narrow terminal, because `corral log show` needs it.
        least = RULE_COLUMNS // 2
        front, used = _GAP.join(cells[:3]), 19 - self._time_from + ID_CHARACTERS + len("? allow") + 3 * len(_GAP)
        if terminal.columns - used >= least:
            lines = [f"{front}{_GAP}{clip(_why(entry), terminal.columns - used, cut)}"]
        else:
            why = clip(_why(entry), terminal.columns - 4 - ID_CHARACTERS - len(_GAP), cut)
            lines = [_GAP.join([cells[0], cells[2]]), f"    {cells[1]}{_GAP}{why}"]
        return [line.rstrip() for line in (*lines, f"    {_shown(entry, terminal.columns - 4, cut)}")]


def _project(entry: Entry) -> str:
    return printable(str(entry.get("root", "")).rpartition("/")[2]) or "-"


def _shown(entry: Entry, width: int, cut: str) -> str:
    """Return the call on one line, or the files, or the error."""
    if "shell" in entry or "argv" in entry:
        argv = str(entry["shell"]) if "shell" in entry else tuple(map(str, entry["argv"]))
        return one_line(Call(argv, "shell" in entry), width, cut)
    said = command_of(entry) or str(entry.get("error", ""))
    if "transaction" in entry:
        said = ": ".join(part for part in (f"{_became(entry)} {entry['transaction']}", said) if part)
    return clip(printable(said), width, cut)


def _decision(entry: Entry) -> Decision:
    name = str(entry.get("decision", "deny")).upper()
    return Decision[name] if name in Decision.__members__ else Decision.DENY


def _why(entry: Entry) -> str:
    """Return the strictest rule, the outcome, or the host, in a word or two."""
    result = entry.get("result") or {}
    findings = sorted(entry.get("findings", ()), key=lambda f: str(f.get("decision")) != entry.get("decision"))
    if findings and (result.get("denied", True) or not result):
        return printable(str(findings[0].get("rule", "")))
    if not result:
        return "not judged" if "error" in entry else printable(str(entry.get("host") or entry.get("event", "")))
    if result.get("timed_out"):
        return "timed out"
    if result.get("denied"):
        return "refused"
    return f"signal {result['signal']}" if result.get("signal") else f"exit {result.get('exit_code')}"


def _became(entry: Entry) -> str:
    """Return the outcome of a transaction."""
    return f"{entry.get('reason', '')}{' in part' if entry.get('in_part') else ''}"


def call_of(entry: Entry) -> Call | None:
    """Return the call of an entry to judge it again. Return None if it was cut, had secrets, or is no call."""
    if "cut" in entry or ("shell" not in entry and "argv" not in entry) or "[redacted" in command_of(entry):
        return None
    argv = str(entry["shell"]) if "shell" in entry else tuple(map(str, entry["argv"]))
    root, cwd = entry.get("root"), entry.get("cwd")
    return Call(argv, "shell" in entry, None if cwd == root else str(cwd))


def entry_lines(entry: Entry, terminal: Terminal, local: Any) -> list[str]:
    """Return one entry in full."""
    decision = _decision(entry)
    head = f"{decision_label(decision, terminal)}  {clip(printable(command_of(entry)), terminal.columns - 9, terminal.sign('cut'))}"
    lines = [head.rstrip(), terminal.paint("dim", f"{local(entry)}  {printable(str(entry.get('id', '')))}"), ""]
    for label, text in _facts(entry):
        lines += labelled(label, text, terminal)
    for finding in entry.get("findings", ()):
        rule = clip(printable(str(finding.get("rule"))), terminal.columns - 9, terminal.sign("cut"))
        lines += ["", f"{decision_label(_decision(finding), terminal)}  {terminal.paint('head', rule)}"]
        lines += labelled("why", str(finding.get("reason", "")), terminal)
    return lines


def _facts(entry: Entry) -> list[tuple[str, str]]:
    result = entry.get("result") or {}
    by = " ".join(str(entry[name]) for name in ("event", "host") if name in entry)
    facts = [("by", f"{by}, process {entry.get('pid')}"), ("project", str(entry.get("root", "")))]
    facts += [("profile", str(entry.get("profile", ""))), ("in", str(entry.get("cwd", "")))]
    facts.append(("within", f"transaction {entry['transaction']}" if "transaction" in entry else ""))
    facts += [("reason", _became(entry)), ("error", str(entry.get("error", "")))]
    if "cut" in entry:
        facts.append(
            ("cut", f"the call has {entry['cut'].get('length')} characters, sha256 {entry['cut'].get('sha256')}")
        )
    if result.get("denied"):
        facts.append(("ended", "refused: nothing ran"))
    elif result:
        facts += [("ended", _ending(result)), ("held", _held(result)), ("used", _used(result))]
    facts += [("opened", _opened(grant)) for grant in result.get("grants", ())]
    for violation in result.get("violations", ()):
        facts.append(
            ("stopped", ": ".join(str(violation[k]) for k in ("kind", "target", "detail") if violation.get(k)))
        )
    facts += [("reached", _reached(connection)) for connection in result.get("connections", ())]
    facts += [(str(change.get("kind", "")), _moved(change)) for change in entry.get("changes", ())]
    more = entry.get("changed", 0) - len(entry.get("changes", ()))
    facts.append(("and", f"{more} more changes" if more > 0 else ""))
    for name in ("conflicts", "refused"):
        facts += [(name, f"{each.get('path')}: {each.get('why')}") for each in entry.get(name, ())]
    facts.append(("line", f"{entry.get('seq')}, hash {entry.get('hash')}"))
    return [(label, text) for label, text in facts if text]


def _opened(grant: Entry) -> str:
    """Return an opening that a call had, where corral found it, and who allowed it."""
    source = f" ({grant['source']})" if grant.get("source") else ""
    by = f", {giver}" if (giver := GIVER_TEXTS.get(str(grant.get("by", "")))) else ""
    return f"{grant.get('kind')} {grant.get('target')}{source}{by}"


def _moved(change: Entry) -> str:
    return " -> ".join(str(change[name]) for name in ("old_path", "path") if change.get(name))


def _reached(connection: Entry) -> str:
    count = connection.get("count", 1)
    words = [str(connection.get("target") or "?"), str(connection.get("outcome", ""))]
    words += [str(connection[name]) for name in ("address", "detail") if connection.get(name)]
    if connection.get("outcome") == "refused" and connection.get("grant"):
        words.append(f"the grant that would allow it is {connection['grant']}")
    return f"{', '.join(words)}{f', {count} times' if count != 1 else ''}"


def _ending(result: Entry) -> str:
    parts = [f"exit code {result.get('exit_code')}"]
    parts += ["timed out"] if result.get("timed_out") else []
    parts += [f"signal {result['signal']}"] if result.get("signal") else []
    parts += [f"{result['killed']} left over and ended"] if result.get("killed") else []
    return f"{', '.join(parts)}, after {float(result.get('duration_ms', 0)):.0f} ms"


def _held(result: Entry) -> str:
    missing = ", ".join(map(str, result.get("missing_layers", ())))
    network = {"named": ", network by name", "on": ", network on"}.get(str(result.get("network")), "")
    held = f"{result.get('backend')}, {result.get('enforcement')}{network}"
    return f"{held}, without {missing}" if missing else held


def _used(result: Entry) -> str:
    usage = result.get("usage") or {}
    seconds = float(usage.get("user_seconds", 0)) + float(usage.get("system_seconds", 0))
    printed = f"{result.get('stdout_bytes', 0)} bytes on stdout, {result.get('stderr_bytes', 0)} on stderr"
    return f"{seconds:.2f} s of CPU, {int(usage.get('peak_memory_bytes', 0)) // 1024} KiB of memory at most, {printed}"
