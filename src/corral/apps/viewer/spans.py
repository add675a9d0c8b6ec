"""Spans of OpenTelemetry, by the result that their trace names: from a file of OTLP's JSON, or of this process. Total."""

from __future__ import annotations

import json
import os
from threading import Lock

from corral.apps.viewer.call_list import MAX_ITEMS, listed, text
from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    Data = dict[str, Any]

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_TRACES = 10_000  # kept; the oldest are dropped first
RESULT_ID = "corral.result.id"
_KINDS = ("stringValue", "boolValue", "intValue", "doubleValue")


class Spans:
    """The spans of traces. Any thread may use it; as an exporter of OpenTelemetry's SDK it takes in those of this process."""

    def __init__(self) -> None:
        self._traces: dict[str, list[Data]] = {}
        self._trace_of: dict[str, str] = {}
        self._turn = Lock()

    def of(self, call: Mapping[str, Any]) -> list[Data]:
        """Return the spans of a call's trace, in the order in which they began."""
        with self._turn:
            found = self._traces.get(self._trace_of.get(str(call.get("id")), ""), [])
            return sorted(found, key=lambda span: span["start"])[:MAX_ITEMS]

    @property
    def has_any(self) -> bool:
        """Whether there is a span."""
        return bool(self._traces)

    def add(self, trace: str, span: Data) -> None:
        """Take in one span."""
        with self._turn:
            self._traces.setdefault(trace, []).append(span)
            result = span["attributes"].get(RESULT_ID)
            if result is not None:
                self._trace_of[result] = trace
            if len(self._traces) > MAX_TRACES:
                self._traces.pop(next(iter(self._traces)))

    def export(self, spans: Iterable[Any]) -> None:
        """Take in spans that have ended, as the SDK hands them to an exporter."""
        for span in spans:
            attributes = {text(str(name)): text(str(value)) for name, value in (span.attributes or {}).items()}
            start, end = (span.start_time or 0) / 1e6, (span.end_time or 0) / 1e6
            above = "" if span.parent is None else f"{span.parent.span_id:016x}"
            ids = {"spanId": f"{span.context.span_id:016x}", "parentSpanId": above}
            made = {"name": text(span.name), "start": start, "end": max(start, end), "attributes": attributes}
            self.add(f"{span.context.trace_id:032x}", made | ids)

    def shutdown(self) -> None:
        """Keep what there is."""

    def force_flush(self, timeout_millis: int = 0) -> bool:  # noqa: ARG002  the SDK's signature
        """Say that nothing waits."""
        return True


def read(path: str) -> Spans:
    """Return the spans of a file: lines of OTLP's JSON, as a collector's file exporter writes them."""
    made = Spans()
    try:
        if os.path.getsize(path) > MAX_FILE_BYTES:
            raise CorralError(f"{path}: longer than {MAX_FILE_BYTES} bytes")
        with open(path, "rb") as file:
            for line in file:
                for span in _spans(_data(line)):
                    _add(made, span)
            is_empty = not file.tell()
    except OSError as error:
        raise CorralError(f"{path}: {error.strerror}") from None
    if not is_empty and not made.has_any:
        raise CorralError(f"{path} holds no spans: it takes OTLP's JSON, a line for each export")
    return made


def _data(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _spans(data: object) -> Iterator[Data]:
    for resource in listed(data.get("resourceSpans") if isinstance(data, dict) else None, 10_000):
        for scope in listed(resource.get("scopeSpans") if isinstance(resource, dict) else None, 10_000):
            for span in listed(scope.get("spans") if isinstance(scope, dict) else None, 100_000):
                if isinstance(span, dict):
                    yield span


def _add(spans: Spans, span: Data) -> None:
    try:
        start, end = (int(span[name]) / 1e6 for name in ("startTimeUnixNano", "endTimeUnixNano"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return
    attributes = {}
    for item in listed(span.get("attributes")):
        if isinstance(item, dict) and isinstance(item.get("value"), dict):
            said = next((item["value"][kind] for kind in _KINDS if kind in item["value"]), "…")
            attributes[text(item.get("key"))] = text(str(said))
    words = {name: text(span.get(name)) for name in ("name", "spanId", "parentSpanId")}
    spans.add(text(span.get("traceId")), {"start": start, "end": max(start, end), "attributes": attributes, **words})
