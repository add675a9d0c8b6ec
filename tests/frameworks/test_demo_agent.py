"""Runs `corral demo agent` from end to end: the agent is refused, follows the alternatives, and the tests pass."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from corral.apps.agentdemo.model import BY_KEY, DETERMINISTIC, name_for
from corral.apps.agentdemo.run_agent import OWNERS_TESTS, Report, run_demo
from corral.integrations.gates import Pattern

REFUSALS = [
    ("sandbox", "name-sudo"),
    ("sandbox", "argv-pip-install"),
    ("budget", "gate-budget-total"),
    ("patterns", "owners-tests"),
    ("recency", "gate-unread"),
    ("sandbox", "path-write-outside"),
]

TIMES = re.compile(r" +[0-9.]+ m?s(?=  )")


def demo(place: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the demo with its own home, user directories and temporary directory."""
    keys = (*BY_KEY, "MSWEA_MODEL_NAME", "MSWEA_GLOBAL_CONFIG_DIR", "MSWEA_SILENT_STARTUP")
    env = {name: value for name, value in os.environ.items() if name not in keys}
    for name in ("home", "config", "state", "cache", "tmp"):
        (place / name).mkdir()
    env |= {f"XDG_{kind.upper()}_HOME": str(place / kind) for kind in ("config", "state", "cache")}
    env |= {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp"), **environ}
    command = [sys.executable, "-m", "corral", "demo", "agent", *arguments]
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def outcome(place: Path) -> dict[str, Any]:
    done = demo(place, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_demo_leaves_no_files(outcome: dict[str, Any], place: Path) -> None:
    assert [path for path in place.rglob("*") if not path.is_dir() or path.parent != place] == []


def test_demo_ends_with_passing_tests_and_one_changed_line(outcome: dict[str, Any]) -> None:
    assert (outcome["model"], outcome["ending"], outcome["problems"]) == (DETERMINISTIC, "Submitted", [])
    assert outcome["tests"] == {"exit_code": 0, "enforcement": "full"}
    assert outcome["submission"].rstrip().endswith("OK")
    assert [line for line in outcome["diff"] if line[:1] in "+-"] == [
        "--- shares/split.py",
        "+++ shares/split.py",
        "-    return [cents // people] * people",
        "+    return [(cents + n) // people for n in range(people)]",
    ]


def test_demo_is_refused_by_several_gates_and_axes(outcome: dict[str, Any]) -> None:
    refused = [step for step in outcome["steps"] if step["denied"]]
    assert [(step["gate"], step["rule"]) for step in refused] == REFUSALS
    assert all(step["reason"] and step["instead"] for step in refused)


def test_trace_nests_calls_below_agent_and_processes_below(outcome: dict[str, Any]) -> None:
    root, *rest = outcome["spans"]
    assert (root["name"], root["parent"]) == ("invoke_agent mini-swe-agent", "")
    tools = [span for span in rest if span["name"] == "execute_tool bash"]
    assert {span["parent"] for span in tools} == {root["id"]}
    assert [span["attributes"]["corral.denied"] for span in tools] == [step["denied"] for step in outcome["steps"]]
    assert [span["attributes"]["corral.result.id"] for span in tools] == [
        step["result_id"] for step in outcome["steps"]
    ]
    assert [span["attributes"]["gen_ai.tool.call.id"] for span in tools] == [
        f"call-{n}" for n in range(1, len(tools) + 1)
    ]
    ran = [span["id"] for span in tools if not span["attributes"]["corral.denied"]]
    assert [span["parent"] for span in rest if "process.exit.code" in span["attributes"]] == ran
    assert [
        (span["attributes"]["corral.gate"], span["attributes"]["corral.gate.rule"])
        for span in tools
        if span["id"] not in ran
    ] == REFUSALS


def test_log_has_every_call_and_every_ruling(outcome: dict[str, Any]) -> None:
    # The demo itself runs the tests once at the end.
    assert outcome["log"] == {"lines": 2 * len(outcome["steps"]) + 1, "problems": []}


def test_page_shows_the_output_of_the_demo(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "docs" / "agent-demo.md").read_text()
    (shown,) = re.findall(r"```text\n( 6  .*?)```", readme, re.DOTALL)
    seen = TIMES.sub("N ms", demo(tmp_path, COLUMNS="100").stderr)
    for part in TIMES.sub("N ms", shown).split("…\n"):
        assert part in seen


def test_terminal_output_has_each_step_and_the_tree(tmp_path: Path) -> None:
    done = demo(tmp_path, COLUMNS="80")
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert sum(line.startswith("    ✗ refused by the ") for line in lines) == len(REFUSALS)
    assert "      instead  Change shares/split.py instead." in lines
    tree = [line for line in lines if line.startswith(("  ├─ execute_tool bash", "  └─ execute_tool bash"))]
    assert len(tree) == 12
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "every outcome is as expected"
    assert "\x1b" not in done.stderr


def run_with(instead: str) -> Report:
    return run_demo(DETERMINISTIC, lambda _: None, OWNERS_TESTS.replace(instead=instead))


def test_agent_follows_another_alternative() -> None:
    report = run_with("Change README.md instead.")
    commands = [step.command for step in report.steps]
    assert [command for command in commands if command.startswith("sed") and command.endswith(" README.md")]
    assert not [command for command in commands if command.endswith("shares/split.py")]
    assert report.problems == ("the tests are red",)


def test_agent_gives_up_without_a_known_alternative() -> None:
    report = run_with("Think again.")
    assert (report.ending, report.steps[-1].ruling.gate) == ("GaveUp", "patterns")
    assert report.problems == ("the agent ended with GaveUp", "the tests are red")


def test_without_the_gate_the_agent_changes_the_tests() -> None:
    harmless = Pattern("no-such-words", "no such words", "It never is.")
    report = run_demo(DETERMINISTIC, lambda _: None, harmless)
    assert "the tests were changed" in report.problems


@pytest.mark.parametrize(
    ("wanted", "environ", "name"),
    [
        ("", {}, DETERMINISTIC),
        ("", {"ANTHROPIC_API_KEY": ""}, DETERMINISTIC),
        ("", {"OPENAI_API_KEY": "k"}, BY_KEY["OPENAI_API_KEY"]),
        ("", {"OPENAI_API_KEY": "k", "MSWEA_MODEL_NAME": "openai/x"}, "openai/x"),
        (DETERMINISTIC, {"OPENAI_API_KEY": "k"}, DETERMINISTIC),
    ],
)
def test_api_key_in_the_environment_selects_a_real_model(wanted: str, environ: dict[str, str], name: str) -> None:
    assert name_for(wanted, environ) == name


class Service:
    """A server with OpenAI's API on the loopback that answers with a fixed sequence of commands."""

    def __init__(self, *commands: str) -> None:
        self.asked: list[Any] = []
        asked, pending = self.asked, list(commands)

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                body = json.dumps(answer(pending.pop(0)) if pending else {"error": {"message": "no such key"}}).encode()
                self.send_response(200 if b"choices" in body else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def answer(command: str) -> dict[str, Any]:
    call = {"name": "bash", "arguments": json.dumps({"command": command})}
    message = {
        "role": "assistant",
        "content": "I try.",
        "tool_calls": [{"id": "call_x", "type": "function", "function": call}],
    }
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    service = Service(*getattr(request, "param", ()))
    yield service
    service.close()


MENDING = (
    "sudo id",
    "env; cat shares/split.py",
    "sed -i 's|[[]cents // people[]] [*] people|[(cents + n) // people for n in range(people)]|' shares/split.py",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)


@pytest.mark.parametrize("service", [MENDING], indirect=True)
def test_key_of_a_real_model_reaches_no_command(tmp_path: Path, service: Service) -> None:
    done = demo(tmp_path, "--json", OPENAI_API_KEY="sk-not-a-key", OPENAI_BASE_URL=service.url)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["model"], outcome["ending"], outcome["problems"]) == (BY_KEY["OPENAI_API_KEY"], "Submitted", [])
    shown = [message["content"] for message in service.asked[-1]["messages"] if message["role"] == "tool"]
    assert "Run the command without it" in shown[0]
    assert "PATH=" in shown[1]
    assert "sk-not-a-key" not in json.dumps(service.asked)


def test_error_of_the_service_is_one_line(tmp_path: Path, service: Service) -> None:
    done = demo(tmp_path, OPENAI_API_KEY="sk-not-a-key", OPENAI_BASE_URL=service.url)
    assert (done.returncode, done.stdout) == (125, "")
    assert f"the model {BY_KEY['OPENAI_API_KEY']} could not be used" in done.stderr
    assert "--model deterministic needs no network" in done.stderr
