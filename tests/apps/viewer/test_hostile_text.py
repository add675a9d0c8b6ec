"""An attacker can write any field of a log. Markup in it stays text on the page, and invisible characters become visible."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser

from corral.apps.evals.outcome import Outcome
from corral.apps.evals.results import RESULTS
from corral.apps.viewer import call_list, page, transactions, write
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed, dumps
from corral.apps.viewer.http_server import Server
from corral.apps.viewer.sources import EvalSource, ResultSource

MARKUP = "<img src=x onerror='window.owned=1'><svg onload='window.owned=1'><a href='javascript:window.owned=1'>x</a>"
BREAKOUT = "</script></style></title></pre><script>window.owned=1</script><!--"
TEMPLATE = "${window.owned=1}{{constructor.constructor('window.owned=1')()}}"
PAYLOADS = (MARKUP, BREAKOUT, TEMPLATE)
HIDDEN = "a\u202eb\u2066c\u200bd\x1b[31m\x00\x07\u2028e\ufefff\U000e0041g\ud800h\ri"
EVERYTHING = "".join(PAYLOADS) + HIDDEN


def filled(value: Any, text: str) -> Any:
    """Return the data with every text replaced."""
    if isinstance(value, dict):
        return {key: filled(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, text) for item in value]
    return text if isinstance(value, str) else value


RESULT: dict[str, Any] = {
    "id": "x", "argv": ["x", "y"], "cwd": "x", "reason": "x", "exit_code": 1, "stdout": "x", "stderr": "x", "truncated": True, "full_output_path": "x", "duration_ms": 5,
    "connections": [{"target": "x", "outcome": outcome, "address": "x", "detail": "x", "grant": "x", "count": 2} for outcome in ("x", "y")], "transaction": "x",
    "backend": "x", "enforcement": "x", "missing_layers": ["x"], "violations": [{"kind": "x", "target": "x", "detail": "x", "instead": "x", "grant": "x", "inferred": True}],
    "verdict": {"decision": "x", "findings": [{"axis": "x", "rule": "x", "decision": "x", "reason": "x", "text": "x", "instead": "x", "start": 0, "length": 9}]},
}  # fmt: skip
ENTRY: dict[str, Any] = {
    "id": "x", "event": "x", "host": "x", "root": "x", "profile": "x", "cwd": "x", "shell": "x", "reason": "x", "error": "x", "seq": 1, "transaction": "x",
    "findings": [{"rule": "x", "decision": "x", "reason": "x"}], "result": RESULT, "tool": "x",
}  # fmt: skip
RULING: dict[str, Any] = {
    "id": "x", "event": "x", "tool": "x", "passed": ["x"], "gate": "x", "rule": "x", "reason": "x", "instead": "x", "decision": "x", "call_id": "x",
}  # fmt: skip


SETTLED: dict[str, Any] = {
    "id": "x", "event": "transaction", "root": "x", "transaction": "x", "reason": "x", "seq": 1, "changed": 7, "in_part": True,
    "changes": [{"kind": "x", "path": "x", "old_path": "x"}], "conflicts": [{"path": "x", "why": "x"}], "refused": [{"path": "x", "why": "x"}],
}  # fmt: skip


def hostile_feed(text: str) -> Feed:
    feed = Feed()
    result, output = call_list.of_result(filled(RESULT, text), root=text, event=text)
    entry, ruling = call_list.of_entry(filled(ENTRY, text)), call_list.of_entry(filled(RULING, text))
    made = [
        ({**result, "key": f"{text}1"}, output),
        ({**entry, "key": f"{text}2"}, None),
        ({**ruling, "key": f"{text}3"}, None),
    ]
    denied = {**entry, "key": f"{text}4", "decision": "deny", "outcome": "refused"}
    became = {**transactions.of_entry(filled(SETTLED, text)), "key": f"{text}5"}
    feed.put([*made, (denied, None), (became, None)])
    feed.put([(filled(call_list.of_entry(RULING), text) | {"key": f"{text}1"}, None)])
    feed.loaded()
    return feed


class _Canary(http.server.BaseHTTPRequestHandler):
    """Serves a careless page, which embeds a text unescaped and has no policy."""

    text = ""

    def do_GET(self) -> None:
        body = f"<!doctype html><meta charset=utf-8><link rel=icon href=data:,><title>{self.text}</title><pre>{self.text}</pre>".encode(
            "utf-8", "replace"
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def careless() -> Iterator[str]:
    """The address of a page that shows a payload carelessly."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Canary)
    # The browser keeps connections open that it may need, and asks nothing on them.
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("payload", [MARKUP, BREAKOUT], ids=["markup", "breakout"])
def test_canary_careless_page_runs_the_payload(browser: Browser, careless: str, payload: str) -> None:
    _Canary.text = payload
    browser.driver.get(careless)
    browser.until(lambda: browser.js("return window.owned") == 1, "the payload ran")
    browser.log()


