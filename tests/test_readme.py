"""The README tells the truth: its transcripts are replayed, its program runs, its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import corral

PROJECT = Path(corral.__file__).parents[2]
DOCUMENTS = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")])
README = (PROJECT / "README.md").read_text()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "notes.txt").write_text("pears\napples\nquinces\n")
    (root / "src" / "main.py").write_text("print('The answer is', 6 * 7)\n")
    return root


def transcripts() -> list[tuple[str, str]]:
    blocks = re.findall(r"```console\n\$ ([^\n]+)\n(.*?)```", README, re.DOTALL)
    return [(command, output) for command, output in blocks]


@pytest.mark.parametrize(("command", "output"), transcripts(), ids=["denied", "successful"])
def test_a_transcript_is_what_one_sees(command: str, output: str, project: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "100"}
    bash = ["bash", "-c", f"exec 2>&1; {command}"]
    assert subprocess.run(bash, cwd=project, env=env, capture_output=True, text=True, check=True).stdout == output


def test_the_program_runs(project: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True)
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("deny rm is on the denylist: ")
    assert second == "src/main.py:1:print('The answer is', 6 * 7)"
    assert len(program.strip().splitlines()) <= 10


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []
