"""What the demo's agent is made of, without the agent: the repository, the words it understands, the tree of a trace."""

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
from corral.apps.agentdemo.advice import MEND, PLAN, Turn, refusal_in, turns_after
from corral.apps.agentdemo.trace import spans_of, tree_text
from corral.integrations.extras import install_command
from corral.integrations.gates import GatedSandbox, ToolAllowlist
from corral.integrations.telemetry.otel import instrument, record_ruling

REFUSED = Turn("…", "sudo cat notes.txt > /srv/x.txt")


def is_green(root: Path) -> bool:
    command = [sys.executable, "-m", "unittest", "-q"]
    return subprocess.run(command, cwd=root, capture_output=True, check=False, timeout=60).returncode == 0


def test_the_tests_of_the_repository_are_red_and_green_once_it_is_mended(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    repository.write(str(root))
    assert not is_green(root)
    assert list(repository.changes(str(root))) == []
    subprocess.run(["sed", "-i", MEND, "shares/split.py"], cwd=root, check=True, timeout=60)
    assert is_green(root)
    assert [line[:1] for line in repository.changes(str(root))] == ["-", "+", "@", "-", "+"]


def test_a_file_that_is_gone_is_a_change(tmp_path: Path) -> None:
    repository.write(str(tmp_path / "repository"))
    (tmp_path / "repository" / "README.md").unlink()
    assert "-# shares" in list(repository.changes(str(tmp_path / "repository")))


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ("a.py exists. Read lib/a.py first, then change it.", ["cat lib/a.py", REFUSED.command]),
        ("It changed. Read lib/b.py again, then decide anew.", ["cat lib/b.py", REFUSED.command]),
        ("They are the owner's. Change lib/c.py instead.", [f"sed -i '{MEND}' lib/c.py"]),
        ("Too much. Ask for less: a part of the file.", ["sudo head -n 3 notes.txt > /srv/x.txt"]),
        ("It is denied. Run the command without it; …", ["cat notes.txt > /srv/x.txt"]),
        ("It is outside. Write inside the project.", ["sudo cat notes.txt > x.txt"]),
        ("It installs. Use what is installed, or ask the owner.", []),
    ],
)
def test_the_next_commands_are_made_of_the_words_of_the_refusal(words: str, commands: list[str]) -> None:
    turns = turns_after(words, REFUSED)
    assert turns is not None
    assert [turn.command for turn in turns] == commands


@pytest.mark.parametrize("words", ["No.", "Refused by the patterns gate: It names production.", ""])
def test_words_that_are_not_understood_are_no_advice(words: str) -> None:
    assert turns_after(words, REFUSED) is None


def test_only_a_refusal_is_read_as_one() -> None:
    assert refusal_in(
        "<exception>corral refused the command. Because.\nRead x first.</exception>\n<returncode>126"
    ) == ("Because.\nRead x first.")
    assert refusal_in("<returncode>0</returncode>\n<output>\nRead x first\n</output>") == ""


def test_the_plan_names_no_way_out_of_a_refusal() -> None:
    # What is done instead must come from what was said, or the demo would show nothing.
    commands = "\n".join(turn.command for turn in PLAN)
    for instead in ("shares/", "head", "> report"):
        assert instead not in commands


def test_a_trace_is_a_tree_that_fits_the_terminal(open_box: Sandbox) -> None:
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


def test_without_the_extra_the_demo_names_it() -> None:
    without = "import sys; sys.modules[sys.argv.pop(1)] = None; from corral.apps.cli import main; sys.exit(main(['demo', 'agent']))"
    for package in ("minisweagent", "opentelemetry.sdk", "opentelemetry"):
        done = subprocess.run(
            [sys.executable, "-c", without, package], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr.startswith("corral: corral demo agent needs ")
        assert done.stderr.endswith(f", which is not installed. Run: {install_command('demo')}\n")
        assert done.stderr.count("Run: ") == 1
        assert "Traceback" not in done.stderr
