"""Sends spans and metrics with OpenTelemetry's OTLP exporters to a receiver on the loopback.

Also starts `corral mcp` with OpenTelemetry's launcher, and expects its spans in the trace of the client.
"""

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_client_ways import VERSIONS, Home, drive, eventually, told
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from corral import Sandbox
from corral.integrations.telemetry.otel import instrument


class Receiver:
    """A collector for OTLP over HTTP that stores every request."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        received = self.received

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                received.append((self.path, body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def spans(self) -> list[Any]:
        """Return the received spans in order of arrival."""
        requests = [ExportTraceServiceRequest.FromString(body) for path, body in self.received if path == "/v1/traces"]
        return [
            span
            for request in requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the latest value of each metric by name."""
        requests = [
            ExportMetricsServiceRequest.FromString(body) for path, body in self.received if path == "/v1/metrics"
        ]
        return {
            metric.name: metric
            for request in requests
            for of_resource in request.resource_metrics
            for of_scope in of_resource.scope_metrics
            for metric in of_scope.metrics
        }

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_spans_and_metrics_reach_the_collector(open_box: Sandbox, receiver: Receiver) -> None:
    resource = Resource.create({"service.name": "corral-test"})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.url}/v1/metrics"))
    meters = MeterProvider([reader], resource=resource)
    instrument(open_box, tracers, meters)
    result = open_box.run("echo hello; exit 3", shell=True)
    tracers.shutdown()
    meters.shutdown()

    process, tool = receiver.spans
    assert (process.name, tool.name) == ("bash", "execute_tool run_command")
    assert process.parent_span_id == tool.span_id
    assert process.trace_id == tool.trace_id
    attributes = {pair.key: pair.value for pair in tool.attributes}
    assert attributes["corral.result.id"].string_value == result.id
    assert attributes["corral.decision"].string_value == "allow"
    assert {pair.key: pair.value.int_value for pair in process.attributes}["process.exit.code"] == 3
    assert set(receiver.metrics) == {"gen_ai.execute_tool.duration", "corral.calls"}


def test_unreachable_collector_loses_no_result(open_box: Sandbox, receiver: Receiver) -> None:
    receiver.close()
    tracers = TracerProvider()
    exporter = OTLPSpanExporter(f"{receiver.url}/v1/traces", timeout=0.2)
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    instrument(open_box, tracers)
    assert open_box.run(["echo", "hello"]).stdout == b"hello\n"
    exporter.shutdown()
    tracers.shutdown()


def facts(span: Any) -> dict[str, Any]:
    """Return the attributes of a span as a dict."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


@pytest.mark.parametrize("mode", VERSIONS)
def test_mcp_calls_are_spans_in_the_trace_of_the_client(tmp_path: Path, receiver: Receiver, mode: str) -> None:
    home = Home(tmp_path)
    env = home.env | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    launcher = str(Path(sys.executable).parent / "opentelemetry-instrument")
    words = [sys.executable, "-m", "corral", "mcp", "--root", str(home.project)]
    server = StdioServerParameters(command=launcher, args=words, env=env, cwd=str(home.project))

    async def call() -> None:
        async with Client(server, mode=mode) as client:
            assert client.protocol_version == VERSIONS[mode]
            with TracerProvider().get_tracer("host").start_as_current_span("agent") as agent:
                context = agent.get_span_context()
                told(await client.call_tool("run_command", {"argv": ["echo", "hello"]}))
                told(await client.call_tool("run_command", {"argv": ["sudo", "id"]}))
                told(await client.call_tool("check_command", {"argv": ["sudo", "id"]}))
                waiting = "until test -e go; do sleep 0.05; done; exit 3"
                job = told(await client.call_tool("start_process", {"shell": waiting}))
                (home.project / "go").touch()
                await client.call_tool("read_output", {"process_id": job["process_id"], "wait_seconds": 20})
            await eventually(lambda: len([span for span in receiver.spans if span.name in ("echo", "bash")]) == 2)
        trace_id = context.trace_id.to_bytes(16, "big")
        spans = [span for span in receiver.spans if span.trace_id == trace_id and span.name != "tools/list"]
        parents = {span.span_id: span.name for span in spans} | {context.span_id.to_bytes(8, "big"): "agent"}
        assert sorted((span.name, parents[span.parent_span_id]) for span in spans) == [
            ("bash", "tools/call start_process"),
            ("echo", "tools/call run_command"),
            ("tools/call check_command", "agent"),
            ("tools/call read_output", "agent"),
            ("tools/call run_command", "agent"),
            ("tools/call run_command", "agent"),
            ("tools/call start_process", "agent"),
        ]
        by_decision = {facts(s)["corral.decision"]: facts(s) for s in spans if s.name == "tools/call run_command"}
        assert by_decision["allow"]["corral.enforcement"] == "full"
        refused = by_decision["deny"]
        assert (refused["corral.rule.id"], refused["error.type"], refused["gen_ai.tool.name"]) == (
            "name-sudo",
            "denied",
            "run_command",
        )
        (checked,) = [facts(span) for span in spans if span.name == "tools/call check_command"]
        assert (checked["corral.decision"], checked["corral.rule.id"]) == ("deny", "name-sudo")
        # The process outlived the call that started it, so its own span has the outcome.
        (process,) = [facts(span) for span in spans if span.name == "bash"]
        assert (process["process.exit.code"], process["corral.decision"], process["corral.enforcement"]) == (
            3,
            "allow",
            "full",
        )
        assert "gen_ai.tool.call.arguments" not in refused

    drive(call)
    points = receiver.metrics["gen_ai.execute_tool.duration"].histogram.data_points
    assert sorted(pair.value.string_value for point in points for pair in point.attributes) == [
        "denied",
        *["function"] * 3,
        "run_command",
        "run_command",
        "start_process",
    ]
