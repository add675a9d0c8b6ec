"""Sends spans by OTLP to a real collector, Arize Phoenix, and reads them back. `make test-collector` runs it."""

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import corral
from corral import Sandbox
from corral.integrations.gates import GatedSandbox, Pattern, Patterns
from corral.integrations.telemetry.otel import instrument, record_ruling, tool_call

PHOENIX = Path(corral.__file__).parents[2] / ".venv-collector" / "bin" / "phoenix"
START_SECONDS = 120


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def eventually(condition: Callable[[], object], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition never came to hold"
        time.sleep(0.1)


def answer(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as found:
            return json.loads(found.read() or b"null")
    except (OSError, ValueError):
        return None


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("phoenix")
    port = free_port()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "PHOENIX_WORKING_DIR": str(place),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    url = f"http://127.0.0.1:{port}"
    with (
        (place / "log").open("w") as log,
        subprocess.Popen([PHOENIX, "serve"], env=env, stdout=log, stderr=log) as server,
    ):
        try:
            eventually(lambda: answer(f"{url}/v1/projects") is not None or server.poll() is not None, START_SECONDS)
            assert server.poll() is None, (place / "log").read_text()
            yield url
        finally:
            server.terminate()
            server.wait(30)


def test_phoenix_returns_spans_of_runs_and_refusals(open_box: Sandbox, phoenix: str) -> None:
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{phoenix}/v1/traces")))
    prod = Pattern("no-production", "prod", "It names production.", "Use staging.")
    box = GatedSandbox(open_box, Patterns(prod), on_ruling=record_ruling)
    instrument(box, tracers)
    with tracers.get_tracer("agent").start_as_current_span("invoke_agent tester"), tool_call("call-7"):
        ran = box.run("echo hello; exit 3", shell=True)
        refused = box.run(["echo", "prod"])
    tracers.shutdown()

    def spans() -> list[dict[str, Any]]:
        found = answer(f"{phoenix}/v1/projects/default/spans?limit=100")
        return found["data"] if found else []

    eventually(lambda: len(spans()) == 4, 60)
    by_id = {span["context"]["span_id"]: span for span in spans()}
    tree = sorted((span["name"], by_id.get(span["parent_id"], {}).get("name", "")) for span in by_id.values())
    assert tree == [
        ("bash", "execute_tool run_command"),
        ("execute_tool run_command", "invoke_agent tester"),
        ("execute_tool run_command", "invoke_agent tester"),
        ("invoke_agent tester", ""),
    ]
    tools = {
        span["attributes"]["corral.result.id"]: span for span in by_id.values() if span["name"].startswith("execute")
    }
    assert (tools[ran.id]["status_code"], tools[refused.id]["status_code"]) == ("UNSET", "ERROR")
    told = tools[refused.id]["attributes"]
    assert (told["corral.gate"], told["corral.gate.rule"], told["error.type"], told["gen_ai.tool.call.id"]) == (
        "patterns",
        "no-production",
        "denied",
        "call-7",
    )
