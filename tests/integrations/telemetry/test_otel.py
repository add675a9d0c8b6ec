"""Spans and metrics of runs, as the in-memory exporter and reader of OpenTelemetry's SDK see them."""

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
from corral.integrations.telemetry import labels as telemetry
from corral.integrations.telemetry import otel_attributes as telemetry_content
from corral.integrations.telemetry.otel import CONTENT_SWITCH, OLDER_SPAN_NAME, instrument, record_ruling, tool_call

WAYS = pytest.mark.parametrize("way", ["run", "arun", "start", "astart"])
TOKEN = "ghp_" + "abcdefghij0123456789"
PAGE = (Path(corral.__file__).parents[2] / "docs" / "telemetry.md").read_text()
SOURCE = str(Path(corral.__file__).parents[1])


class Telemetry:
    """Providers of a test's own, and what arrived at them."""

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
def told() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.tracers.shutdown()
    telemetry.meters.shutdown()


@pytest.fixture(autouse=True)
def _switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTENT_SWITCH, raising=False)


def attached(box: Any, told: Telemetry, **settings: Any) -> Any:
    instrument(box, told.tracers, told.meters, **settings)
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
def test_a_run_is_a_tools_span_with_the_process_below(open_box: Sandbox, told: Telemetry, way: str) -> None:
    result = run_by(attached(open_box, told), way, ["echo", "hello"])
    process, tool = told.spans
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
def test_a_refused_call_is_an_error_of_the_tool_without_a_process(box: Sandbox, told: Telemetry, way: str) -> None:
    result = run_by(attached(box, told), way, ["rm", "x"])
    (tool,) = told.spans
    attributes = dict(tool.attributes or {})
    rules = tuple(finding.rule for finding in result.verdict.findings)
    assert tool.status.status_code == StatusCode.ERROR
    assert attributes["error.type"] == "denied"
    assert (attributes["corral.decision"], attributes["corral.denied"]) == ("deny", True)
    assert attributes["corral.rule.id"] in rules
    assert set(attributes["corral.rule.ids"]) == set(rules)  # type: ignore[arg-type]
    assert "corral.reason" not in attributes


@WAYS
def test_an_exit_code_is_an_error_of_the_process_alone(open_box: Sandbox, told: Telemetry, way: str) -> None:
    run_by(attached(open_box, told), way, "exit 3", shell=True)
    process, tool = told.spans
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
def test_the_classes_of_error(
    open_sandbox: Callable[..., Sandbox],
    told: Telemetry,
    text: str,
    settings: dict[str, Any],
    errors: tuple[str | None, str],
) -> None:
    attached(open_sandbox(**settings), told).run(text, shell=True)
    process, tool = told.spans
    assert tuple((span.attributes or {}).get("error.type") for span in (tool, process)) == errors


@WAYS
def test_a_call_that_cannot_be_held_says_so(sandbox: Callable[..., Sandbox], told: Telemetry, way: str) -> None:
    box = attached(sandbox(), told)
    box.close()
    with pytest.raises(ContainmentError):
        run_by(box, way, ["true"])
    assert [(span.attributes or {})["error.type"] for span in told.spans] == ["sandbox_unavailable"]


def test_a_call_without_a_process_says_so(open_box: Sandbox, told: Telemetry) -> None:
    assert attached(open_box, told).run(["no-such-program-here"]).exit_code == 127
    (tool,) = told.spans
    assert (tool.attributes or {})["error.type"] == "not_started"


def test_violations_and_truncation_are_told_by_kind(open_sandbox: Callable[..., Sandbox], told: Telemetry) -> None:
    box = attached(open_sandbox(max_output_bytes=200), told)
    text = """seq 1000; python3 -c 'import socket; socket.create_connection(("192.0.2.7", 80))'"""
    result = box.run(text, shell=True)
    assert [violation.kind for violation in result.violations] == ["network"]
    attributes = told.named("execute_tool run_command").attributes or {}
    assert (attributes["corral.violations"], attributes["corral.truncated"]) == (("network",), True)
    assert told.counts("corral.violations") == {(("corral.violation.kind", "network"),): 1}


