"""The page is accessible: contrast, width, names, focus, and shapes besides colours."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from chromium import CALLS, NARROW, WIDE, Browser
from selenium.webdriver.common.keys import Keys

from corral.apps.viewer import page, write
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import Server, fill
from corral.apps.viewer.sources import ResultSource

AT = "2026-11-15T12:00:00.000Z"

CONTRAST = """
const parse = (text) => { const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true}); c.fillStyle = text; c.fillRect(0, 0, 1, 1); return c.getImageData(0, 0, 1, 1).data; };
const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, n) => { const v = rgb[n] / 255; return sum + weight * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
const probe = document.createElement('span'); document.body.append(probe);
const colour = (name) => { probe.style.color = `var(--${name})`; return light(parse(getComputedStyle(probe).color)); };
const found = [];
for (const text of ['text', 'muted', 'accent', 'allow', 'ask', 'deny', 'idle'])
  for (const back of ['panel', 'bg', 'raised'])
    { const [a, b] = [colour(text), colour(back)].sort((x, y) => y - x); const ratio = (a + 0.05) / (b + 0.05); if (ratio < 4.5) found.push(`${text} on ${back}: ${ratio.toFixed(2)}`); }
probe.remove();
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_have_contrast_and_can_be_chosen(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None], scheme: str
) -> None:
    log(*CALLS)
    browser.prepare(scheme=scheme)
    browser.open(serve().url)
    back = "return getComputedStyle(document.body).backgroundColor"
    of_system = browser.js(back)
    assert (of_system == "rgb(18, 21, 24)") is (scheme == "dark")
    assert browser.js(CONTRAST) == []
    browser.press("t")
    assert browser.js("return document.documentElement.dataset.theme") == "light"
    browser.press("t")
    assert browser.js(back) == "rgb(18, 21, 24)"
    assert browser.js(CONTRAST) == []
    browser.press("t")
    assert browser.js(back) == of_system


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=str)
def test_timeline_marks_do_not_cover_its_labels(browser: Browser, tmp_path: Path, size: tuple[int, int]) -> None:
    lines = [{"id": f"r{n}", "argv": ["ls"], "exit_code": -100, "denied": True, "started_at": AT} for n in range(9)]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    feed = Feed()
    fill(feed, ResultSource(str(path)))
    write(str(tmp_path / "r.html"), feed, page.meta(name="n", kind="results", live=False), Reader({}, keeps=True))
    browser.prepare(size)
    browser.open((tmp_path / "r.html").as_uri())
    lowest, highest = browser.js(
        "const of = (what) => [...document.querySelectorAll('.timeline svg ' + what)].map((e) => e.getBoundingClientRect());"
        "return [Math.max(...of('rect[class^=fill]').map((r) => r.bottom)), Math.min(...of('text').map((t) => t.top))]"
    )
    assert lowest <= highest


@pytest.mark.parametrize("size", [NARROW, (820, 700), WIDE], ids=str)
def test_page_is_not_wider_than_the_window(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None], size: tuple[int, int]
) -> None:
    log(*CALLS, "echo " + "long" * 500)
    browser.prepare(size)
    browser.open(serve().url)
    fits = "return [document.documentElement.scrollWidth, ...[...document.querySelectorAll('main section, #detail, .scroll')].filter((e) => e.getClientRects().length).map((e) => e.getBoundingClientRect().right)].every((n) => n <= innerWidth + 1)"
    assert browser.js(fits)
    browser.click(".row", "longlong")
    assert browser.text("#command").startswith("echo long")
    assert browser.js(fits)
    assert browser.js("const e = document.getElementById('detail'); return e.scrollWidth <= e.clientWidth")
    browser.press(Keys.ESCAPE)
    browser.press("2")
    browser.until(lambda: browser.texts(".plot"), "the plots are drawn")
    assert browser.js(fits)


NAMELESS = """
const named = (e) => e.getAttribute('aria-label') || e.textContent.trim() || e.title || (e.labels && [...e.labels].some((l) => l.textContent.trim()));
return [...document.querySelectorAll('button, input, select, summary, [role=listbox], [role=tab]')].filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 80));
"""


def test_controls_have_names_and_visible_focus(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None]
) -> None:
    log(*CALLS)
    browser.open(serve().url)
    browser.press("j", Keys.ENTER)
    assert browser.js(NAMELESS) == []
    landmarks = browser.js(
        "return ['header', 'nav', 'main', 'aside'].map((tag) => document.querySelectorAll(tag).length)"
    )
    assert landmarks[1:] == [1, 1, 1]
    assert browser.js("return document.documentElement.lang") == "en"
    browser.press(Keys.ESCAPE)
    assert (
        browser.js(
            "return document.getElementById(document.getElementById('list').getAttribute('aria-activedescendant')).getAttribute('aria-selected')"
        )
        == "true"
    )
    browser.press(Keys.TAB)
    browser.press(Keys.TAB)
    assert browser.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("?")
    assert browser.js("return document.getElementById('keys').open")
    assert "search" in browser.text("#keys")
    browser.press(Keys.ESCAPE)
    assert not browser.js("return document.getElementById('keys').open")


def test_verdicts_and_outcomes_differ_in_shape(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None]
) -> None:
    log(*CALLS)
    browser.open(serve().url)
    shapes = browser.js(
        "return Object.fromEntries([...document.querySelectorAll('.row .verdict')].map((e) => [e.textContent, e.querySelector('svg').innerHTML]))"
    )
    assert set(shapes) == {"allow", "deny"}
    assert len(set(shapes.values())) == 2
    endings = browser.js(
        "return [...document.querySelectorAll('.row .ending')].map((e) => [e.textContent, e.querySelector('svg').innerHTML])"
    )
    assert len({shape for _, shape in endings}) == len({words for words, _ in endings}) == 3
