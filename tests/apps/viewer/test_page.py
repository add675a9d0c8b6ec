"""The page is one file: nothing is loaded, nothing in the data can become markup, and the policy names the script's own hash."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from corral.apps.viewer import page

HOSTILE = "</script><script>alert(1)</script><!--<script>]]>&lt;\u2028\u2029\ud800 \x00<img src=x onerror=alert(1)>"
META = page.meta(name=HOSTILE, kind="log", live=False)


class Elements(HTMLParser):
    """The elements of a page and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._is_in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_in_script = tag == "script"
        if self._is_in_script:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._is_in_script = False

    def handle_data(self, data: str) -> None:
        if self._is_in_script:
            given, text = self.scripts[-1]
            self.scripts[-1] = given, text + data


def report() -> str:
    call = json.dumps({"key": HOSTILE, "shell": HOSTILE, "decision": "allow", "outcome": "ok"})
    return "".join(
        page.report(META, [call], {"calls": {HOSTILE: {"output": {"stdout": HOSTILE}}}}, {"runs": [HOSTILE]})
    )


@pytest.mark.parametrize("text", [report(), page.served(META)], ids=["report", "served"])
def test_embedded_data_cannot_become_markup(text: str) -> None:
    found = Elements(text)
    code = [text for given, text in found.scripts if given.get("type") != "application/json"]
    assert code == [page.script()]
    data = [json.loads(text) for given, text in found.scripts if given.get("type") == "application/json"]
    assert data[0]["name"] == HOSTILE
    assert not [tag for tag, _ in found.tags if tag == "img"]


def test_data_of_a_report_reads_back() -> None:
    blocks = {
        given["data-kind"]: json.loads(text) for given, text in Elements(report()).scripts if "data-kind" in given
    }
    assert blocks["calls"][0]["shell"] == HOSTILE
    assert blocks["details"]["calls"][HOSTILE]["output"]["stdout"] == HOSTILE
    assert blocks["evals"] == {"runs": [HOSTILE]}


@pytest.mark.parametrize("connects", [True, False])
def test_policy_allows_only_the_script_of_the_page(connects: bool) -> None:
    rules = dict(rule.split(" ", 1) for rule in page.policy(connects=connects).split("; "))
    expected = base64.b64encode(hashlib.sha256(page.script().encode()).digest()).decode()
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{expected}'"
    assert re.fullmatch(r"'sha256-[\w+/=]+'", rules["style-src"])
    assert rules["connect-src"] == ("'self'" if connects else "'none'")
    assert (rules["base-uri"], rules["form-action"]) == ("'none'", "'none'")
    assert (rules["require-trusted-types-for"], rules["trusted-types"]) == ("'script'", "'none'")


def test_page_loads_nothing_and_has_no_inline_handlers() -> None:
    for tag, given in Elements(report()).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not [name for name in given if name.startswith("on") or name in ("src", "style", "srcset")]
        assert given.get("href", "#").startswith("#")  # type: ignore[union-attr]
    css = page._file("page.css")
    assert "url(" not in css.replace("url(#hatch", "")
    assert "@import" not in css


@pytest.mark.parametrize(
    "sink",
    [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        'setTimeout("',
        "DOMParser",
        "srcdoc",
    ],
)
def test_script_uses_no_function_that_parses_markup(sink: str) -> None:
    assert sink not in page.script()


def test_calls_are_split_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "CALLS_A_BLOCK", 2)
    text = "".join(page.report(META, ["1", "2", "3"], {}, None))
    found = [json.loads(text) for given, text in Elements(text).scripts if given.get("data-kind") == "calls"]
    assert found == [[1, 2], [3]]
