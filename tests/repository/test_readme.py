"""Tests that the programs in the documents work, and that the tests, files and links they name exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import corral

PROJECT = Path(corral.__file__).parents[2]
DOCUMENTS = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "notes.txt").write_text("pears\napples\nquinces\n")
    (root / "src" / "main.py").write_text("print('The answer is', 6 * 7)\n")
    return root


def test_library_programs_in_the_readme_run_contained(project: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "library.md").read_text(), re.DOTALL)
    programs[0] += "print(result.enforcement, result.stdout_text, end='')\n"
    run, shell, batch, live = (
        subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True)
        for program in programs
    )
    assert run.stdout == "full src/main.py:1:print('The answer is', 6 * 7)\n"
    assert shell.stdout.endswith("True\n0\n")
    assert batch.stdout.splitlines()[:1000] == [str(number) for number in range(1000)]
    assert sorted(batch.stdout.splitlines()[1000:]) == ["0 0", "1 0"]
    assert live.stdout.startswith("stdout notes.txt\n")
    assert live.stdout.endswith("200\n3\n")


def test_tests_named_in_documents_exist() -> None:
    ours = [path for path in DOCUMENTS if path.name != "frameworks.md"]  # that page names tests of the frameworks
    named = {name for path in ours for name in re.findall(r"`(test_\w+)`", path.read_text())}
    defined = {
        name for path in PROJECT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named - defined == set()
    assert len(named) > 10


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_files_named_in_documents_exist(path: Path) -> None:
    named = re.findall(r"`((?:tests|tools|examples|src/corral|docs)/[\w/.-]+)`", path.read_text())
    assert [name for name in named if not (PROJECT / name).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_links_in_documents_have_targets(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []
