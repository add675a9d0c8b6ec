"""Tests of the Prometheus metrics, read back by the parser of prometheus_client, and of the HTTP endpoint."""

import http.client
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import corral
from corral import Sandbox, SandboxResult, Usage, Verdict, Violation
from corral.integrations.gates import GatedSandbox, Pattern, Patterns
from corral.integrations.telemetry.labels import DURATION_BUCKETS
from corral.integrations.telemetry.prometheus import CONTENT_TYPE, MAX_SERIES, Metrics, serve
from corral.model.call import Axis, Decision, Finding

SOURCE = str(Path(corral.__file__).parents[1])


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.text())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def result(milliseconds: float = 1.0, **fields: object) -> SandboxResult:
    return SandboxResult(("true",), 0, duration_ms=milliseconds, enforcement="full", usage=Usage(), **fields)  # type: ignore[arg-type]


def test_runs_are_counted_by_decision_enforcement_and_error(box: Sandbox) -> None:
    metrics = Metrics()
    metrics.watch(box)
    ran, denied = box.run(["true"]), box.run(["rm", "x"])
    counted = samples(metrics)
    labels = (("decision", "allow"), ("enforcement", ran.enforcement), ("error", ""))
    assert counted[("corral_calls_total", labels)] == 1
    labels = (("decision", "deny"), ("enforcement", "none"), ("error", "denied"))
    assert counted[("corral_calls_total", labels)] == 1
    for finding in denied.verdict.findings:
        labels = (("decision", str(finding.decision)), ("rule", finding.rule))
        assert counted[("corral_findings_total", labels)] >= 1


def test_watch_keeps_the_previous_on_result(box: Sandbox) -> None:
    received: list[SandboxResult] = []
    box.on_result = received.append
    metrics = Metrics()
    metrics.watch(box)
    assert [box.run(["true"])] == received
    assert "corral_calls_total" in metrics.text()


def test_refusals_and_rulings_of_gates_are_counted(open_box: Sandbox) -> None:
    metrics = Metrics()
    gated = GatedSandbox(open_box, Patterns(Pattern("no-word", "xyzzy", "")), on_ruling=metrics.ruling)
    metrics.watch(gated)
    gated.run(["echo", "xyzzy"])
    gated.run(["true"])
    counted = samples(metrics)
    assert counted[("corral_gate_rulings_total", (("decision", "deny"), ("gate", "patterns")))] == 1
    assert counted[("corral_gate_rulings_total", (("decision", "allow"), ("gate", "")))] == 1
    assert counted[("corral_calls_total", (("decision", "deny"), ("enforcement", "none"), ("error", "denied")))] == 1


def test_violations_and_truncation_are_counted() -> None:
    metrics = Metrics()
    metrics.result(result(truncated=True, violations=(Violation("network"), Violation("hidden"), Violation("network"))))
    counted = samples(metrics)
    assert counted[("corral_violations_total", (("kind", "network"),))] == 2
    assert counted[("corral_violations_total", (("kind", "hidden"),))] == 1
    assert counted[("corral_truncated_total", ())] == 1


@given(st.lists(st.floats(0, 200_000, allow_nan=False), max_size=30))
def test_histogram_is_cumulative_and_complete(durations: list[float]) -> None:
    metrics = Metrics()
    for duration in durations:
        metrics.result(result(duration))
    counted = samples(metrics)
    for bound in DURATION_BUCKETS:
        expected = sum(duration / 1000 <= bound for duration in durations)
        labels = (("decision", "allow"), ("le", str(bound)))
        assert counted.get(("corral_call_duration_seconds_bucket", labels), 0) == expected
    labels = (("decision", "allow"), ("le", "+Inf"))
    assert counted.get(("corral_call_duration_seconds_bucket", labels), 0) == len(durations)
    own = (("decision", "allow"),)
    assert counted.get(("corral_call_duration_seconds_count", own), 0) == len(durations)
    assert counted.get(("corral_call_duration_seconds_sum", own), 0.0) == pytest.approx(sum(durations) / 1000)


@given(st.text(st.characters(codec="utf-8")))
def test_any_rule_id_is_escaped_as_a_label(rule: str) -> None:
    metrics = Metrics()
    finding = Finding(Axis.NAME, rule, Decision.ASK, "")
    metrics.result(result(verdict=Verdict((finding,))))
    assert samples(metrics)[("corral_findings_total", (("decision", "ask"), ("rule", rule)))] == 1


def test_number_of_series_is_limited() -> None:
    metrics = Metrics()
    for number in range(MAX_SERIES + 50):
        metrics.result(result(verdict=Verdict((Finding(Axis.NAME, f"r{number}", Decision.DENY, ""),))))
    found = {labels: value for (name, labels), value in samples(metrics).items() if name == "corral_findings_total"}
    assert len(found) == MAX_SERIES + 1
    assert found[(("decision", "other"), ("rule", "other"))] == 50


def test_concurrent_threads_lose_no_count() -> None:
    metrics = Metrics()
    threads = [threading.Thread(target=lambda: [metrics.result(result()) for _ in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    labels = (("decision", "allow"), ("enforcement", "full"), ("error", ""))
    assert samples(metrics)[("corral_calls_total", labels)] == 1600


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_endpoint_answers_on_the_loopback(host: str) -> None:
    metrics = Metrics()
    metrics.result(result())
    with serve(metrics, host=host) as endpoint, urllib.request.urlopen(endpoint.url, timeout=60) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        assert answer.read().decode() == metrics.text()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(endpoint.url, timeout=60)


def test_endpoint_refuses_other_paths_and_host_names() -> None:
    with serve(Metrics()) as endpoint:
        for path, host, status in (
            ("/metrics?x=1", f"127.0.0.1:{endpoint.port}", 200),
            ("/", f"127.0.0.1:{endpoint.port}", 404),
            ("/metrics", "attacker.example", 403),
            ("/metrics", f"[::1]:{endpoint.port}", 200),
            ("/metrics", "", 403),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
            connection.request("GET", path, headers={"Host": host})
            assert (path, host, connection.getresponse().status) == (path, host, status)
            connection.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "", "192.0.2.1", "::"])
def test_endpoint_refuses_other_addresses(host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        serve(Metrics(), host=host)


def test_counting_needs_no_package_and_no_http_server() -> None:
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); from corral.integrations.telemetry.prometheus import Metrics; Metrics().text()\n"
        "print(sorted({'http', 'socket', 'prometheus_client', 'opentelemetry'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
