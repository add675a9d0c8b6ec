"""Counters and a histogram of runs in Prometheus' text format. Needs only the standard library.

`Metrics().watch(box)` counts runs, and `serve(metrics)` serves them on the loopback. Labels never contain arguments.
"""

from __future__ import annotations

from _thread import allocate_lock

from corral.integrations.telemetry import labels as telemetry
from corral.integrations.telemetry.labels import DURATION_BUCKETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from http.server import ThreadingHTTPServer
    from threading import Thread
    from typing import Self

    from corral.integrations.gates import GatedSandbox, Ruling
    from corral.model.result import SandboxResult
    from corral.sandbox import Sandbox

    Labels = tuple[tuple[str, str], ...]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_SERIES = 2000  # per counter; against a user's gate that makes up a new rule id for every call
_COUNTERS = {
    "corral_calls_total": "Calls by decision, enforcement and error type.",
    "corral_findings_total": "Findings of the guard by rule.",
    "corral_violations_total": "Violations by kind.",
    "corral_truncated_total": "Results with truncated output.",
    "corral_gate_rulings_total": "Rulings of gate chains by decision and gate.",
}
_DURATION = "corral_call_duration_seconds"


class Metrics:
    """The counts so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._counts: dict[str, dict[Labels, int]] = {name: {} for name in _COUNTERS}
        self._durations: dict[Labels, list[int]] = {}
        self._seconds: dict[Labels, float] = {}

    def watch(self, box: Sandbox | GatedSandbox) -> None:
        """Count every result of a sandbox from now on. Its `on_result` callback stays in place."""
        # A gated sandbox passes its refusals to the `on_result` of its inner sandbox.
        inner: Sandbox = box.box if hasattr(box, "box") else box
        previous = inner.on_result

        def count(result: SandboxResult) -> None:
            self.result(result)
            if previous is not None:
                previous(result)

        inner.on_result = count

    def result(self, result: SandboxResult) -> None:
        """Count one result. Usable as `on_result`."""
        decision = telemetry.decision_of(result)
        error = telemetry.error_type(result)
        with self._lock:
            self._add("corral_calls_total", decision=decision, enforcement=result.enforcement, error=error)
            for finding in result.verdict.findings:
                self._add("corral_findings_total", rule=finding.rule, decision=str(finding.decision))
            for violation in result.violations:
                self._add("corral_violations_total", kind=violation.kind)
            if result.truncated:
                self._add("corral_truncated_total")
            self._observe(result.duration_ms / 1000, decision=decision)

    def ruling(self, ruling: Ruling) -> None:
        """Count one ruling. Use it as `on_ruling` of `corral.integrations.gates`."""
        with self._lock:
            self._add("corral_gate_rulings_total", decision=str(ruling.decision), gate=ruling.gate)

    def _add(self, name: str, **labels: str) -> None:
        key = tuple(labels.items())
        counts = self._counts[name]
        if key not in counts and len(counts) >= MAX_SERIES:
            key = tuple((label, "other") for label in labels)
        counts[key] = counts.get(key, 0) + 1

    def _observe(self, seconds: float, **labels: str) -> None:
        key = tuple(labels.items())
        buckets = self._durations.setdefault(key, [0] * (len(DURATION_BUCKETS) + 1))
        buckets[next((i for i, bound in enumerate(DURATION_BUCKETS) if seconds <= bound), -1)] += 1
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def text(self) -> str:
        """Return all metrics in the text format, version 0.0.4."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, about in _COUNTERS.items():
            yield from (f"# HELP {name} {about}", f"# TYPE {name} counter")
            for labels, count in self._counts[name].items():
                yield f"{name}{labelled(labels)} {count}"
        yield from (f"# HELP {_DURATION} Duration of commands.", f"# TYPE {_DURATION} histogram")
        for labels, buckets in self._durations.items():
            total = 0
            for bound, count in zip((*map(str, DURATION_BUCKETS), "+Inf"), buckets, strict=True):
                total += count
                yield f"{_DURATION}_bucket{labelled((*labels, ('le', bound)))} {total}"
            yield f"{_DURATION}_sum{labelled(labels)} {self._seconds[labels]!r}"
            yield f"{_DURATION}_count{labelled(labels)} {total}"


class Endpoint:
    """An HTTP server of metrics in its own thread. `close`, or the end of `with`, stops it."""

    def __init__(self, server: ThreadingHTTPServer, thread: Thread) -> None:
        self._server = server
        self._thread = thread
        host, self.port = str(server.server_address[0]), int(server.server_address[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop the server, and wait until the port is free."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(metrics: Metrics, *, port: int = 0, host: str = "127.0.0.1") -> Endpoint:
    """Serve GET /metrics on the loopback. Port 0 takes any free port. Raises ValueError for any other address."""
    if host not in LOOPBACK:
        raise ValueError(f"metrics are served only on the loopback, not on {host!r}; put a proxy in front of it")
    # Imported here, because counting alone does not need them.
    import socket  # noqa: PLC0415
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # noqa: PLC0415
    from threading import Thread  # noqa: PLC0415

    class MetricsHandler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            # DNS rebinding: a web page whose name resolves to the loopback must not read the metrics.
            if not _is_loopback(self.headers.get("Host", "")):
                self.send_error(403, "the Host header must name the loopback")
            elif self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
            else:
                body = metrics.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: the terminal belongs to the agent."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    server = Server((host, port), MetricsHandler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="corral-metrics", daemon=True)
    thread.start()
    return Endpoint(server, thread)


def _is_loopback(host: str) -> bool:
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name in LOOPBACK


def labelled(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels as they stand behind the name of a series."""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
