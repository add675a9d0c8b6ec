"""Spans and metrics of runs, by OpenTelemetry's conventions for tool calls of models. The extra is `corral[otel]`.

A failure of telemetry never changes a result. Spans contain arguments and output only if the standard switch is on.
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
from corral._lib.fork_lock import ProcessOwner
from corral._lib.json_text import dumps
from corral.audit.redact import redact, redact_words
from corral.audit.secret_patterns import secrets_of
from corral.integrations.telemetry import labels
from corral.integrations.telemetry.labels import DURATION_BUCKETS
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
MAX_CONTENT = 16 * 1024  # characters of the arguments, and of each stream; backends drop larger attributes
_WORD_COST = 4  # characters of JSON around a word
_SEARCHED = 2  # times MAX_CONTENT is searched for secrets, so that a secret across the cut is found whole

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
    """Report spans and metrics of every run of a sandbox to the given providers, or to the global ones.

    `span_name` replaces `execute_tool {tool_name}`; `OLDER_SPAN_NAME` is the name in older conventions. `capture_content`
    overrides the environment's switch for arguments and output. `times_every_call` also records the duration of a call
    inside a tool span of the caller, which then must not record it.
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
        content=capture_content,
        times_every_call=times_every_call,
    )


@contextmanager
def tool_call(call_id: str = "", *, name: str = "") -> Iterator[None]:
    """Set the model's id, `gen_ai.tool.call.id`, and the tool name of the calls in this context."""
    token, name_token = _call_id.set(call_id), _tool_name.set(name)
    try:
        yield
    finally:
        _tool_name.reset(name_token)
        _call_id.reset(token)


def record_ruling(ruling: Ruling) -> None:
    """Add the ruling of a chain to the current tool span. Use it as `on_ruling` of `corral.integrations.gates`."""
    span = trace.get_current_span()
    if span.is_recording() and _attribute(span, _OPERATION) == "execute_tool":
        attributes: dict[str, Any] = {"corral.gate.decision": str(ruling.decision), "corral.gates": ruling.passed}
        if ruling.gate:
            attributes |= {"corral.gate": ruling.gate, "corral.gate.rule": ruling.rule}
        span.set_attributes(attributes)


def record_verdict(verdict: Verdict) -> None:
    """Add a verdict to the current span of a tool that only judges."""
    span = trace.get_current_span()
    if span.is_recording() and _attribute(span, _OPERATION) == "execute_tool":
        span.set_attributes({"corral.decision": str(verdict.decision)} | rule_attributes(verdict))


class Instrumentation:
    """The observer that `instrument` adds to a sandbox."""

    def __init__(
        self,
        box: Sandbox | GatedSandbox,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        tool_name: str,
        span_name: str,
        content: bool | None,
        times_every_call: bool,
    ) -> None:
        self.tracer = trace.get_tracer("corral", corral.__version__, tracer_provider)
        meter = metrics.get_meter("corral", corral.__version__, meter_provider)
        name = "gen_ai.execute_tool.duration"
        about = "Duration of tool calls."
        self.duration = meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=DURATION_BUCKETS)
        self.calls = meter.create_counter("corral.calls", "{call}", "Calls by decision.")
        self.findings = meter.create_counter("corral.findings", "{finding}", "Findings of the guard by rule.")
        self.violations = meter.create_counter("corral.violations", "{violation}", "Violations by kind.")
        self.tool_name = tool_name
        self.span_name = span_name
        switch = os.environ.get(CONTENT_SWITCH, "").strip().lower()
        self.content = switch in _CONTENT_ON if content is None else content
        self.times_every_call = times_every_call
        self._observers = box.observers
        self._observers.append(self)

    def observe(self, options: RunOptions) -> Observation:
        """Start the span of a call."""
        return _Run(self, options.call_id)

    def remove(self) -> None:
        """Remove the observer from the sandbox. Running calls still end their spans."""
        if self in self._observers:
            self._observers.remove(self)