def test_every_class_of_error_is_documented() -> None:
    assert [kind for kind in telemetry.ERROR_TYPES if f"`{kind}`" not in PAGE] == []


@pytest.mark.parametrize("program", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL), ids=["otel", "prometheus"])
def test_the_pages_programs_run(program: str, project: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("value", ["", "false", "NO_CONTENT", "EVENT_ONLY", "yes please"])
def test_without_the_switch_nothing_of_the_call_is_told(
    open_box: Sandbox, box: Sandbox, told: Telemetry, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(CONTENT_SWITCH, value)
    attached(open_box, told).run("echo marker-out; echo marker-err >&2; cat marker-path", shell=True)
    attached(box, told).run(["rm", "marker-operand"])
    assert len(told.spans) == 3
    assert "marker" not in "".join(span.to_json() for span in told.spans)


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "span_and_event"])
def test_with_the_switch_arguments_and_output_are_told_without_secrets(
    open_box: Sandbox, told: Telemetry, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(CONTENT_SWITCH, value)
    attached(open_box, told).run(f"echo out {TOKEN}; echo err >&2", shell=True)
    process, tool = told.spans
    attributes = tool.attributes or {}
    given, got = (json.loads(str(attributes[f"gen_ai.tool.call.{name}"])) for name in ("arguments", "result"))
    assert given["command"].startswith("echo out ")
    assert (got["exit_code"], got["stdout"].split()[0], got["stderr"]) == (0, "out", "err\n")
    assert (process.attributes or {})["process.command_args"] == (given["command"],)
    assert TOKEN not in "".join(span.to_json() for span in told.spans)


def test_a_setting_goes_before_the_switch(box: Sandbox, told: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTENT_SWITCH, "true")
    attached(box, told, capture_content=False).run(["rm", "marker"])
    assert "marker" not in told.spans[0].to_json()


def test_content_is_bounded(open_box: Sandbox, told: Telemetry) -> None:
    attached(open_box, told, capture_content=True).run(["echo", "x" * 100_000])
    assert max(len(str(value)) for span in told.spans for value in (span.attributes or {}).values()) < 60_000


@pytest.mark.parametrize("argv", [["echo", "x" * 100_000], ["echo", *"x" * 4_000], ["echo", *["x" * 9000] * 9]])
def test_arguments_that_are_cut_are_still_json(open_box: Sandbox, told: Telemetry, argv: list[str]) -> None:
    attached(open_box, told, capture_content=True).run(argv)
    process, tool = told.spans
    kept = json.loads(str((tool.attributes or {})["gen_ai.tool.call.arguments"]))["argv"]
    assert list((process.attributes or {})["process.command_args"]) == kept  # type: ignore[arg-type]
    assert kept[:-1] == argv[: len(kept) - 1]
    assert 16_000 < sum(map(len, kept)) + 4 * len(kept) < 17_000


def test_a_secret_that_the_cut_divides_is_not_told(open_box: Sandbox, told: Telemetry) -> None:
    fill = telemetry_content.MAX_CONTENT - len(TOKEN) // 2
    attached(open_box, told, capture_content=True).run(f"printf %{fill}s; echo {TOKEN}", shell=True)
    printed = json.loads(str((told.spans[1].attributes or {})["gen_ai.tool.call.result"]))["stdout"]
    assert len(printed) == telemetry_content.MAX_CONTENT
    assert TOKEN[:8] not in printed


def test_what_was_refused_has_no_result(box: Sandbox, told: Telemetry) -> None:
    attached(box, told, capture_content=True).run(["rm", "x"])
    attributes = told.spans[0].attributes or {}
    assert json.loads(str(attributes["gen_ai.tool.call.arguments"])) == {"argv": ["rm", "x"]}
    assert "gen_ai.tool.call.result" not in attributes
    assert "denylist" in str(attributes["corral.reason"])


def test_the_older_name_is_a_setting(open_box: Sandbox, told: Telemetry) -> None:
    attached(open_box, told, span_name=OLDER_SPAN_NAME).run(["true"])
    assert (told.named("gen_ai.tool.execution").attributes or {})["gen_ai.operation.name"] == "execute_tool"


@WAYS
def test_a_span_of_the_same_tool_is_enriched_and_not_doubled(open_box: Sandbox, told: Telemetry, way: str) -> None:
    attached(open_box, told)
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "run_command"}
    with told.tracers.get_tracer("host").start_as_current_span("tools/call run_command", attributes=attributes) as host:
        run_by(open_box, way, ["true"])
        assert host.is_recording()
    process, outer = told.spans
    assert (process.name, outer.name) == ("true", "tools/call run_command")
    assert (outer.attributes or {})["corral.decision"] == "allow"
    assert process.parent is not None
    assert process.parent.span_id == host.get_span_context().span_id
    assert told.points("gen_ai.execute_tool.duration") == []
    assert len(told.points("corral.calls")) == 1


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "another"},
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.tool.name": "run_command"},
        {},
    ],
    ids=["another tool", "an agent", "anything"],
)
def test_any_other_span_is_the_parent(open_box: Sandbox, told: Telemetry, attributes: dict[str, str]) -> None:
    attached(open_box, told)
    with told.tracers.get_tracer("host").start_as_current_span("outer", attributes=attributes) as outer:
        open_box.run(["true"])
    tool = told.named("execute_tool run_command")
    assert tool.parent is not None
    assert tool.parent.span_id == outer.get_span_context().span_id


