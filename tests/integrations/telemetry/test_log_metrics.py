"""The audit log as metrics, and runs of the command line as spans."""

import subprocess
import sys
from pathlib import Path

import pytest
from machines import environment, run_corral
from prometheus_client.parser import text_string_to_metric_families

from corral.integrations.telemetry.log_metrics import text_of

ENTRIES = [
    {"event": "hook", "host": "claude", "decision": "deny", "findings": [{"rule": "name-sudo", "axis": "name"}]},
    {
        "event": "run",
        "decision": "allow",
        "findings": [],
        "result": {"enforcement": "full", "duration_ms": 1500.0, "timed_out": True, "violations": [{"kind": "path"}]},
    },
    {"event": "run", "decision": 'a"b\\c\n', "findings": "damaged", "result": "damaged"},
    {"event": "note"},
]


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_entries_are_counted() -> None:
    assert samples(text_of(ENTRIES)) == {
        ("corral_log_calls", ("hook", "claude", "deny", "")): 1,
        ("corral_log_calls", ("run", "", "allow", "full")): 1,
        ("corral_log_calls", ("run", "", 'a"b\\c\n', "")): 1,
        ("corral_log_findings", ("name-sudo",)): 1,
        ("corral_log_violations", ("path",)): 1,
        ("corral_log_timeouts", ()): 1,
        ("corral_log_seconds", ()): 1.5,
    }


def test_parallel_writers_leave_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "corral.prom"
    command = [sys.executable, "-m", "corral", "log", "--metrics", str(file)]
    writers = [subprocess.Popen(command, cwd=tmp_path, env=environment()) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    assert ("corral_log_seconds", ()) in samples(file.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["corral.prom"]
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "words", [["--metrics", "notes.txt"], ["--metrics", "-", "--json"], ["verify", "--metrics", "-"]]
)
def test_wrong_use_is_refused(words: list[str], tmp_path: Path) -> None:
    assert run_corral("log", *words, cwd=tmp_path).returncode == 125


@pytest.mark.usefixtures("held")
def test_run_under_opentelemetrys_launcher_makes_spans(project: Path) -> None:
    program = (
        "import sys\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
        "spans = InMemorySpanExporter()\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(spans))\n"
        "trace.set_tracer_provider(provider)\n"
        "from corral.apps.cli.verbs.run import run_call\n"
        "from corral.apps.cli.arguments import parse\n"
        "run_call(parse(['run', '--no-ask', '--', 'true']))\n"
        "print([span.name for span in spans.get_finished_spans()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout == "['true', 'execute_tool run_command']\n", done.stderr