class _Run:
    """The span and the metrics of one call. The span is our own, or the caller's span of the same tool."""

    def __init__(self, instrumentation: Instrumentation, call_id: str) -> None:
        self._instrumentation = instrumentation
        self.tool_name = _tool_name.get() or instrumentation.tool_name
        self._token: Any = None
        self._ended = False
        self._process = ProcessOwner()
        self._began_at = time_ns()
        current = trace.get_current_span()
        # A caller that traces tools has a span for this call. A second span would count the call twice.
        self._is_ours = not _is_of_tool(current, self.tool_name)
        self._span = self._new_span() if self._is_ours else current
        self._context = trace.set_span_in_context(self._span)
        call_id = call_id or _call_id.get()
        if call_id and self._span.is_recording():
            self._span.set_attribute(_CALL_ID, call_id)

    def _new_span(self) -> Span:
        name = self._instrumentation.span_name or f"execute_tool {self.tool_name}"
        attributes = {_OPERATION: "execute_tool", _TOOL: self.tool_name, _TYPE: "function"}
        try:
            return self._instrumentation.tracer.start_span(name, attributes=attributes, start_time=self._began_at)
        except Exception:  # noqa: BLE001  as in `end`
            _log.exception("a span could not be started")
            return trace.INVALID_SPAN

    def enter(self) -> None:
        """Make the span current for callbacks and everything else inside the call."""
        self._token = contexts.attach(self._context)

    def leave(self) -> None:
        """Restore the previous current span."""
        contexts.detach(self._token)

    def end(self, result: SandboxResult | None, error: BaseException | None = None) -> None:
        """Write the outcome to the span and the metrics, once."""
        if self._ended:
            return
        self._ended = True
        now = time_ns()
        try:
            kind = _error_type(error) if error is not None else labels.error_type(result) if result is not None else ""
            self._finish(result, kind, now)
        except Exception:  # noqa: BLE001  a broken span processor must not lose the result
            _log.exception("the outcome of a call could not be reported to OpenTelemetry")

    def _finish(self, result: SandboxResult | None, kind: str, now: int) -> None:
        is_recording = self._span.is_recording()
        if result is not None and (is_recording or self._span_ended_early()):
            facts = attributes_of(result, content=self._instrumentation.content)
            if labels.was_started(result):
                self._add_process_span(result, now, {} if is_recording else facts)
            self._span.set_attributes(facts if is_recording else {})
        if is_recording and kind:
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR))
        if self._is_ours:
            self._span.end(now)
        self._count(result, kind, (now - self._began_at) / 1e9)

    def _span_ended_early(self) -> bool:
        """Return whether the caller's span ended before the process, as for a tool that only starts one."""
        return not self._is_ours and self._span.get_span_context().trace_flags.sampled

    def _add_process_span(self, result: SandboxResult, now: int, facts: dict[str, Any]) -> None:
        name = labels.executable_name(result)
        attributes: dict[str, Any] = {
            **facts,
            "process.executable.name": name,
            "process.exit.code": result.exit_code,
            "process.working_directory": result.cwd,
        }
        if self._instrumentation.content:
            attributes["process.command_args"] = words_of(result)
        failed = labels.process_error_type(result)
        if failed:
            attributes["error.type"] = failed
        began_at = max(self._began_at, now - int(result.duration_ms * 1e6))
        span = self._instrumentation.tracer.start_span(
            name, self._context, SpanKind.CLIENT, attributes, start_time=began_at
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now)

    def _count(self, result: SandboxResult | None, kind: str, seconds: float) -> None:
        instruments = self._instrumentation
        attributes = {_TOOL: self.tool_name} | ({"error.type": kind} if kind else {})
        if self._is_ours or instruments.times_every_call:
            instruments.duration.record(seconds, attributes | {_TYPE: "function"}, self._context)
        if result is None:
            instruments.calls.add(1, attributes, self._context)
            return
        facts = {"corral.decision": labels.decision_of(result), "corral.enforcement": result.enforcement}
        instruments.calls.add(1, attributes | facts, self._context)
        for finding in result.verdict.findings:
            facts = {"corral.rule.id": finding.rule, "corral.decision": str(finding.decision)}
            instruments.findings.add(1, facts, self._context)
        for violation in result.violations:
            instruments.violations.add(1, {"corral.violation.kind": violation.kind}, self._context)

    def __del__(self) -> None:
        # A dropped handle kills its command, and this ends its span. A forked child must not report it.
        if not self._ended and self._process.is_current:
            self._ended = True
            with suppress(Exception):  # the interpreter may be shutting down
                self._finish(None, labels.ABANDONED, time_ns())


def _error_type(error: BaseException) -> str:
    if isinstance(error, ContainmentError):
        return labels.UNAVAILABLE
    # asyncio.CancelledError, KeyboardInterrupt and SystemExit derive from BaseException alone.
    return labels.INTERNAL if isinstance(error, Exception) else labels.CANCELLED


def _is_of_tool(span: Span, tool_name: str) -> bool:
    if not span.is_recording() or _attribute(span, _OPERATION) != "execute_tool":
        return False
    return _attribute(span, _TOOL) == tool_name


def _attribute(span: Span, name: str) -> object:
    # The API cannot read attributes; only spans of the SDK have them.
    attributes = getattr(span, "attributes", None)
    return attributes.get(name) if attributes else None


def attributes_of(result: SandboxResult, *, content: bool) -> dict[str, Any]:
    """Return the attributes of the tool's span. `content` adds the arguments and the output, without secrets."""
    attributes: dict[str, Any] = {
        "corral.decision": labels.decision_of(result),
        "corral.denied": result.denied,
        "corral.enforcement": result.enforcement,
        "corral.backend": result.backend,
        "corral.truncated": result.truncated,
        "corral.timed_out": result.timed_out,
        "corral.stdout.bytes": result.stdout_bytes,
        "corral.stderr.bytes": result.stderr_bytes,
        "corral.result.id": result.id,
    }
    attributes |= rule_attributes(result.verdict)
    if result.missing_layers:
        attributes["corral.missing_layers"] = result.missing_layers
    if result.violations:
        attributes["corral.violations"] = tuple(dict.fromkeys(violation.kind for violation in result.violations))
    return attributes | _content(result) if content else attributes


def rule_attributes(verdict: Verdict) -> dict[str, Any]:
    """Return the deciding rule and all rules of a verdict, or nothing if it has none."""
    rules = labels.rules_of(verdict)
    return {"corral.rule.id": rules[0], "corral.rule.ids": rules} if rules else {}


def _content(result: SandboxResult) -> dict[str, str]:
    """Return the attributes that quote the call, without secrets known by form, name or value."""
    words = words_of(result)
    given = {"command": words[0]} if result.shell and len(words) == 1 else {"argv": words}
    attributes = {"gen_ai.tool.call.arguments": dumps(given)}
    if not result.denied:
        printed = {name: _redacted(getattr(result, f"{name}_text")) for name in ("stdout", "stderr")}
        attributes["gen_ai.tool.call.result"] = dumps({"exit_code": result.exit_code, **printed})
    if result.reason:
        attributes["corral.reason"] = _redacted(result.reason)
    return attributes


def words_of(result: SandboxResult) -> list[str]:
    """Return the words of the call without secrets, up to MAX_CONTENT characters. Cutting words keeps the JSON valid."""
    room = MAX_CONTENT
    kept: list[str] = []
    for word in redact_words(list(result.argv), secrets_of(os.environ)):
        if room <= 0:
            break
        kept.append(word[:room])
        room -= len(word) + _WORD_COST
    return kept


def _redacted(text: str) -> str:
    return redact(text[: MAX_CONTENT * _SEARCHED], secrets_of(os.environ))[:MAX_CONTENT]
