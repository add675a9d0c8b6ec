"""Keeps OpenTelemetry spans by the result that their trace names. Reads them from OTLP JSON or from this process. Total."""

from __future__ import annotations

from threading import Lock

from corral.apps.evals.outcome import parse_object
from corral.apps.viewer.call_list import MAX_ITEMS, listed, text
from corral.model.errors import CorralError
from corral.policy.user_dirs import read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    Data = dict[str, Any]

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_TRACES = 10_000  # the oldest are dropped
RESULT_ID = "corral.result.id"
_KINDS = ("stringValue", "boolValue", "intValue", "doubleValue")


class Spans:
    """Spans by trace. Thread-safe. Can be used as an exporter of the OpenTelemetry SDK."""

    def __init__(self) -> None:
        self._traces: dict[str, list[Data]] = {}
        self._trace_of: dict[str, str] = {}
        self._lock = Lock()

    def of(self, call: Mapping[str, Any]) -> list[Data]:
        """Return the spans of a call's trace, sorted by start time."""
        with self._lock:
            found = self._traces.get(self._trace_of.get(str(call.get("id")), ""), [])
            return sorted(found, key=lambda span: span["start"])[:MAX_ITEMS]

    @property
    def has_any(self) -> bool:
        """True if there is a span."""
        return bool(self._traces)

    def add(self, trace: str, span: Data) -> None:
        """Add a span."""
        with self._lock:
            self._traces.setdefault(trace, []).append(span)
            result = span["attributes"].get(RESULT_ID)
            if result is not None:
                self._trace_of[result] = trace
            if len(self._traces) > MAX_TRACES:
                self._traces.pop(next(iter(self._traces)))

    def export(self, spans: Iterable[Any]) -> None:
        """Add finished spans of the SDK."""
        for span in spans:
            attributes = {text(str(name)): text(str(value)) for name, value in (span.attributes or {}).items()}
            start, end = (span.start_time or 0) / 1e6, (span.end_time or 0) / 1e6
            parent = "" if span.parent is None else f"{span.parent.span_id:016x}"
            ids = {"spanId": f"{span.context.span_id:016x}", "parentSpanId": parent}
            made = {"name": text(span.name), "start": start, "end": max(start, end), "attributes": attributes}
            self.add(f"{span.context.trace_id:032x}", made | ids)

    def shutdown(self) -> None:
        """Do nothing: the spans stay available."""

    def force_flush(self, timeout_millis: int = 0) -> bool:  # noqa: ARG002  the SDK's signature
        """Return True: spans are never buffered."""
        return True


def read(path: str) -> Spans:
    """Return the spans of a file with OTLP JSON lines, as the file exporter of a collector writes them."""
    made = Spans()
    try:
        # A command may have put a pipe or a device there, which a plain open would wait for, or read without end.
        data, _ = read_regular_file(path, MAX_FILE_BYTES, follows=True)
    except OSError as error:
        raise CorralError(f"{path}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise CorralError(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    for line in data.split(b"\n"):
        for span in _spans(parse_object(line)):
            _add(made, span)
    if data and not made.has_any:
        raise CorralError(f"{path} has no spans; give a file with one OTLP JSON object per line")
    return made


def _spans(data: Data | None) -> Iterator[Data]:
    for resource in listed((data or {}).get("resourceSpans"), 10_000):
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
            value = next((item["value"][kind] for kind in _KINDS if kind in item["value"]), "…")
            attributes[text(item.get("key"))] = text(str(value))
    words = {name: text(span.get(name)) for name in ("name", "spanId", "parentSpanId")}
    spans.add(text(span.get("traceId")), {"start": start, "end": max(start, end), "attributes": attributes, **words})
