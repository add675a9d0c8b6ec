"""Spans and metrics of runs by OpenTelemetry's conventions for tools of models. Needs its API alone: `corral[otel]`.

Nothing that a command does depends on it. Arguments and output are told only where the standard switch allows that.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import time_ns

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ImportError as error:
    from corral.integrations.extras import missing_extra

    raise missing_extra("otel", error) from error

import corral
from corral._lib.process_identity import ProcessIdentity
from corral.integrations.telemetry import labels
from corral.integrations.telemetry.labels import DURATION_BUCKETS
from corral.integrations.telemetry.otel_attributes import attributes_of, rule_attributes, words_of
from corral.model.errors import ContainmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from corral.integrations.gates import GatedSandbox, Ruling
    from corral.model.call import Verdict
    from corral.model.result import SandboxResult
    from corral.runtime.observers import Observation
    from corral.runtime.run_options import RunOptions
    from corral.sandbox import Sandbox

OLDER_SPAN_NAME = "gen_ai.tool.execution"
CONTENT_SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CONTENT_ON = frozenset({"true", "1", "span_only", "span_and_event"})
_OPERATION, _TOOL, _TYPE = "gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.type"
_CALL_ID = "gen_ai.tool.call.id"

_log = logging.getLogger(__name__)
_call_id: ContextVar[str] = ContextVar("corral_call_id", default="")
_tool_name: ContextVar[str] = ContextVar("corral_tool_name", default="")


def instrument(
    box: Sandbox | GatedSandbox,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    tool_name: str = "run_command",
    span_name: str = "",
    capture_content: bool | None = None,
    times_every_call: bool = False,
) -> Instrumentation:
    """Give every run of a sandbox its span and metrics, by the providers given or the global ones.

    `span_name` replaces `execute_tool {tool_name}`; `OLDER_SPAN_NAME` is what it was called once. `capture_content` says
    whether arguments and output are told, instead of the environment. With `times_every_call` the duration is recorded
    also where the tool's span is another's, who then must not.
    """
    for observer in box.observers:
        if isinstance(observer, Instrumentation):
            return observer
    return Instrumentation(
        box,
        tracer_provider,
        meter_provider,
        tool_name=tool_name,
        span_name=span_name,
        content=_content_is_on(os.environ.get(CONTENT_SWITCH, "")) if capture_content is None else capture_content,
        times_every_call=times_every_call,
    )


@contextmanager
def tool_call(call_id: str = "", *, name: str = "") -> Iterator[None]:
    """Say by which id the model knows the call that runs inside, `gen_ai.tool.call.id`, and by which tool, where there are several."""
    token, name_token = _call_id.set(call_id), _tool_name.set(name)
    try:
        yield
    finally:
        _tool_name.reset(name_token)
        _call_id.reset(token)


def record_ruling(ruling: Ruling) -> None:
    """Put a chain's ruling on the tool's span around it: an `on_ruling` for `corral.integrations.gates`."""
    span = trace.get_current_span()
    if span.is_recording() and _attribute(span, _OPERATION) == "execute_tool":
        attributes: dict[str, Any] = {"corral.gate.decision": str(ruling.decision), "corral.gates": ruling.passed}
        if ruling.gate:
            attributes |= {"corral.gate": ruling.gate, "corral.gate.rule": ruling.rule}
        span.set_attributes(attributes)


def record_verdict(verdict: Verdict) -> None:
    """Put a verdict on the tool's span around it, of a tool that only judges."""
    span = trace.get_current_span()
    if span.is_recording() and _attribute(span, _OPERATION) == "execute_tool":
        span.set_attributes({"corral.decision": str(verdict.decision)} | rule_attributes(verdict))


