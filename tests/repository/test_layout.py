"""Tests that the tree follows docs/layout.md: few entries at the top, small folders, short modules, tests that mirror the rooms."""

import ast
import re
from pathlib import Path

import corral

SOURCE = Path(corral.__file__).parent
PROJECT = SOURCE.parents[1]
TOP = {
    *("__init__.py", "__main__.py", "axes.py", "sandbox.py", "py.typed"),
    *(
        "_lib",
        "apps",
        "audit",
        "broker",
        "containment",
        "git",
        "guard",
        "integrations",
        "model",
        "policy",
        "runtime",
        "sessions",
        "transactions",
    ),
}
MAX_MODULES = 20
MAX_LINES = 500
# Folders with one file for each host, adapter or verb.
UNIFORM = {"apps/cli/verbs", "integrations/hooks/hosts", "integrations/frameworks"}
FOLDERS = sorted({path.parent for path in SOURCE.rglob("*.py")})
MODULES = sorted(SOURCE.rglob("*.py"))
# Tests of the whole library, and of the repository itself.
OUTSIDE_ROOMS = {"collector", "frameworks", "golden", "repository", "support"}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_the_top_level_has_only_the_rooms() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"} == TOP


def test_no_folder_has_more_than_twenty_modules() -> None:
    counts = {name_of(folder): len(list(folder.glob("*.py"))) for folder in FOLDERS}
    assert {name: count for name, count in counts.items() if count > MAX_MODULES and name not in UNIFORM} == {}


def test_every_module_is_short_and_says_what_it_does() -> None:
    texts = {name_of(path): path.read_text() for path in MODULES}
    assert [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []
    assert [name for name, text in texts.items() if len(text.splitlines()) > MAX_LINES] == []


def test_folders_of_tests_mirror_the_rooms() -> None:
    tests = PROJECT / "tests"
    folders = {str(path.parent.relative_to(tests)) for path in tests.rglob("test_*.py")}
    rooms = {name for name in folders if name.partition("/")[0] not in OUTSIDE_ROOMS}
    assert [name for name in sorted(rooms) if not (SOURCE / name).is_dir()] == []


def test_files_on_the_layout_page_exist() -> None:
    page = (PROJECT / "docs" / "layout.md").read_text()
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", page))
    assert len(named) > 20
    assert [
        name for name in sorted(named) if not (SOURCE / name).exists() and not list(SOURCE.glob(f"**/{name}"))
    ] == []
