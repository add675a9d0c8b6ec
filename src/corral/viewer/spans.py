"""Spans from a file of OpenTelemetry's JSON, by the result that they tell of. Total: what is no span is left out."""

from __future__ import annotations

import json
import os

from corral.errors import CorralError
from corral.viewer.calls import MAX_ITEMS, listed, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    Data = dict[str, Any]

MAX_FILE_BYTES = 256 * 1024 * 1024
RESULT_ID = "corral.result.id"
_KINDS = ("stringValue", "boolValue", "intValue", "doubleValue")


class Spans:
    """The spans of a file, lines of OTLP's JSON as a collector's file exporter writes them; a result's are those of its trace."""

    def __init__(self, path: str) -> None:
        self._traces: dict[str, list[Data]] = {}
        self._trace_of: dict[str, str] = {}
        try:
            if os.path.getsize(path) > MAX_FILE_BYTES:
                raise CorralError(f"{path}: longer than {MAX_FILE_BYTES} bytes")
            with open(path, "rb") as file:
                for line in file:
                    self._add(line)
        except OSError as error:
            raise CorralError(f"{path}: {error.strerror}") from None

    def of(self, call: Mapping[str, Any]) -> list[Data]:
        """Return the spans of a call's trace, in the order in which they began."""
        found = self._traces.get(self._trace_of.get(str(call.get("id")), ""), [])
        return sorted(found, key=lambda span: span["start"])[:MAX_ITEMS]

    def _add(self, line: bytes) -> None:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            return
        for span in _spans(data):
            made = _span(span)
            if made is not None:
                trace = made.pop("trace")
                self._traces.setdefault(trace, []).append(made)
                result = made["attributes"].get(RESULT_ID)
                if isinstance(result, str):
                    self._trace_of[result] = trace


def _spans(data: object) -> Iterator[Data]:
    for resource in listed(data.get("resourceSpans") if isinstance(data, dict) else None, 10_000):
        for scope in listed(resource.get("scopeSpans") if isinstance(resource, dict) else None, 10_000):
            for span in listed(scope.get("spans") if isinstance(scope, dict) else None, 100_000):
                if isinstance(span, dict):
                    yield span


def _span(span: Data) -> Data | None:
    try:
        start, end = (int(span[name]) / 1e6 for name in ("startTimeUnixNano", "endTimeUnixNano"))
    except (KeyError, TypeError, ValueError):
        return None
    attributes = {}
    for item in listed(span.get("attributes")):
        if isinstance(item, dict) and isinstance(item.get("value"), dict):
            said = next((item["value"][kind] for kind in _KINDS if kind in item["value"]), None)
            attributes[text(item.get("key"))] = text(str(said)) if said is not None else "…"
    words = {name: text(span.get(name)) for name in ("name", "spanId", "parentSpanId")}
    return {
        "trace": text(span.get("traceId")),
        "start": start,
        "end": max(start, end),
        "attributes": attributes,
        **words,
    }
