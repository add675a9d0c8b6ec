"""Tests of docs/gates.md: its programs run, print the documented text, and its table has every rule."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import corral

SOURCE = Path(corral.__file__).parent
PAGE = (SOURCE.parents[1] / "docs" / "gates.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=["with a sandbox", "without", "recorded"])
def test_documented_program_runs(program: str, project: Path) -> None:
    (project / "notes.txt").write_text("pears\n")
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_first_program_prints_the_documented_reasons(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[0]], cwd=project, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert done[:2] == ["hello", "Refused by the patterns gate: It names production. Use the staging hosts."]
    assert done[2].startswith("Refused by the sandbox gate: `rm` is on the denylist: ")


def test_page_lists_every_rule_of_the_gates() -> None:
    code = "".join(path.read_text() for path in (SOURCE / "integrations/gates").glob("*.py"))
    rules = set(re.findall(r'Refusal\(\s*"(gate-[a-z-]+)"', code))
    assert len(rules) > 5
    assert {rule for rule in rules if f"`{rule}`" not in PAGE} == set()
