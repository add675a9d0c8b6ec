"""Docstrings say what a thing does, and prose avoids the words that made newcomers read a sentence twice."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

import corral

SOURCE = Path(corral.__file__).parent
PROJECT = SOURCE.parents[1]
MAX_SUBJECT = 60
# The commit that brought this test. Older subjects stay as they are.
SUBJECTS_SINCE = "docs: glossary, layout, and a README for a stranger"
OPENINGS = re.compile(r"(What|Who|Whom|Whose|Where|Of|As|How|Whether|Whatever|Whoever)\b")
# Each has a plain word: the user, another process, no, killed, again.
FORBIDDEN = re.compile(
    r"\b(whoever|somebody|anybody|lest|thereby|whereof|hereof|anew|its owner|the owner|the owner's|as good as|"
    r"a word of|the word of|says a thing|(?-i:is none)|are no more|who held|who follows|who waits|is told|was told|became of|becomes of)\b",
    re.IGNORECASE,
)
PAGES = sorted(
    [*(PROJECT / "docs").glob("*.md"), *(PROJECT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md"))]
)
SOURCES = [path for folder in ("src", "tests", "tools", "bench") for path in sorted((PROJECT / folder).rglob("*.py"))]
SOURCES = [path for path in SOURCES if path != Path(__file__) and ".peers" not in path.parts]
FOLDERS = sorted({path.parent for path in SOURCES})


def name_of(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def docstrings(tree: ast.Module) -> list[str]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, owners)]


def comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_docstrings_open_with_what_the_code_does_in_plain_words(folder: Path) -> None:
    openings, words = [], []
    for path in (path for path in SOURCES if path.parent == folder):
        text = path.read_text()
        written = docstrings(ast.parse(text))
        openings += [(path.name, opening) for opening in written if OPENINGS.match(opening)]
        prose = [*written, *comments(text)]
        words += [(path.name, match[0]) for each in prose for match in FORBIDDEN.finditer(each)]
    assert (openings, words) == ([], [])


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_pages_use_plain_words(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    assert [match[0] for match in FORBIDDEN.finditer(text)] == []


def test_every_word_of_the_glossary_is_used() -> None:
    page = (PROJECT / "docs" / "glossary.md").read_text()
    words = [name.strip() for cell in re.findall(r"^\| ([a-z, ]+) \|", page, re.MULTILINE) for name in cell.split(",")]
    text = "\n".join(path.read_text().lower() for path in [*PAGES, *SOURCES] if path.name != "glossary.md")
    assert len(words) > 20
    assert [word for word in words if word != "word" and word not in text] == []


def test_commit_subjects_fit_sixty_characters() -> None:
    done = subprocess.run(
        ["git", "log", "--format=%s", "-n", "500"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    subjects = done.stdout.splitlines()
    if SUBJECTS_SINCE not in subjects:
        pytest.skip("this is not a clone with its history")
    recent = subjects[: subjects.index(SUBJECTS_SINCE) + 1]
    assert [subject for subject in recent if len(subject) > MAX_SUBJECT] == []
