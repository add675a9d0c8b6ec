"""Hooks for mkdocs: add the pages in the repository's root to the site, and the rules to the navigation. Writes nothing to docs/."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
_twins: dict[str, tuple[str, str]] = {}  # for every page: its title, and its Markdown text for programs
RULES_BOOST = 0.1  # of generated pages in the search
AXES = {"name": "Names", "argv": "Arguments", "structure": "Structure", "path": "Paths"}


def on_config(config: Any) -> Any:
    """Add the generated pages of the rules to the navigation."""
    rules = next(section["Rules"] for section in config.nav if "Rules" in section)
    pages = sorted(path.name for path in (ROOT / "docs" / "rules").glob("*.md"))
    rules += [
        {title: [{_title(name): f"rules/{name}"} for name in pages if name.startswith(f"{axis}-")]}
        for axis, title in AXES.items()
    ]
    tables = sorted(path.name for path in (ROOT / "docs" / "rules" / "commands").glob("*.md"))
    rules.append({"Commands": [{name[:-3]: f"rules/commands/{name}"} for name in tables]})
    return config


def _title(name: str) -> str:
    return name.removesuffix(".md")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages in the repository's root to the site."""
    for name in FROM_ROOT:
        files.append(File.generated(config, name, content=_at_home((ROOT / name).read_text())))
    return files


def _at_home(text: str) -> str:
    return re.sub(r"\]\(docs/", "](", text)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrite links to the root's pages, let the search rank rules below other pages, and remove the comments about how blocks are tested."""
    depth = page.file.src_uri.count("/")
    up = "../" * depth
    for name in FROM_ROOT:
        markdown = markdown.replace(f"](../{up}{name}", f"]({up}{name}")
    markdown = re.sub(r"<!-- (?:not run: .*?|output) -->\n", "", markdown)
    if page.file.src_uri.startswith("rules/"):
        # Who searches for `pip install` wants to know how to allow it, not the row of the table.
        page.meta.setdefault("search", {"boost": RULES_BOOST})
    _twins[page.file.src_uri] = (str(page.title), markdown)
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Inline the diagrams, so that they follow the colours of the page. As images they would follow the system's theme."""
    return re.sub(r'<p><img[^>]*src="(assets/[a-z-]+\.svg)"[^>]*/?></p>', _diagram, html)


def _diagram(found: re.Match[str]) -> str:
    return f'<div class="diagram">{(ROOT / "docs" / found[1]).read_text()}</div>'


def on_post_build(config: Any) -> None:
    """Write the Markdown text of each page beside it, and a list of all pages for programs."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}\n", f"> {config.site_description}\n"]
    for section in config.nav:
        for title, entries in section.items():
            lines += [f"## {title}\n", *[f"- [{_twins[page][0]}]({page})" for page in _pages(entries)], ""]
    (site / "llms.txt").write_text("\n".join(lines))
    for page, (_, text) in _twins.items():
        (site / page).write_text(text)


def _pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in _pages(part)]
