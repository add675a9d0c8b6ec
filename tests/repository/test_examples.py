"""Runs every example in a throwaway project and home, and checks its output."""

import sys
from pathlib import Path

import docblocks
import pytest
from docplace import Place

import corral

EXAMPLES = Path(corral.__file__).parents[2] / "examples"
PRINTED = {
    "library": """\
deny ['name-sudo', 'argv-sudo-privilege']
True apples full
-100 True …
1 ['write-outside']
-101 True
""",
    "asynchronous": """\
['0', '1', '2']
stdout line 1
0
cancelled, and nothing of it is left
""",
    "batch": """\
0 a
0 b
0 c
0 d
0 e
0 f
0 from standard input
-100 `curl http://192
""",
    "gated": """\
Refused by the recency gate: …/notes.txt exists and was not read. …
['pears', 'apples', 'quinces']
True
True
Refused by the budget gate: The call needs 20 tokens; 0 of 200 are left in the observation budget. …
""",
    "telemetry": """\
echo
execute_tool run_command allow
execute_tool run_command deny name-rm denied
""",
    "mcp_client": """\
['run_command', 'run_in_session', 'check_command', 'start_process', 'read_output', 'stop_process'…]
0 apples
True Run the command without it. …
""",
    "hook": """\
0 allow
0 ask corral asks about this
2 deny corral refuses this
""",
}


@pytest.mark.parametrize("name", PRINTED)
def test_example_prints_its_expected_output(name: str, place: Place) -> None:
    done = place.run(sys.executable, str(EXAMPLES / f"{name}.py"))
    assert done.returncode == 0, done.stderr
    assert docblocks.fits(PRINTED[name], done.stdout), done.stdout


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTED)
    listed = (EXAMPLES / "README.md").read_text()
    assert [p.name for p in EXAMPLES.rglob("*") if p.is_file() and f"({p.relative_to(EXAMPLES)})" not in listed] == [
        "README.md"
    ]


def test_example_policy_passes_its_own_examples(place: Place) -> None:
    place.write("corral.toml", (EXAMPLES / "policy" / "corral.toml").read_text())
    done = place.run("corral", "policy", "test")
    assert (done.returncode, done.stderr) == (0, "6 of 6 examples hold\n")


def test_example_tasks_pass(place: Place) -> None:
    done = place.run("corral", "eval", str(EXAMPLES / "eval"), "--out", str(place.home / "out"))
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