def test_tasks_that_run_at_once_each_have_their_own_parent(open_box: Sandbox, told: Telemetry) -> None:
    attached(open_box, told)
    tracer = told.tracers.get_tracer("host")

    async def task(number: int) -> None:
        with tracer.start_as_current_span(f"task {number}"):
            result = await open_box.arun(["sh", "-c", f"sleep 0.1; exit {number}"])
            assert result.exit_code == number
            assert trace.get_current_span().name == f"task {number}"  # type: ignore[attr-defined]

    async def all_of_them() -> None:
        await asyncio.gather(*(task(number) for number in range(20)))

    asyncio.run(all_of_them())
    by_id = {span.context.span_id: span for span in told.spans if span.context is not None}
    processes = [span for span in told.spans if span.kind is SpanKind.CLIENT]
    assert len(processes) == 20
    for process in processes:
        assert process.parent is not None
        tool = by_id[process.parent.span_id]
        assert tool.parent is not None
        assert by_id[tool.parent.span_id].name == f"task {(process.attributes or {})['process.exit.code']}"


def test_every_call_of_a_batch_has_a_span(open_box: Sandbox, told: Telemetry) -> None:
    attached(open_box, told)
    results = list(open_box.map([["true"], ["false"], ["true"]]))
    ids = {(span.attributes or {}).get("corral.result.id") for span in told.spans if span.kind is SpanKind.INTERNAL}
    assert ids == {result.id for result in results}


def test_a_handle_that_another_thread_drives_keeps_its_parent(open_box: Sandbox, told: Telemetry) -> None:
    attached(open_box, told)
    with told.tracers.get_tracer("host").start_as_current_span("asking") as asking:
        handle = open_box.start(["true"])
        assert trace.get_current_span() is asking
    thread = threading.Thread(target=handle.wait)
    thread.start()
    thread.join()
    tool = told.named("execute_tool run_command")
    assert tool.parent is not None
    assert tool.parent.span_id == asking.get_span_context().span_id


def test_the_span_is_current_for_who_is_asked_and_for_who_listens(
    sandbox: Callable[..., Sandbox], told: Telemetry
) -> None:
    box = attached(sandbox(profile="workspace"), told)
    seen: list[str] = []
    box.on_ask = lambda call, verdict: not seen.append(trace.get_current_span().name)  # type: ignore[attr-defined]
    box.run("git reset --hard; echo x", shell=True, on_output=lambda *_: seen.append(trace.get_current_span().name))  # type: ignore[attr-defined]
    assert set(seen) == {"execute_tool run_command"}
    assert len(seen) >= 2


def test_a_run_inside_a_question_has_a_span_of_its_own(sandbox: Callable[..., Sandbox], told: Telemetry) -> None:
    box = attached(sandbox(profile="workspace"), told)
    box.on_ask = lambda call, verdict: box.start(["true"]).wait().ok
    box.run("git reset --hard", shell=True)
    assert sorted(span.name for span in told.spans if span.kind is SpanKind.CLIENT) == ["bash", "true"]


@pytest.mark.parametrize("gated", [False, True])
def test_a_cancelled_run_says_so_and_ends(open_box: Sandbox, told: Telemetry, gated: bool) -> None:
    box = attached(GatedSandbox(open_box) if gated else open_box, told)

    async def cancelled() -> None:
        runs = asyncio.Event()
        call = box.arun("echo x; sleep 60", shell=True, on_output=lambda name, data: runs.set())
        task = asyncio.create_task(call)
        await runs.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    process, tool = told.spans
    attributes = tool.attributes or {}
    assert (attributes["error.type"], attributes["corral.decision"]) == ("cancelled", "allow")
    assert (process.attributes or {})["error.type"] == "SIGKILL"


def test_an_interrupted_run_says_so_and_ends(open_box: Sandbox, told: Telemetry) -> None:
    def interrupt(name: str, data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attached(open_box, told).run("echo x; sleep 60", shell=True, on_output=interrupt)
    assert (told.named("execute_tool run_command").attributes or {})["error.type"] == "cancelled"


def test_a_handle_that_is_dropped_ends_its_span(open_box: Sandbox, told: Telemetry) -> None:
    handle = attached(open_box, told).start(["sleep", "60"])
    assert told.spans == []
    del handle
    gc.collect()
    (tool,) = told.spans
    assert (tool.attributes or {})["error.type"] == "abandoned"


def test_a_fork_does_not_tell_of_its_parents_runs(open_box: Sandbox, told: Telemetry) -> None:
    handle = attached(open_box, told).start(["true"])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        handle = None
        gc.collect()
        os.write(write, bytes([len(told.spans)]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"\0"
    os.close(read)
    os.close(write)
    handle.wait()
    assert len(told.spans) == 2


def test_the_models_id_of_a_call_is_told(open_box: Sandbox, told: Telemetry) -> None:
    attached(open_box, told)
    with tool_call("call-7"):
        open_box.run(["true"])
    open_box.run(["true"])
    ids = [(span.attributes or {}).get("gen_ai.tool.call.id") for span in told.spans if span.kind is SpanKind.INTERNAL]
    assert ids == ["call-7", None]


@WAYS
def test_gates_are_told_on_the_span(open_box: Sandbox, told: Telemetry, way: str) -> None:
    gates = Patterns(Pattern("no-word", "xyzzy", "It says the word."))
    gated = attached(GatedSandbox(open_box, gates, on_ruling=record_ruling), told)
    result = run_by(gated, way, ["echo", "xyzzy"], call_id="call-9")
    assert result.denied
    (tool,) = told.spans
    attributes = tool.attributes or {}
    assert (attributes["error.type"], attributes["corral.decision"]) == ("denied", "deny")
    assert (attributes["corral.gate"], attributes["corral.gate.rule"]) == ("patterns", "no-word")
    assert attributes["gen_ai.tool.call.id"] == "call-9"
    assert run_by(gated, way, ["true"]).ok
    assert len(told.spans) == 3


def test_runs_are_counted_and_their_duration_is_that_of_the_span(box: Sandbox, told: Telemetry) -> None:
    attached(box, told)
    result = box.run(["true"])
    box.run(["rm", "x"])
    durations = {point.attributes.get("error.type"): point for point in told.points("gen_ai.execute_tool.duration")}
    assert set(durations) == {None, "denied"}
    spans = [span for span in told.spans if span.kind is SpanKind.INTERNAL]
    for span in spans:
        point = durations[(span.attributes or {}).get("error.type")]
        assert point.count == 1
        assert point.sum == pytest.approx(((span.end_time or 0) - (span.start_time or 0)) / 1e9)
        assert point.explicit_bounds == telemetry.DURATION_BUCKETS
        assert (point.attributes["gen_ai.tool.name"], point.attributes["gen_ai.tool.type"]) == (
            "run_command",
            "function",
        )
    tool = ("gen_ai.tool.name", "run_command")
    assert told.counts("corral.calls") == {
        (("corral.decision", "allow"), ("corral.enforcement", result.enforcement), tool): 1,
        (("corral.decision", "deny"), ("corral.enforcement", "none"), ("error.type", "denied"), tool): 1,
    }
    (finding,) = box.check(["rm", "x"]).findings[:1]
    assert told.counts("corral.findings")[(("corral.decision", "deny"), ("corral.rule.id", finding.rule))] == 1


def test_a_span_that_is_not_sampled_costs_no_attributes_and_is_counted(open_box: Sandbox, told: Telemetry) -> None:
    exporter = InMemorySpanExporter()
    unsampled = TracerProvider(sampler=ALWAYS_OFF)
    unsampled.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(open_box, unsampled, told.meters)
    assert open_box.run(["true"]).ok
    assert exporter.get_finished_spans() == ()
    assert len(told.points("corral.calls")) == 1


def test_a_span_processor_that_fails_loses_no_result(
    open_box: Sandbox, told: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise ZeroDivisionError

    told.tracers.add_span_processor(Failing())
    assert attached(open_box, told).run(["echo", "hello"]).stdout == b"hello\n"
    assert "could not be told" in caplog.text


def test_what_is_attached_is_attached_once_and_comes_off(open_box: Sandbox, told: Telemetry) -> None:
    first = instrument(open_box, told.tracers, told.meters)
    assert instrument(open_box, told.tracers, told.meters) is first
    open_box.run(["true"])
    assert len(told.spans) == 2
    first.remove()
    open_box.run(["true"])
    assert len(told.spans) == 2
    instrument(open_box, told.tracers, told.meters)
    open_box.run(["true"])
    assert len(told.spans) == 4


def test_what_is_attached_to_a_gated_sandbox_comes_off_both(open_box: Sandbox, told: Telemetry) -> None:
    before = {*vars(open_box)}
    gated = GatedSandbox(open_box)
    instrumentation = instrument(gated, told.tracers, told.meters)
    assert open_box.run(["true"]).ok  # not through the gates, and not told
    assert told.spans == []
    assert gated.run(["true"]).ok
    assert len(told.spans) == 2
    instrumentation.remove()
    assert gated.run(["true"]).ok
    assert len(told.spans) == 2
    assert {*vars(open_box)} == before


def test_other_sandboxes_stay_as_they_are(open_sandbox: Callable[..., Sandbox], told: Telemetry) -> None:
    attached(open_sandbox(), told)
    assert open_sandbox().run(["true"]).ok
    assert told.spans == []


def test_without_a_provider_nothing_changes(open_box: Sandbox) -> None:
    instrument(open_box)
    assert open_box.run(["echo", "hello"]).stdout == b"hello\n"
    assert asyncio.run(open_box.arun(["echo", "hello"])).ok


def test_the_core_does_not_load_it_and_it_says_which_extra_is_missing() -> None:
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); import corral, corral.sandbox, corral.integrations.gates\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
        "try:\n    import corral.integrations.telemetry.otel\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("corral[otel] needs the Python package opentelemetry, which is not installed. Run: ")
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


def test_under_an_mcp_server_its_own_span_is_enriched(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MCP_PROGRAM, str(project)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["echo|tools/call run_command", "tools/call run_command|", "1"]