class Instrumentation:
    """What `instrument` attached to one sandbox; `remove` takes it off again."""

    def __init__(
        self,
        box: Sandbox | GatedSandbox,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        tool_name: str,
        span_name: str,
        content: bool,
        times_every_call: bool,
    ) -> None:
        self.tracer = trace.get_tracer("corral", corral.__version__, tracer_provider)
        meter = metrics.get_meter("corral", corral.__version__, meter_provider)
        self.duration = meter.create_histogram(
            "gen_ai.execute_tool.duration",
            "s",
            "How long tools ran.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        )
        self.calls = meter.create_counter("corral.calls", "{call}", "Calls by decision.")
        self.findings = meter.create_counter("corral.findings", "{finding}", "Findings of the guard by rule.")
        self.violations = meter.create_counter("corral.violations", "{violation}", "Violations by kind.")
        self.tool_name = tool_name
        self.span_name = span_name
        self.content = content
        self.times_every_call = times_every_call
        self._observers = box.observers
        self._observers.append(self)

    def observe(self, options: RunOptions) -> Observation:
        """Begin the span of a call."""
        return _Run(self, options.call_id)

    def remove(self) -> None:
        """Detach from the sandbox. Calls that still run end their spans."""
        if self in self._observers:
            self._observers.remove(self)


class _Run:
    """One call from its beginning to its end: the span, which is ours or another's, and what is counted."""

    def __init__(self, told: Instrumentation, call_id: str) -> None:
        self.told = told
        self.tool_name = _tool_name.get() or told.tool_name
        self._token: Any = None
        self._ended = False
        self._process = ProcessIdentity()
        self._began_at = time_ns()
        current = trace.get_current_span()
        # Who traces tools already has a span for this one: a second would count it twice.
        self._is_ours = not _is_of_tool(current, self.tool_name)
        self._span = current if not self._is_ours else self._new_span()
        self._context = trace.set_span_in_context(self._span)
        call_id = call_id or _call_id.get()
        if call_id and self._span.is_recording():
            self._span.set_attribute(_CALL_ID, call_id)

    def _new_span(self) -> Span:
        name = self.told.span_name or f"execute_tool {self.tool_name}"
        attributes = {_OPERATION: "execute_tool", _TOOL: self.tool_name, _TYPE: "function"}
        try:
            return self.told.tracer.start_span(name, attributes=attributes, start_time=self._began_at)
        except Exception:  # noqa: BLE001  as in `end`
            _log.exception("a span could not be started")
            return trace.INVALID_SPAN

    def enter(self) -> None:
        """Make the span current, for questions, callbacks and everything else that happens inside the call."""
        self._token = contexts.attach(self._context)

    def leave(self) -> None:
        """Make the span that was current before current again."""
        contexts.detach(self._token)

    def end(self, result: SandboxResult | None, error: BaseException | None = None) -> None:
        """Say on the span and in the counts what became of the call. Once."""
        if self._ended:
            return
        self._ended = True
        now = time_ns()
        try:
            kind = _error_type(error) if error is not None else labels.error_type(result) if result is not None else ""
            self._finish(result, kind, now)
        except Exception:  # noqa: BLE001  a span processor of somebody else's; the result is not lost for that
            _log.exception("what became of a call could not be told to OpenTelemetry")

    def _finish(self, result: SandboxResult | None, kind: str, now: int) -> None:
        is_recording = self._span.is_recording()
        if result is not None and (is_recording or self._is_outlived()):
            facts = attributes_of(result, content=self.told.content)
            if labels.was_started(result):
                self._tell_process(result, now, {} if is_recording else facts)
            self._span.set_attributes(facts if is_recording else {})
        if is_recording and kind:
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR))
        if self._is_ours:
            self._span.end(now)
        self._count(result, kind, (now - self._began_at) / 1e9)

    def _is_outlived(self) -> bool:
        """Say whether the tool's span, another's, ended before the process, as where a tool only starts one."""
        return not self._is_ours and self._span.get_span_context().trace_flags.sampled

    def _tell_process(self, result: SandboxResult, now: int, facts: dict[str, Any]) -> None:
        name = labels.executable_name(result)
        attributes: dict[str, Any] = {
            **facts,
            "process.executable.name": name,
            "process.exit.code": result.exit_code,
            "process.working_directory": result.cwd,
        }
        if self.told.content:
            attributes["process.command_args"] = words_of(result)
        failed = labels.process_error_type(result)
        if failed:
            attributes["error.type"] = failed
        began_at = max(self._began_at, now - int(result.duration_ms * 1e6))
        span = self.told.tracer.start_span(name, self._context, SpanKind.CLIENT, attributes, start_time=began_at)
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now)

    def _count(self, result: SandboxResult | None, kind: str, seconds: float) -> None:
        told = self.told
        attributes = {_TOOL: self.tool_name} | ({"error.type": kind} if kind else {})
        if self._is_ours or told.times_every_call:
            told.duration.record(seconds, attributes | {_TYPE: "function"}, self._context)
        if result is None:
            told.calls.add(1, attributes, self._context)
            return
        facts = {"corral.decision": labels.decision_of(result), "corral.enforcement": result.enforcement}
        told.calls.add(1, attributes | facts, self._context)
        for finding in result.verdict.findings:
            facts = {"corral.rule.id": finding.rule, "corral.decision": str(finding.decision)}
            told.findings.add(1, facts, self._context)
        for violation in result.violations:
            told.violations.add(1, {"corral.violation.kind": violation.kind}, self._context)

    def __del__(self) -> None:
        # A handle that was dropped ends its command; without this its span would never be seen. A fork has no say in it.
        if not self._ended and self._process.is_current():
            self._ended = True
            with suppress(Exception):  # of an interpreter that is being taken down
                self._finish(None, labels.ABANDONED, time_ns())


def _error_type(error: BaseException) -> str:
    if isinstance(error, ContainmentError):
        return labels.UNAVAILABLE
    # asyncio.CancelledError, KeyboardInterrupt, SystemExit: somebody wanted it to end.
    return labels.INTERNAL if isinstance(error, Exception) else labels.CANCELLED


def _is_of_tool(span: Span, tool_name: str) -> bool:
    if not span.is_recording() or _attribute(span, _OPERATION) != "execute_tool":
        return False
    return _attribute(span, _TOOL) == tool_name


def _attribute(span: Span, name: str) -> object:
    # Only a span of the SDK can be read; the API has no way to.
    attributes = getattr(span, "attributes", None)
    return attributes.get(name) if attributes else None


def _content_is_on(switch: str) -> bool:
    return switch.strip().lower() in _CONTENT_ON
