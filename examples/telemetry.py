"""Spans by the conventions for tools of models, and counters, with OpenTelemetry: pip install '.[otel]' in a clone of corral, and an SDK."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from corral import Sandbox, SandboxConfig
from corral.integrations.telemetry.otel import instrument

spans = InMemorySpanExporter()  # yours would send them: OTLPSpanExporter()
tracing = TracerProvider()
tracing.add_span_processor(SimpleSpanProcessor(spans))
with Sandbox(SandboxConfig(project_root=".")) as box:
    instrument(box, tracing, MeterProvider())
    box.run(["echo", "hello"])
    box.run(["rm", "notes.txt"])
for span in spans.get_finished_spans():
    told = dict(span.attributes or {})
    print(span.name, told.get("corral.decision", ""), told.get("corral.rule.id", ""), told.get("error.type", ""))
