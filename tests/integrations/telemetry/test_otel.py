"""Tests of spans and metrics, read from the in-memory exporter and reader of OpenTelemetry's SDK."""

import asyncio
import gc
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import corral
from corral import ContainmentError, Limits, Sandbox, SandboxResult
from corral.integrations.gates import GatedSandbox, Pattern, Patterns
from corral.integrations.telemetry import labels, otel
from corral.integrations.telemetry.otel import CONTENT_SWITCH, OLDER_SPAN_NAME, instrument, record_ruling, tool_call

WAYS = pytest.mark.parametrize("way", ["run", "arun", "start", "astart"])
TOKEN = "ghp_" + "abcdefghij0123456789"
PAGE = (Path(corral.__file__).parents[2] / "docs" / "telemetry.md").read_text()
SOURCE = str(Path(corral.__file__).parents[1])


class Telemetry:
    """Providers for one test, and the spans and metrics that they exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return [point for metric in found for point in metric.data.data_points]

    def counts(self, name: str) -> dict[tuple[tuple[str, Any], ...], int]:
        return {tuple(sorted(point.attributes.items())): point.value for point in self.points(name)}


@pytest.fixture
def exported() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.tracers.shutdown()
    telemetry.meters.shutdown()


@pytest.fixture(autouse=True)
def _switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTENT_SWITCH, raising=False)


def attached(box: Any, exported: Telemetry, **settings: Any) -> Any:
    instrument(box, exported.tracers, exported.meters, **settings)
    return box


def run_by(box: Any, way: str, *args: Any, **options: Any) -> SandboxResult:
    async def awaited() -> SandboxResult:
        return await (await box.astart(*args, **options))  # type: ignore[no-any-return]

    ways: dict[str, Callable[[], SandboxResult]] = {
        "run": lambda: box.run(*args, **options),
        "arun": lambda: asyncio.run(box.arun(*args, **options)),
        "start": lambda: box.start(*args, **options).wait(),
        "astart": lambda: asyncio.run(awaited()),
    }
    return ways[way]()


@WAYS
def test_run_is_a_tool_span_with_a_process_span_below(open_box: Sandbox, exported: Telemetry, way: str) -> None:
    result = run_by(attached(open_box, exported), way, ["echo", "hello"])
    process, tool = exported.spans
    assert (tool.name, tool.kind, tool.status.status_code) == (
        "execute_tool run_command",
        SpanKind.INTERNAL,
        StatusCode.UNSET,
    )
    assert dict(tool.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "run_command",
        "gen_ai.tool.type": "function",
        "corral.decision": "allow",
        "corral.denied": False,
        "corral.enforcement": result.enforcement,
        "corral.backend": result.backend,
        "corral.truncated": False,
        "corral.timed_out": False,
        "corral.stdout.bytes": 6,
        "corral.stderr.bytes": 0,
        "corral.result.id": result.id,
    }
    assert (process.name, process.kind, process.status.status_code) == ("echo", SpanKind.CLIENT, StatusCode.UNSET)
    assert dict(process.attributes or {}) == {
        "process.executable.name": "echo",
        "process.exit.code": 0,
        "process.working_directory": result.cwd,
    }
    assert process.parent is not None
    assert tool.context is not None
    assert process.parent.span_id == tool.context.span_id
    assert tool.start_time is not None
    assert tool.end_time is not None
    assert tool.start_time <= (process.start_time or 0) <= (process.end_time or 0) <= tool.end_time


@WAYS
def test_refused_call_is_a_tool_error_without_a_process_span(box: Sandbox, exported: Telemetry, way: str) -> None:
    result = run_by(attached(box, exported), way, ["rm", "x"])
    (tool,) = exported.spans
    attributes = dict(tool.attributes or {})
    rules = tuple(finding.rule for finding in result.verdict.findings)
    assert tool.status.status_code == StatusCode.ERROR
    assert attributes["error.type"] == "denied"
    assert (attributes["corral.decision"], attributes["corral.denied"]) == ("deny", True)
    assert attributes["corral.rule.id"] in rules
    assert set(attributes["corral.rule.ids"]) == set(rules)  # type: ignore[arg-type]
    assert "corral.reason" not in attributes


@WAYS
def test_exit_code_is_an_error_of_the_process_span_only(open_box: Sandbox, exported: Telemetry, way: str) -> None:
    run_by(attached(open_box, exported), way, "exit 3", shell=True)
    process, tool = exported.spans
    assert (process.name, tool.status.status_code) == ("bash", StatusCode.UNSET)
    assert process.status.status_code == StatusCode.ERROR
    assert (process.attributes or {})["error.type"] == "3"
    assert "error.type" not in (tool.attributes or {})


@pytest.mark.parametrize(
    ("text", "settings", "errors"),
    [
        ("sleep 60", {"timeout_seconds": 0.3}, ("timeout", "timeout")),
        ("kill -9 $$", {}, (None, "SIGKILL")),
        ("kill -35 $$", {}, (None, "SIG35")),
        ("while :; do :; done", {"limits": Limits(cpu_seconds=1)}, ("limit", "SIGKILL")),
        ("no-such-program-here", {}, (None, "127")),
    ],
    ids=["timeout", "a signal", "a real-time signal", "a limit", "not found by the shell"],
)
def test_error_types(
    open_sandbox: Callable[..., Sandbox],
    exported: Telemetry,
    text: str,
    settings: dict[str, Any],
    errors: tuple[str | None, str],
) -> None:
    attached(open_sandbox(**settings), exported).run(text, shell=True)
    process, tool = exported.spans
    assert tuple((span.attributes or {}).get("error.type") for span in (tool, process)) == errors


@WAYS
def test_call_without_containment_has_its_error_type(
    sandbox: Callable[..., Sandbox], exported: Telemetry, way: str
) -> None:
    box = attached(sandbox(), exported)
    box.close()
    with pytest.raises(ContainmentError):
        run_by(box, way, ["true"])
    assert [(span.attributes or {})["error.type"] for span in exported.spans] == ["sandbox_unavailable"]


def test_call_that_did_not_start_has_its_error_type(open_box: Sandbox, exported: Telemetry) -> None:
    assert attached(open_box, exported).run(["no-such-program-here"]).exit_code == 127
    (tool,) = exported.spans
    assert (tool.attributes or {})["error.type"] == "not_started"


def test_span_lists_violations_and_truncation(open_sandbox: Callable[..., Sandbox], exported: Telemetry) -> None:
    box = attached(open_sandbox(max_output_bytes=200), exported)
    text = """seq 1000; python3 -c 'import socket; socket.create_connection(("192.0.2.7", 80))'"""
    result = box.run(text, shell=True)
    assert [violation.kind for violation in result.violations] == ["network"]
    attributes = exported.named("execute_tool run_command").attributes or {}
    assert (attributes["corral.violations"], attributes["corral.truncated"]) == (("network",), True)
    assert exported.counts("corral.violations") == {(("corral.violation.kind", "network"),): 1}


def test_every_error_type_is_documented() -> None:
    assert [kind for kind in labels.ERROR_TYPES if f"`{kind}`" not in PAGE] == []


@pytest.mark.parametrize("program", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL), ids=["otel", "prometheus"])
def test_documented_program_runs(program: str, project: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("value", ["", "false", "NO_CONTENT", "EVENT_ONLY", "yes please"])
def test_content_is_not_exported_without_the_switch(
    open_box: Sandbox, box: Sandbox, exported: Telemetry, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(CONTENT_SWITCH, value)
    attached(open_box, exported).run("echo marker-out; echo marker-err >&2; cat marker-path", shell=True)
    attached(box, exported).run(["rm", "marker-operand"])
    assert len(exported.spans) == 3
    assert "marker" not in "".join(span.to_json() for span in exported.spans)


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "span_and_event"])
def test_switch_exports_content_without_secrets(
    open_box: Sandbox, exported: Telemetry, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(CONTENT_SWITCH, value)
    attached(open_box, exported).run(f"echo out {TOKEN}; echo err >&2", shell=True)
    process, tool = exported.spans
    attributes = tool.attributes or {}
    given, got = (json.loads(str(attributes[f"gen_ai.tool.call.{name}"])) for name in ("arguments", "result"))
    assert given["command"].startswith("echo out ")
    assert (got["exit_code"], got["stdout"].split()[0], got["stderr"]) == (0, "out", "err\n")
    assert (process.attributes or {})["process.command_args"] == (given["command"],)
    assert TOKEN not in "".join(span.to_json() for span in exported.spans)


def test_capture_content_overrides_the_switch(
    box: Sandbox, exported: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTENT_SWITCH, "true")
    attached(box, exported, capture_content=False).run(["rm", "marker"])
    assert "marker" not in exported.spans[0].to_json()


def test_content_has_a_size_limit(open_box: Sandbox, exported: Telemetry) -> None:
    attached(open_box, exported, capture_content=True).run(["echo", "x" * 100_000])
    assert max(len(str(value)) for span in exported.spans for value in (span.attributes or {}).values()) < 60_000


@pytest.mark.parametrize("argv", [["echo", "x" * 100_000], ["echo", *"x" * 4_000], ["echo", *["x" * 9000] * 9]])
def test_truncated_arguments_are_valid_json(open_box: Sandbox, exported: Telemetry, argv: list[str]) -> None:
    attached(open_box, exported, capture_content=True).run(argv)
    process, tool = exported.spans
    kept = json.loads(str((tool.attributes or {})["gen_ai.tool.call.arguments"]))["argv"]
    assert list((process.attributes or {})["process.command_args"]) == kept  # type: ignore[arg-type]
    assert kept[:-1] == argv[: len(kept) - 1]
    assert 16_000 < sum(map(len, kept)) + 4 * len(kept) < 17_000


def test_secret_across_the_cut_is_redacted(open_box: Sandbox, exported: Telemetry) -> None:
    fill = otel.MAX_CONTENT - len(TOKEN) // 2
    attached(open_box, exported, capture_content=True).run(f"printf %{fill}s; echo {TOKEN}", shell=True)
    printed = json.loads(str((exported.spans[1].attributes or {})["gen_ai.tool.call.result"]))["stdout"]
    assert len(printed) == otel.MAX_CONTENT
    assert TOKEN[:8] not in printed


def test_refused_call_has_no_result_attribute(box: Sandbox, exported: Telemetry) -> None:
    attached(box, exported, capture_content=True).run(["rm", "x"])
    attributes = exported.spans[0].attributes or {}
    assert json.loads(str(attributes["gen_ai.tool.call.arguments"])) == {"argv": ["rm", "x"]}
    assert "gen_ai.tool.call.result" not in attributes
    assert "denylist" in str(attributes["corral.reason"])


def test_span_name_can_be_the_older_name(open_box: Sandbox, exported: Telemetry) -> None:
    attached(open_box, exported, span_name=OLDER_SPAN_NAME).run(["true"])
    assert (exported.named("gen_ai.tool.execution").attributes or {})["gen_ai.operation.name"] == "execute_tool"


@WAYS
def test_span_of_the_same_tool_is_reused(open_box: Sandbox, exported: Telemetry, way: str) -> None:
    attached(open_box, exported)
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "run_command"}
    with exported.tracers.get_tracer("host").start_as_current_span(
        "tools/call run_command", attributes=attributes
    ) as host:
        run_by(open_box, way, ["true"])
        assert host.is_recording()
    process, outer = exported.spans
    assert (process.name, outer.name) == ("true", "tools/call run_command")
    assert (outer.attributes or {})["corral.decision"] == "allow"
    assert process.parent is not None
    assert process.parent.span_id == host.get_span_context().span_id
    assert exported.points("gen_ai.execute_tool.duration") == []
    assert len(exported.points("corral.calls")) == 1


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "another"},
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.tool.name": "run_command"},
        {},
    ],
    ids=["another tool", "an agent", "anything"],
)
def test_any_other_current_span_is_the_parent(
    open_box: Sandbox, exported: Telemetry, attributes: dict[str, str]
) -> None:
    attached(open_box, exported)
    with exported.tracers.get_tracer("host").start_as_current_span("outer", attributes=attributes) as outer:
        open_box.run(["true"])
    tool = exported.named("execute_tool run_command")
    assert tool.parent is not None
    assert tool.parent.span_id == outer.get_span_context().span_id


def test_concurrent_tasks_keep_their_own_parents(open_box: Sandbox, exported: Telemetry) -> None:
    attached(open_box, exported)
    tracer = exported.tracers.get_tracer("host")

    async def task(number: int) -> None:
        with tracer.start_as_current_span(f"task {number}"):
            result = await open_box.arun(["sh", "-c", f"sleep 0.1; exit {number}"])
            assert result.exit_code == number
            assert trace.get_current_span().name == f"task {number}"  # type: ignore[attr-defined]

    async def all_of_them() -> None:
        await asyncio.gather(*(task(number) for number in range(20)))

    asyncio.run(all_of_them())
    by_id = {span.context.span_id: span for span in exported.spans if span.context is not None}
    processes = [span for span in exported.spans if span.kind is SpanKind.CLIENT]
    assert len(processes) == 20
    for process in processes:
        assert process.parent is not None
        tool = by_id[process.parent.span_id]
        assert tool.parent is not None
        assert by_id[tool.parent.span_id].name == f"task {(process.attributes or {})['process.exit.code']}"


def test_every_call_of_a_batch_has_a_span(open_box: Sandbox, exported: Telemetry) -> None:
    attached(open_box, exported)
    results = list(open_box.map([["true"], ["false"], ["true"]]))
    ids = {(span.attributes or {}).get("corral.result.id") for span in exported.spans if span.kind is SpanKind.INTERNAL}
    assert ids == {result.id for result in results}


def test_handle_driven_by_another_thread_keeps_its_parent(open_box: Sandbox, exported: Telemetry) -> None:
    attached(open_box, exported)
    with exported.tracers.get_tracer("host").start_as_current_span("asking") as asking:
        handle = open_box.start(["true"])
        assert trace.get_current_span() is asking
    thread = threading.Thread(target=handle.wait)
    thread.start()
    thread.join()
    tool = exported.named("execute_tool run_command")
    assert tool.parent is not None
    assert tool.parent.span_id == asking.get_span_context().span_id


def test_span_is_current_in_on_ask_and_on_output(sandbox: Callable[..., Sandbox], exported: Telemetry) -> None:
    box = attached(sandbox(profile="workspace"), exported)
    seen: list[str] = []
    box.on_ask = lambda call, verdict: not seen.append(trace.get_current_span().name)  # type: ignore[attr-defined]
    box.run("git reset --hard; echo x", shell=True, on_output=lambda *_: seen.append(trace.get_current_span().name))  # type: ignore[attr-defined]
    assert set(seen) == {"execute_tool run_command"}
    assert len(seen) >= 2


def test_run_inside_on_ask_has_its_own_span(sandbox: Callable[..., Sandbox], exported: Telemetry) -> None:
    box = attached(sandbox(profile="workspace"), exported)
    box.on_ask = lambda call, verdict: box.start(["true"]).wait().ok
    box.run("git reset --hard", shell=True)
    assert sorted(span.name for span in exported.spans if span.kind is SpanKind.CLIENT) == ["bash", "true"]


@pytest.mark.parametrize("gated", [False, True])
def test_cancelled_run_ends_its_span(open_box: Sandbox, exported: Telemetry, gated: bool) -> None:
    box = attached(GatedSandbox(open_box) if gated else open_box, exported)

    async def cancelled() -> None:
        runs = asyncio.Event()
        call = box.arun("echo x; sleep 60", shell=True, on_output=lambda name, data: runs.set())
        task = asyncio.create_task(call)
        await runs.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    process, tool = exported.spans
    attributes = tool.attributes or {}
    assert (attributes["error.type"], attributes["corral.decision"]) == ("cancelled", "allow")
    assert (process.attributes or {})["error.type"] == "SIGKILL"


def test_interrupted_run_ends_its_span(open_box: Sandbox, exported: Telemetry) -> None:
    def interrupt(name: str, data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attached(open_box, exported).run("echo x; sleep 60", shell=True, on_output=interrupt)
    assert (exported.named("execute_tool run_command").attributes or {})["error.type"] == "cancelled"


def test_dropped_handle_ends_its_span(open_box: Sandbox, exported: Telemetry) -> None:
    handle = attached(open_box, exported).start(["sleep", "60"])
    assert exported.spans == []
    del handle
    gc.collect()
    (tool,) = exported.spans
    assert (tool.attributes or {})["error.type"] == "abandoned"


def test_forked_child_does_not_report_runs_of_its_parent(open_box: Sandbox, exported: Telemetry) -> None:
    handle = attached(open_box, exported).start(["true"])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        handle = None
        gc.collect()
        os.write(write, bytes([len(exported.spans)]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"\0"
    os.close(read)
    os.close(write)
    handle.wait()
    assert len(exported.spans) == 2


def test_span_has_the_call_id_of_the_model(open_box: Sandbox, exported: Telemetry) -> None:
    attached(open_box, exported)
    with tool_call("call-7"):
        open_box.run(["true"])
    open_box.run(["true"])
    ids = [
        (span.attributes or {}).get("gen_ai.tool.call.id") for span in exported.spans if span.kind is SpanKind.INTERNAL
    ]
    assert ids == ["call-7", None]


@WAYS
def test_span_has_the_ruling_of_the_gates(open_box: Sandbox, exported: Telemetry, way: str) -> None:
    gates = Patterns(Pattern("no-word", "xyzzy", "It says the word."))
    gated = attached(GatedSandbox(open_box, gates, on_ruling=record_ruling), exported)
    result = run_by(gated, way, ["echo", "xyzzy"], call_id="call-9")
    assert result.denied
    (tool,) = exported.spans
    attributes = tool.attributes or {}
    assert (attributes["error.type"], attributes["corral.decision"]) == ("denied", "deny")
    assert (attributes["corral.gate"], attributes["corral.gate.rule"]) == ("patterns", "no-word")
    assert attributes["gen_ai.tool.call.id"] == "call-9"
    assert run_by(gated, way, ["true"]).ok
    assert len(exported.spans) == 3


def test_metrics_count_runs_with_the_duration_of_the_span(box: Sandbox, exported: Telemetry) -> None:
    attached(box, exported)
    result = box.run(["true"])
    box.run(["rm", "x"])
    durations = {point.attributes.get("error.type"): point for point in exported.points("gen_ai.execute_tool.duration")}
    assert set(durations) == {None, "denied"}
    spans = [span for span in exported.spans if span.kind is SpanKind.INTERNAL]
    for span in spans:
        point = durations[(span.attributes or {}).get("error.type")]
        assert point.count == 1
        assert point.sum == pytest.approx(((span.end_time or 0) - (span.start_time or 0)) / 1e9)
        assert point.explicit_bounds == labels.DURATION_BUCKETS
        assert (point.attributes["gen_ai.tool.name"], point.attributes["gen_ai.tool.type"]) == (
            "run_command",
            "function",
        )
    tool = ("gen_ai.tool.name", "run_command")
    assert exported.counts("corral.calls") == {
        (("corral.decision", "allow"), ("corral.enforcement", result.enforcement), tool): 1,
        (("corral.decision", "deny"), ("corral.enforcement", "none"), ("error.type", "denied"), tool): 1,
    }
    (finding,) = box.check(["rm", "x"]).findings[:1]
    assert exported.counts("corral.findings")[(("corral.decision", "deny"), ("corral.rule.id", finding.rule))] == 1


def test_unsampled_run_is_counted_without_attributes(open_box: Sandbox, exported: Telemetry) -> None:
    exporter = InMemorySpanExporter()
    unsampled = TracerProvider(sampler=ALWAYS_OFF)
    unsampled.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(open_box, unsampled, exported.meters)
    assert open_box.run(["true"]).ok
    assert exporter.get_finished_spans() == ()
    assert len(exported.points("corral.calls")) == 1


def test_failing_span_processor_loses_no_result(
    open_box: Sandbox, exported: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise ZeroDivisionError

    exported.tracers.add_span_processor(Failing())
    assert attached(open_box, exported).run(["echo", "hello"]).stdout == b"hello\n"
    assert "ZeroDivisionError" in caplog.text


def test_instrument_twice_adds_one_observer_and_remove_works(open_box: Sandbox, exported: Telemetry) -> None:
    first = instrument(open_box, exported.tracers, exported.meters)
    assert instrument(open_box, exported.tracers, exported.meters) is first
    open_box.run(["true"])
    assert len(exported.spans) == 2
    first.remove()
    open_box.run(["true"])
    assert len(exported.spans) == 2
    instrument(open_box, exported.tracers, exported.meters)
    open_box.run(["true"])
    assert len(exported.spans) == 4


def test_gated_sandbox_is_observed_without_its_inner_sandbox(open_box: Sandbox, exported: Telemetry) -> None:
    before = {*vars(open_box)}
    gated = GatedSandbox(open_box)
    instrumentation = instrument(gated, exported.tracers, exported.meters)
    assert open_box.run(["true"]).ok  # this call does not pass the gates, so it has no span
    assert exported.spans == []
    assert gated.run(["true"]).ok
    assert len(exported.spans) == 2
    instrumentation.remove()
    assert gated.run(["true"]).ok
    assert len(exported.spans) == 2
    assert {*vars(open_box)} == before


def test_other_sandboxes_are_not_observed(open_sandbox: Callable[..., Sandbox], exported: Telemetry) -> None:
    attached(open_sandbox(), exported)
    assert open_sandbox().run(["true"]).ok
    assert exported.spans == []


def test_results_are_unchanged_without_a_provider(open_box: Sandbox) -> None:
    instrument(open_box)
    assert open_box.run(["echo", "hello"]).stdout == b"hello\n"
    assert asyncio.run(open_box.arun(["echo", "hello"])).ok


def test_core_does_not_load_opentelemetry() -> None:
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); import corral, corral.sandbox, corral.integrations.gates\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
        "try:\n    import corral.integrations.telemetry.otel\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("corral[otel] needs the Python package opentelemetry")
    assert done.stdout.endswith("pip install 'corral[otel]'\n")


MCP_PROGRAM = """
import asyncio, sys
from mcp import Client
from mcp.server import MCPServer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from corral import Sandbox, SandboxConfig
from corral.integrations.telemetry.otel import instrument

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
server = MCPServer("corral")

async def main():
    with Sandbox(SandboxConfig(project_root=sys.argv[1])) as box:
        instrument(box)

        @server.tool()
        async def run_command(argv: list[str]) -> str:
            return (await box.arun(argv)).stdout_text

        async with Client(server) as client:
            await client.call_tool("run_command", {"argv": ["echo", "hello"]})

asyncio.run(main())
spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
for span in spans.values():
    if "corral.decision" in span.attributes or span.name == "echo":
        print(span.name, spans[span.parent.span_id].name if span.name == "echo" else "", sep="|")
print(sum(span.attributes.get("gen_ai.operation.name") == "execute_tool" and span.kind.name != "CLIENT" for span in spans.values()))
"""


def test_span_of_an_mcp_server_is_reused(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MCP_PROGRAM, str(project)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["echo|tools/call run_command", "tools/call run_command|", "1"]