def assert_tame(browser: Browser) -> None:
    """Assert that no script ran, no markup was created, and the policy blocked nothing."""
    assert browser.js("return window.owned === undefined")
    assert (
        browser.js(
            "return document.querySelectorAll('img, a[href^=javascript], iframe, object, [onload], [onerror], [onclick]').length"
        )
        == 0
    )
    assert browser.js("return [...document.scripts].filter((s) => s.type !== 'application/json').length") == 1
    assert browser.js("return document.title.startsWith('corral view')")
    assert browser.log() == []


def open_all(browser: Browser, detail: bool = True) -> None:
    """Open every view of the page."""
    for row in range(len(browser.commands())):
        browser.js(
            "[...document.querySelectorAll('.row')].sort((a, b) => a.dataset.at - b.dataset.at)[arguments[0]].click()",
            row,
        )
        browser.settle()
        assert not detail or browser.texts("#detail h2") != []
        assert browser.js("const e = document.getElementById('detail'); return e.scrollWidth <= e.clientWidth")
        browser.js("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    browser.press("2")
    browser.until(lambda: browser.texts(".plot"), "the plots are drawn")
    browser.press("1")


@pytest.mark.parametrize("text", [*PAYLOADS, HIDDEN], ids=["markup", "breakout", "template", "hidden"])
def test_report_shows_hostile_text_as_text(browser: Browser, text: str, tmp_path: Path, home: dict[str, str]) -> None:
    path = tmp_path / "hostile.html"
    write(str(path), hostile_feed(text), page.meta(name=text, kind="results", live=False), Reader(home, keeps=True))
    browser.open(path.as_uri())
    assert len(browser.commands()) == 5
    open_all(browser)
    browser.click(".row", "changes")
    assert len(browser.texts("#members > li")) == 4
    browser.click("#members .link")
    browser.click("#transaction .link")
    assert len(browser.commands()) == 4
    assert_tame(browser)


def test_served_page_shows_hostile_text_as_text(browser: Browser, home: dict[str, str], project: Path) -> None:
    server = Server(
        hostile_feed(EVERYTHING), page.meta(name=EVERYTHING, kind="log", live=True), Reader(home, root=str(project))
    ).start()
    try:
        browser.open(server.url)
        assert len(browser.commands()) == 5
        open_all(browser)
        assert (
            MARKUP in browser.js("return document.getElementById('rule').textContent")
            or browser.js("return document.getElementById('rule').options.length") > 1
        )
        assert_tame(browser)
    finally:
        server.close()


def test_hostile_output_is_shown_as_text(browser: Browser, serve: Callable[..., Server], tmp_path: Path) -> None:
    printed = {"id": "r", "argv": ["printf", MARKUP], "exit_code": 0, "stdout": MARKUP + BREAKOUT, "stderr": TEMPLATE}
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(printed) + "\n")
    browser.open(serve(ResultSource(str(path))).url)
    browser.click(".row")
    browser.until(lambda: browser.texts("pre.output"), "the output is there")
    assert browser.texts("pre.output") == [MARKUP + BREAKOUT, TEMPLATE]
    assert MARKUP in browser.text("#command")
    assert_tame(browser)


def test_hostile_task_names_are_shown_as_text(browser: Browser, serve: Callable[..., Server], tmp_path: Path) -> None:
    folders = []
    for number, status in enumerate(("passed", "failed")):
        folder = tmp_path / f"{number}<script>window.owned=1<img src=x onerror=window.owned=1>"
        folder.mkdir()
        call = {
            "shell": EVERYTHING,
            "rules": [EVERYTHING],
            "violations": [EVERYTHING],
            "decision": "deny",
            "exit_code": 1,
            "stdout": EVERYTHING,
        }
        told = {
            "became": EVERYTHING,
            **{name: {EVERYTHING: EVERYTHING} for name in ("changes", "conflicts", "refused")},
        }
        words = (EVERYTHING,)
        found = Outcome(EVERYTHING, EVERYTHING, status, words, EVERYTHING, words, EVERYTHING, (call,), transaction=told)
        (folder / RESULTS).write_text(json.dumps(found.to_dict()) + "\n")
        folders.append(str(folder))
    browser.open(serve(EvalSource(folders)).url)
    browser.until(lambda: browser.texts("#changes tbody tr"), "the comparison is shown")
    assert "window.owned" in browser.text("#changes")
    browser.click("#changes .link")
    open_all(browser)
    assert_tame(browser)


