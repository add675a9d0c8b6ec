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
LEAK = """
import os, socket, sys

for attempt in (
    lambda: open(os.path.expanduser("~/.ssh/id_rsa")),
    lambda: socket.create_connection(("192.0.2.7", 443)),
):
    try:
        attempt()
    except OSError as error:
        print(error.strerror, file=sys.stderr)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "notes.txt").write_text("pears\napples\nquinces\n")
    (root / "src" / "main.py").write_text("print('The answer is', 6 * 7)\n")
    (root / "src" / "leak.py").write_text(LEAK)
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "id_rsa").write_text("a key\n")
    return root


def transcripts() -> list[tuple[str, str]]:
    blocks = re.findall(r"```console\n\$ ([^\n]+)\n(.*?)```", README, re.DOTALL)
    return [(command, output) for command, output in blocks]


@pytest.mark.parametrize(
    ("command", "output"), transcripts(), ids=["denied", "stopped by the kernel", "said in the result", "successful"]
)
def test_a_transcript_is_what_one_sees(command: str, output: str, project: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # A home directory in /tmp is scratch for the guard, so the call that it refuses has another; the key that the kernel hides is real.
    home = "/home/user" if "~" in command else str(project.parent / "home")
    env = {**os.environ, "PATH": path, "COLUMNS": "100", "HOME": home}
    bash = ["bash", "-c", f"exec 2>&1; {command}"]
    assert subprocess.run(bash, cwd=project, env=env, capture_output=True, text=True, check=True).stdout == output


def test_the_program_runs(project: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True)
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("deny rm is on the denylist: ")
    assert second == "src/main.py:1:print('The answer is', 6 * 7)"
    assert len(program.strip().splitlines()) <= 10


def test_the_librarys_programs_run_contained(project: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "library.md").read_text(), re.DOTALL)
    programs[0] += "print(result.enforcement, result.stdout_text, end='')\n"
    run, batch, live = (
        subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True)
        for program in programs
    )
    assert run.stdout == "full src/main.py:1:print('The answer is', 6 * 7)\n"
    assert batch.stdout.splitlines()[:1000] == [str(number) for number in range(1000)]
    assert sorted(batch.stdout.splitlines()[1000:]) == ["0 0", "1 0"]
    assert live.stdout.startswith("stdout notes.txt\n")
    assert live.stdout.endswith("200\n3\n")


def test_the_tests_that_the_threat_model_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (PROJECT / "SECURITY.md").read_text()))
    defined = {
        name for path in PROJECT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named - defined == set()
    assert len(named) > 10


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []
