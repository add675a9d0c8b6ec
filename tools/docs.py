"""Writes the documentation pages that are generated from the code. `--check` writes nothing and lists outdated pages."""

import sys
from pathlib import Path

import reference_doc
import rules_doc

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE_ALONE = ("rules", "reference")  # folders that contain only generated pages


def pages() -> dict[str, str]:
    """Return every generated page by its path below docs/."""
    return rules_doc.pages() | reference_doc.pages()


def stale(made: dict[str, str]) -> list[str]:
    """Return the pages that are missing or differ, and other files in folders for generated pages only."""
    there = {str(path.relative_to(DOCS)) for name in MADE_ALONE for path in (DOCS / name).rglob("*.md")}
    wrong = {name for name, text in made.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text}
    return sorted(wrong | (there - set(made)))


def write(made: dict[str, str]) -> None:
    """Write these pages to docs/, and remove outdated ones."""
    for name in stale(made):
        if name in made:
            (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / name).write_text(made[name])
        else:
            (DOCS / name).unlink()


if __name__ == "__main__":
    if "--check" in sys.argv:
        found = stale(pages())
        sys.exit(f"not current, run make docs: {', '.join(f'docs/{name}' for name in found)}" if found else 0)
    write(pages())