def test_invisible_characters_are_shown_as_escapes(browser: Browser, tmp_path: Path, home: dict[str, str]) -> None:
    feed = Feed()
    feed.put([({"key": "k", "shell": HIDDEN + "\nnext\tline", "decision": "allow", "outcome": "judged"}, None)])
    path = tmp_path / "hidden.html"
    write(str(path), feed, page.meta(name="n", kind="log", live=False), Reader(home, keeps=True))
    browser.open(path.as_uri())
    seen = r"a\u{202e}b\u{2066}c\u{200b}d\e[31m\x00\x07\u{2028}e\u{feff}f\u{e0041}g\u{d800}h\ri"
    assert browser.commands() == [seen + r"\nnext\tline"]
    browser.click(".row")
    assert browser.text("#command") == seen + "\nnext\tline"
    assert browser.js("return [...document.querySelectorAll('#command .esc')].map((e) => e.title)")[:2] == [
        "U+202E",
        "U+2066",
    ]
    assert browser.js("return getComputedStyle(document.getElementById('command')).unicodeBidi") == "isolate"


@pytest.mark.parametrize(
    "attempt",
    [
        "document.body.innerHTML = '<b>x</b>'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "document.write('<b>x</b>')",
        "new DOMParser().parseFromString('<b>x</b>', 'text/html')",
        "const s = document.createElement('script'); s.textContent = 'window.owned=1'; document.body.append(s)",
        "setTimeout('window.owned=1')",
    ],
)
def test_policy_blocks_markup_made_by_the_script_itself(browser: Browser, tmp_path: Path, attempt: str) -> None:
    path = tmp_path / "p.html"
    path.write_text("".join(page.report(page.meta(name="n", kind="log", live=False), [], {}, None)))
    browser.open(path.as_uri())
    assert browser.js(f"try {{ {attempt}; return 'no error'; }} catch (error) {{ return error.name; }}") in (
        "TypeError",
        "EvalError",
    )
    assert browser.js("return window.owned === undefined")
    browser.log()


@pytest.mark.parametrize(
    "attempt",
    [
        "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i)",
        "fetch('http://127.0.0.1:9/x').catch(() => 0)",
        "document.body.style.backgroundImage = \"url('http://127.0.0.1:9/x.png')\"",
        "const f = document.createElement('form'); f.action = 'http://127.0.0.1:9/x'; document.body.append(f); f.submit()",
        "const f = document.createElement('iframe'); f.src = 'http://127.0.0.1:9/'; document.body.append(f)",
    ],
    ids=["image", "fetch", "style", "form", "frame"],
)
def test_policy_blocks_every_request_from_a_report(browser: Browser, tmp_path: Path, attempt: str) -> None:
    path = tmp_path / "p.html"
    path.write_text("".join(page.report(page.meta(name="n", kind="log", live=False), [], {}, None)))
    browser.open(path.as_uri())
    browser.js(
        "window.stopped = []; document.addEventListener('securitypolicyviolation', (e) => window.stopped.push(e.effectiveDirective))"
    )
    browser.js(attempt)
    browser.until(lambda: browser.js("return window.stopped.length"), "the policy stopped it")
    browser.log()


def test_names_of_object_members_are_plain_data(browser: Browser, tmp_path: Path) -> None:
    names = ("__proto__", "constructor", "toString", "hasOwnProperty")
    texts = [
        dumps({"key": name, "shell": name, "decision": "deny", "outcome": name, "event": name, "root": name, "transaction": name, "settled": {"became": name, "changes": [{"kind": name, "path": name}]}, "findings": [{"rule": name, "axis": name, "decision": name}]})
        for name in names
    ]  # fmt: skip
    path = tmp_path / "names.html"
    path.write_text(
        "".join(page.report(page.meta(name="n", kind="log", live=False), texts, {"calls": {}, "parts": []}, None))
    )
    browser.open(path.as_uri())
    assert sorted(browser.commands()) == ["nothing was changed"] * len(names)
    open_all(browser)
    assert browser.js("return ({}).decision === undefined")
