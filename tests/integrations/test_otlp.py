"""Over the wire: what OpenTelemetry's own OTLP exporters send arrives at a receiver on the loopback, and is what was run."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
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
from corral.integrations.otel import instrument


class Receiver:
    """A collector of OTLP over HTTP that keeps what it is sent."""

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

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_spans_and_metrics_arrive(open_box: Sandbox, receiver: Receiver) -> None:
    resource = Resource.create({"service.name": "corral-test"})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.url}/v1/metrics"))
    meters = MeterProvider([reader], resource=resource)
    instrument(open_box, tracers, meters)
    result = open_box.run("echo hello; exit 3", shell=True)
    tracers.shutdown()
    meters.shutdown()

    traces = [ExportTraceServiceRequest.FromString(body) for path, body in receiver.received if path == "/v1/traces"]
    spans = [
        span
        for request in traces
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]
    process, tool = spans
    assert (process.name, tool.name) == ("bash", "execute_tool run_command")
    assert process.parent_span_id == tool.span_id
    assert process.trace_id == tool.trace_id
    attributes = {pair.key: pair.value for pair in tool.attributes}
    assert attributes["corral.result.id"].string_value == result.id
    assert attributes["corral.decision"].string_value == "allow"
    assert {pair.key: pair.value.int_value for pair in process.attributes}["process.exit.code"] == 3
    sent = [ExportMetricsServiceRequest.FromString(body) for path, body in receiver.received if path == "/v1/metrics"]
    names = {
        metric.name
        for request in sent
        for of_resource in request.resource_metrics
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
    }
    assert names == {"gen_ai.execute_tool.duration", "corral.calls"}


def test_a_collector_that_is_gone_costs_no_result(open_box: Sandbox, receiver: Receiver) -> None:
    receiver.close()
    tracers = TracerProvider()
    exporter = OTLPSpanExporter(f"{receiver.url}/v1/traces", timeout=0.2)
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    instrument(open_box, tracers)
    assert open_box.run(["echo", "hello"]).stdout == b"hello\n"
    exporter.shutdown()
    tracers.shutdown()
