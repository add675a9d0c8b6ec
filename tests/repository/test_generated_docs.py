"""Pages that are made from the code: what changes, is missing, or lies among them and is none of them is found."""

import sys
from pathlib import Path

import pytest

import corral

sys.path.append(str(Path(corral.__file__).parents[2] / "tools"))
import docs

MADE = {"rules.md": "rules\n", "rules/name-power.md": "power\n", "reference/cli.md": "cli\n"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    docs.write(MADE)
    return tmp_path


def test_what_was_just_written_is_current(folder: Path) -> None:
    assert docs.stale(MADE) == []


def test_a_page_that_changed_or_is_gone_is_stale(folder: Path) -> None:
    (folder / "rules.md").write_text("by hand\n")
    (folder / "reference/cli.md").unlink()
    assert docs.stale(MADE) == ["reference/cli.md", "rules.md"]


def test_a_page_of_a_rule_that_is_no_more_is_stale_and_goes(folder: Path) -> None:
    (folder / "rules/name-gone.md").write_text("gone\n")
    (folder / "guide.md").write_text("by hand, where anybody may write\n")
    assert docs.stale(MADE) == ["rules/name-gone.md"]
    docs.write(MADE)
    assert sorted(path.name for path in folder.rglob("*.md")) == ["cli.md", "guide.md", "name-power.md", "rules.md"]


def test_pages_do_not_depend_on_who_makes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = docs.pages()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(tmp_path)
    assert docs.pages() == first
