"""Formats a trace as a tree: each span below its parent, sorted by start time, with its duration and outcome. Pure."""

from __future__ import annotations

import json

from corral._lib.records import Record, frozen
from corral._lib.terminal import clip, columns, pad, printable
from corral.integrations.frameworks._commands import ONE_STREAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from opentelemetry.sdk.trace import ReadableSpan

    from corral._lib.terminal import Terminal

TIME_COLUMNS = 8
MIN_NOTE = 16
_REFUSED = "denied"


@frozen
class Span(Record):
    """A finished span."""

    id: str
    parent: str
    name: str
    began_at: int
    milliseconds: float
    attributes: Mapping[str, Any]

    def to_dict(self) -> dict[str, object]:
        """Return the span as JSON-ready data."""
        attributes = {name: list(v) if isinstance(v, tuple) else v for name, v in self.attributes.items()}
        ids = {"id": self.id, "parent": self.parent, "name": self.name}
        return {**ids, "duration_ms": round(self.milliseconds, 3), "attributes": attributes}


def spans_of(finished: Iterable[ReadableSpan]) -> list[Span]:
    """Return finished spans of the SDK as records, sorted by start time."""
    spans = []
    for span in finished:
        began_at, ended_at = span.start_time or 0, span.end_time or 0
        parent = f"{span.parent.span_id:016x}" if span.parent is not None else ""
        own = f"{span.context.span_id:016x}"
        attributes = dict(span.attributes or {})
        spans.append(Span(own, parent, span.name, began_at, (ended_at - began_at) / 1e6, attributes))
    return sorted(spans, key=lambda span: span.began_at)


def tree_text(spans: list[Span], terminal: Terminal) -> Iterator[str]:
    """Yield the lines of the tree, with aligned names, times and notes."""
    rows = list(_rows(spans, "", "", terminal))
    width = max((columns(head) for head, _ in rows), default=0)
    for head, span in rows:
        sign, style, note = _outcome(span)
        room = max(terminal.columns - width - TIME_COLUMNS - 6, MIN_NOTE)
        mark = terminal.paint(style, terminal.sign(sign))
        milliseconds = span.milliseconds
        time = f"{milliseconds / 1000:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"
        note = clip(printable(note), room, terminal.sign("cut"))
        yield f"{pad(head, width)} {terminal.paint('dim', time.rjust(TIME_COLUMNS))}  {mark} {note}".rstrip()


def _rows(spans: list[Span], parent: str, indent: str, terminal: Terminal) -> Iterator[tuple[str, Span]]:
    known = {span.id for span in spans}
    # A span whose parent is missing is a root.
    below = [span for span in spans if (span.parent if span.parent in known else "") == parent]
    for span in below:
        is_last = span is below[-1]
        branch, rest = ("", "") if not parent else ("end" if is_last else "tee", "" if is_last else "bar")
        head = indent + (terminal.sign(branch) if branch else "")
        yield head + printable(span.name), span
        inner = indent + (terminal.sign(rest) if rest else "   " if parent else "")
        yield from _rows(spans, span.id, inner, terminal)


def _outcome(span: Span) -> tuple[str, str, str]:
    """Return a sign, its colour and a note for the outcome of a span."""
    attributes = span.attributes
    command = _command(attributes)
    if attributes.get("corral.denied"):
        gate = f"{attributes['corral.gate']} gate, " if "corral.gate" in attributes else ""
        return (
            "deny",
            "deny",
            f"{gate}{attributes.get('corral.gate.rule') or attributes.get('corral.rule.id', _REFUSED)}: {command}",
        )
    if "process.exit.code" in attributes:
        code = attributes["process.exit.code"]
        return ("allow", "allow", "exit 0") if code == 0 else ("stop", "ask", f"exit {code}")
    if attributes.get("error.type"):
        return "deny", "deny", f"{attributes['error.type']}: {command}"
    return "allow", "allow", command or str(attributes.get("gen_ai.request.model", ""))


def _command(attributes: Mapping[str, Any]) -> str:
    given = json.loads(str(attributes.get("gen_ai.tool.call.arguments", "{}")))
    return str(given.get("command", "")).removeprefix(ONE_STREAM)
