"""What mkdocs cannot do by itself: the root's own pages in the site, and a navigation of the rules. Writes nothing to docs/."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
AXES = {"name": "Names", "argv": "Arguments", "structure": "Structure", "path": "Paths"}


def on_config(config: Any) -> Any:
    """Add the generated pages of rules to the navigation."""
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
    """Add the pages that lie in the root, where people look for them."""
    for name in FROM_ROOT:
        files.append(File.generated(config, name, content=_at_home((ROOT / name).read_text())))
    return files


def _at_home(text: str) -> str:
    return re.sub(r"\]\(docs/", "](", text)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lead links to the root's pages to where the site has them, and say nothing of how blocks are tested."""
    depth = page.file.src_uri.count("/")
    up = "../" * depth
    for name in FROM_ROOT:
        markdown = markdown.replace(f"](../{up}{name}", f"]({up}{name}")
    return re.sub(r"<!-- not run: .*? -->\n", "", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Put diagrams into the page itself, so that they follow its colours; as pictures they follow the system's."""
    return re.sub(r'<p><img[^>]*src="(assets/[a-z-]+\.svg)"[^>]*/?></p>', _diagram, html)


def _diagram(found: re.Match[str]) -> str:
    return f'<div class="diagram">{(ROOT / "docs" / found[1]).read_text()}</div>'
