"""Tests that the site builds without warnings or broken links, and that no page loads anything from another host."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import corral

pytestmark = pytest.mark.real

ROOT = Path(corral.__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    # A proxy address without a server: any download fails the build.
    env = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return place


class Asked(HTMLParser):
    """Collects the addresses that a browser would load for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in ("src", "srcset", "data"):
            self.addresses += [values[name] or ""] if name in values else []
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(values.get("href") or "")


def test_no_page_loads_from_another_host(site: Path) -> None:
    asked = Asked()
    for page in site.rglob("*.html"):
        asked.feed(page.read_text())
    assert len(asked.addresses) > 100
    assert [address for address in asked.addresses if re.match(r"(https?:)?//", address)] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", styles) == []


def test_every_rule_has_a_page(site: Path) -> None:
    from corral.guard.rules.loader import effects, group_names

    wanted = {f"{data['axis']}-{key}" for key, data in effects().items()} | {f"name-{key}" for key in group_names()}
    assert wanted | {"protected-files"} == {path.stem for path in (site / "rules").glob("*.html")}


def test_site_has_inline_diagrams_and_the_pages_of_the_root(site: Path) -> None:
    assert "<svg" in (site / "how-it-works.html").read_text().partition('class="diagram"')[2][:200]
    assert "What each layer stops" in (site / "SECURITY.html").read_text()
    assert "not run:" not in (site / "install.html").read_text()


@pytest.mark.parametrize("words", ["git push", "git pull", "dev server", "pip install", "npm install", "pull request", "database", "docker", "uv", "poetry",
                                   "conda", "monorepos", "worktrees", "CI"])  # fmt: skip
def test_search_finds_the_recipe(words: str, site: Path) -> None:
    # The search ranks a section whose title has the words above every text that has them, and pages of rules below other pages.
    found = [
        entry["location"]
        for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]
        if entry.get("boost", 1) >= 1
        and set(words.lower().split()) <= set(re.findall(r"[a-z]+", entry["title"].lower()))
    ]
    assert any(location.startswith("living-with-it.html#") for location in found), found
    assert len(found) <= 3, found


def test_every_page_has_its_text_and_is_listed(site: Path) -> None:
    listed = set(re.findall(r"\]\(([^)]+\.md)\)", (site / "llms.txt").read_text()))
    pages = {str(path.relative_to(site).with_suffix(".md")) for path in site.rglob("*.html") if path.name != "404.html"}
    assert listed == pages
    assert [page for page in pages if not (site / page).read_text().strip()] == []
