"""Tests that `tools/docs.py` finds generated pages that are outdated, missing, or no longer generated."""

import sys
from pathlib import Path

import pytest
from attack_tiers import tier_table

import corral

sys.path.append(str(Path(corral.__file__).parents[2] / "tools"))
import docs

MADE = {"rules.md": "rules\n", "rules/name-power.md": "power\n", "reference/cli.md": "cli\n"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    docs.write(MADE)
    return tmp_path


def test_written_pages_are_current(folder: Path) -> None:
    assert docs.stale(MADE) == []


def test_changed_or_missing_page_is_stale(folder: Path) -> None:
    (folder / "rules.md").write_text("by hand\n")
    (folder / "reference/cli.md").unlink()
    assert docs.stale(MADE) == ["reference/cli.md", "rules.md"]


def test_page_of_a_removed_rule_is_stale_and_deleted(folder: Path) -> None:
    (folder / "rules/name-gone.md").write_text("gone\n")
    (folder / "guide.md").write_text("written by hand\n")
    assert docs.stale(MADE) == ["rules/name-gone.md"]
    docs.write(MADE)
    assert sorted(path.name for path in folder.rglob("*.md")) == ["cli.md", "guide.md", "name-power.md", "rules.md"]


def test_pages_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = docs.pages()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(tmp_path)
    assert docs.pages() == first


def test_table_of_the_tier_without_namespaces_is_current() -> None:
    text = (Path(corral.__file__).parents[2] / "SECURITY.md").read_text()
    assert text.partition("<!-- tiers -->\n")[2].partition("<!-- end of tiers -->")[0] == tier_table()
