"""Parts of the agent demo without the agent: the repository, the advice in refusals, the tree of a trace."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from corral import Sandbox
from corral._lib.terminal import Terminal, columns
from corral.apps.agentdemo import repository
from corral.apps.agentdemo.advice import FIX, PLAN, Turn, refusal_in, turns_after
from corral.apps.agentdemo.trace import spans_of, tree_text
from corral.integrations.extras import install_command
from corral.integrations.gates import GatedSandbox, ToolAllowlist
from corral.integrations.telemetry.otel import instrument, record_ruling

REFUSED = Turn("…", "sudo cat notes.txt > /srv/x.txt")


def is_green(root: Path) -> bool:
    command = [sys.executable, "-m", "unittest", "-q"]
    return subprocess.run(command, cwd=root, capture_output=True, check=False, timeout=60).returncode == 0


def test_repository_fails_its_tests_until_it_is_fixed(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    repository.write(str(root))
    assert not is_green(root)
    assert list(repository.changes(str(root))) == []
    subprocess.run(["sed", "-i", FIX, "shares/split.py"], cwd=root, check=True, timeout=60)
    assert is_green(root)
    assert [line[:1] for line in repository.changes(str(root))] == ["-", "+", "@", "-", "+"]


def test_missing_file_is_a_change(tmp_path: Path) -> None:
    repository.write(str(tmp_path / "repository"))
    (tmp_path / "repository" / "README.md").unlink()
    assert "-# shares" in list(repository.changes(str(tmp_path / "repository")))


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ("a.py exists. Read lib/a.py first, then change it.", ["cat lib/a.py", REFUSED.command]),
        ("It changed. Read lib/b.py again, then decide again.", ["cat lib/b.py", REFUSED.command]),
        ("They are the user's. Change lib/c.py instead.", [f"sed -i '{FIX}' lib/c.py"]),
        ("Too much. Ask for less: a part of the file.", ["sudo head -n 3 notes.txt > /srv/x.txt"]),
        ("It is denied. Run the command without it; …", ["cat notes.txt > /srv/x.txt"]),
        ("It is outside. Write inside the project.", ["sudo cat notes.txt > x.txt"]),
        ("It installs. Use what is installed, or ask the user.", []),
    ],
)
def test_next_commands_come_from_the_refusal(words: str, commands: list[str]) -> None:
    turns = turns_after(words, REFUSED)
    assert turns is not None
    assert [turn.command for turn in turns] == commands


@pytest.mark.parametrize("words", ["No.", "Refused by the patterns gate: It names production.", ""])
def test_unknown_refusal_gives_no_advice(words: str) -> None:
    assert turns_after(words, REFUSED) is None


def test_output_of_a_command_is_not_a_refusal() -> None:
    assert refusal_in(
        "<exception>corral refused the command. Because.\nRead x first.</exception>\n<returncode>126"
    ) == ("Because.\nRead x first.")
    assert refusal_in("<returncode>0</returncode>\n<output>\nRead x first\n</output>") == ""


def test_plan_contains_no_reaction_to_a_refusal() -> None:
    # The reactions must come from the refusals, or the demo would prove nothing.
    commands = "\n".join(turn.command for turn in PLAN)
    for instead in ("shares/", "head", "> report"):
        assert instead not in commands


def test_trace_is_a_tree_that_fits_the_terminal(open_box: Sandbox) -> None:
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    box = GatedSandbox(open_box, ToolAllowlist("bash"), tool="bash", on_ruling=record_ruling)
    instrument(box, tracers, tool_name="bash", capture_content=True)
    other = GatedSandbox(open_box, ToolAllowlist("bash"), tool="other", on_ruling=record_ruling)
    instrument(other, tracers, tool_name="other", capture_content=True)
    with tracers.get_tracer("t").start_as_current_span("invoke_agent a"):
        box.run("echo hello", shell=True)
        other.run("echo never", shell=True)
        box.run(f"exit 3 # {'x' * 200}", shell=True)
    lines = list(tree_text(spans_of(exporter.get_finished_spans()), Terminal(80)))
    assert max(map(columns, lines)) <= 80
    assert _without_times(lines) == [
        "invoke_agent a ✓",
        "├─ execute_tool bash ✓ echo hello",
        "│ └─ bash ✓ exit 0",
        "├─ execute_tool other ✗ tools gate, gate-tool: echo never",
        f"└─ execute_tool bash ✓ exit 3 # {'x' * 35}…",
        "└─ bash ! exit 3",
    ]
    ascii_only = list(tree_text(spans_of(exporter.get_finished_spans()), Terminal(80, unicode=False)))
    assert all(line.isascii() for line in ascii_only)


def _without_times(lines: Iterable[str]) -> list[str]:
    return [" ".join(re.sub(r" +[0-9.]+ m?s(?= )", "", line).split()) for line in lines]


def test_missing_extra_is_named() -> None:
    without = "import sys; sys.modules[sys.argv.pop(1)] = None; from corral.apps.cli import main; sys.exit(main(['demo', 'agent']))"
    for package in ("minisweagent", "opentelemetry.sdk", "opentelemetry"):
        done = subprocess.run(
            [sys.executable, "-c", without, package], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout) == (125, "")
        assert install_command("demo") in done.stderr
        assert done.stderr.count("Run: ") == 1
        assert "Traceback" not in done.stderr
