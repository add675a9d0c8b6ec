"""The page in a real browser: it loads, filters, opens, follows along, and is usable by keys, in any theme and width."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from chromium import CALLS, OUTSIDE, Browser
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from corral import Containment, Sandbox, SandboxConfig
from corral.apps.evals.outcome import Outcome
from corral.apps.evals.results import RESULTS
from corral.apps.viewer import LiveView, call_list, page, write
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed, dumps
from corral.apps.viewer.http_server import Server
from corral.apps.viewer.sources import EvalSource
from corral.audit.audit_log import Log, new_id
from corral.containment.layers import LAYERS
from corral.integrations.gates import GatedSandbox, ToolAllowlist, noted
from corral.integrations.telemetry.otel import instrument
from corral.model.call import Call, Connection


def test_log_is_shown_and_the_token_leaves_the_address(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None]
) -> None:
    log(*CALLS)
    server = serve()
    browser.open(server.url)
    assert browser.commands() == list(reversed(CALLS))
    assert browser.texts(".chip b")[:4] == ["5", "3", "0", "2"]
    assert browser.js("return location.href") == f"http://127.0.0.1:{server.port}/"
    browser.driver.refresh()
    browser.until(browser.commands, "the reloaded page has its token still")


def test_page_without_token_shows_nothing(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None]
) -> None:
    log("ls")
    browser.driver.get(f"http://127.0.0.1:{serve().port}/")
    browser.until(lambda: browser.text("#live") == "no token", "the page shows that the token is missing")
    assert browser.commands() == []
    assert [line for line in browser.log() if "401" not in line] == []


def test_page_is_not_served_under_another_host_name(browser: Browser, serve: Callable[..., Server]) -> None:
    server = serve()
    browser.driver.get(f"http://evil.test:{server.port}/#token={server.token}")
    assert "names another server" in browser.text("body")
    assert [line for line in browser.log() if "421" not in line and "Opener-Policy" not in line] == []


def test_filters_narrow_the_list_alone_and_together(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    log(*CALLS)
    log("ls -l", root=other)
    browser.open(serve().url)

    def choose(name: str, value: str) -> None:
        browser.js(
            "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))",
            name,
            value,
        )
        browser.settle()

    browser.click(".chip", "deny")
    assert browser.commands() == ["sudo id", OUTSIDE]
    choose("axis", "path")
    assert browser.commands() == [OUTSIDE]
    assert "Clear" in browser.texts("#clear")
    browser.click("#clear")
    assert len(browser.commands()) == 6
    choose("rule", "name-sudo")
    assert browser.commands() == ["sudo id"]
    choose("rule", "")
    choose("project", str(other))
    assert browser.commands() == ["ls -l"]
    browser.press(Keys.ESCAPE)
    browser.press("/", "N", "O", "T", "E", "S")
    browser.until(lambda: browser.commands() == ["sort notes.txt | head -1"], "the text is searched for")
    browser.press(Keys.ESCAPE, Keys.ESCAPE)
    browser.click(".chip", "failed")
    assert browser.commands() == ["exit 3"]


def test_call_opened_by_keys_shows_parts_and_findings(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None]
) -> None:
    log(*CALLS)
    browser.open(serve().url)
    browser.press("j", "j", "j", "k", "j", Keys.ENTER)
    browser.until(lambda: browser.texts("#parts"), "the call is read")
    assert browser.text("#command") == OUTSIDE
    assert browser.texts("#command mark.deny") == ["/etc/shadow"]
    assert browser.texts("#parts .what") == ["cd src", "cat /etc/shadow"]
    assert browser.texts("#parts .bad .what") == ["cat /etc/shadow"]
    assert "read-secret" in browser.text("#parts .bad .effects")
    (card,) = browser.texts(".card")
    assert "path-read-secret" in card
    assert "outside project root" in card
    assert browser.texts(".card .instead") != []
    assert browser.js("return document.activeElement.id") == "detail"
    browser.press(Keys.ESCAPE)
    assert browser.texts("#detail") == []
    browser.press("k", Keys.ENTER)
    assert browser.text("#command") == "sudo id"


def test_detail_shows_the_result_and_that_output_is_not_kept(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None]
) -> None:
    log("sort notes.txt")
    browser.open(serve().url)
    browser.click(".row")
    browser.until(
        lambda: any("never keeps" in text for text in browser.texts("#detail section")), "the output section is shown"
    )
    sections = dict(zip(browser.texts("#detail h2"), browser.texts("#detail section"), strict=False))
    assert "13 B on stdout" in sections["Output not kept"]
    assert browser.texts(".layers .missing") != []
    assert "none" in sections["Enforcement"]
    assert "CPU" in sections["Cost"]


def test_page_follows_the_log_and_merges_hook_gates_and_run(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None], home: dict[str, str], project: Path
) -> None:
    log("ls")
    browser.open(serve().url)
    config = SandboxConfig(str(project), containment=Containment(backend="none"))
    with Sandbox(config) as box:
        hook = new_id()
        Log(config, event="hook", host="claude", environ=home).verdict(
            Call("ls -l", True), box.check("ls -l", shell=True), id_=hook
        )
        browser.until(lambda: browser.commands() == ["ls -l", "ls"], "the hook's verdict is shown")
        assert "judged only" in browser.texts(".row .ending")[0]
        browser.click(".row", "ls -l")
        box.on_result = Log(config, call=hook, environ=home).result
        gated = GatedSandbox(
            box, ToolAllowlist("run_command"), on_ruling=noted(Log(config, event="gate", environ=home))
        )
        gated.run("ls -l", shell=True)
    browser.until(lambda: len(browser.texts(".chain li")) == 3, "the ruling and the run belong to the same call")
    assert browser.commands() == ["ls -l", "ls"]
    assert [text.split(" ")[0] for text in browser.texts(".chain li")] == ["hook", "gates", "run"]
    assert "passed tools → sandbox" in browser.texts(".chain li")[1]
    browser.until(lambda: "exit 0" in browser.texts(".row .ending")[0], "the row shows the run")


def test_live_sandbox_shows_truncated_output(browser: Browser, project: Path) -> None:
    config = SandboxConfig(str(project), max_output_bytes=1000, containment=Containment(backend="none"))
    with LiveView(str(project)) as view, Sandbox(config, on_result=view.result) as box:
        browser.open(view.url)
        box.run(["seq", "1", "9999"])
        browser.until(lambda: browser.commands() == ["seq 1 9999"], "the run is shown")
        browser.click(".row")
        browser.until(lambda: browser.texts(".cutline"), "the output is there")
        assert "truncated" in browser.text(".cutline")
        assert browser.text("pre.output").startswith("1\n2\n3\n")
        assert browser.text("pre.output").endswith("9998\n9999\n")
        report = project / "report.html"
        view.write(str(report))
        assert report.stat().st_mode & 0o777 == 0o600
        browser.open(report.as_uri())
        browser.click(".row")
        assert "truncated" in browser.text(".cutline")


def test_report_from_disk_loads_nothing(browser: Browser, home: dict[str, str], project: Path, tmp_path: Path) -> None:
    feed = Feed()
    feed.put(
        [
            (
                {
                    "key": "a",
                    "id": "a",
                    "shell": OUTSIDE,
                    "root": str(project),
                    "decision": "deny",
                    "outcome": "refused",
                },
                None,
            )
        ]
    )
    path = tmp_path / "r.html"
    write(str(path), feed, page.meta(name="n", kind="log", live=False), Reader(home, keeps=True))
    browser.open(path.as_uri())
    assert browser.commands() == [OUTSIDE]
    browser.click(".row")
    assert browser.texts("#parts .bad .what") == ["cat /etc/shadow"]
    assert browser.js("return performance.getEntriesByType('resource').map((e) => e.name)") == []


def test_plot_of_rules_links_to_the_calls(
    browser: Browser, serve: Callable[..., Server], log: Callable[..., None]
) -> None:
    log(*CALLS)
    browser.open(serve().url)
    browser.press("2")
    browser.until(lambda: browser.texts(".plot"), "the plots are drawn")
    titles = [text.partition(" ")[0] for text in browser.texts(".plot figcaption")]
    assert titles == ["Verdicts", "Refusals", "Durationsmedian", "CPU", "Peak", "Bytes", "Disk"]
    assert browser.js(
        "return [...document.querySelectorAll('.plot > svg rect')].every((r) => Number(r.getAttribute('height')) >= 0)"
    )
    browser.click(".bars button", "name-sudo")
    assert browser.commands() == ["sudo id"]


def test_refusal_without_rule_is_counted_in_plots(browser: Browser, tmp_path: Path, home: dict[str, str]) -> None:
    feed = Feed()
    result = {"id": "a", "argv": ["ls"], "exit_code": -100, "denied": True, "reason": "a person said no"}
    feed.put([call_list.of_result(result, root="/p")])
    path = tmp_path / "r.html"
    write(str(path), feed, page.meta(name="n", kind="results", live=False), Reader(home, keeps=True))
    browser.open(path.as_uri())
    browser.press("2")
    browser.until(lambda: browser.texts(".plot .note"), "the plots are drawn")
    assert browser.texts(".plot .note")[0] == "No rule asked about or refused any of these calls."


def outcome(name: str, status: str, *words: str) -> Outcome:
    call = {
        "shell": f"true # {name}",
        "profile": "strict",
        "exit_code": 0,
        "decision": "allow",
        "rules": [],
        "denied": False,
        "duration_ms": 2.0,
    }
    return Outcome(name, "d", status, ("tag",), "t.toml:1", words, calls=(call,), duration_ms=3.0)


def run_of(folder: Path, *outcomes: Outcome) -> str:
    folder.mkdir()
    (folder / RESULTS).write_text("".join(json.dumps(found.to_dict()) + "\n" for found in outcomes))
    return str(folder)


def test_two_eval_runs_are_compared(browser: Browser, serve: Callable[..., Server], tmp_path: Path) -> None:
    before = run_of(
        tmp_path / "before", outcome("a", "passed"), outcome("b", "failed", "was 1"), outcome("c", "passed")
    )
    after = run_of(
        tmp_path / "after",
        outcome("a", "failed", "exit_code: wanted 0"),
        outcome("b", "passed"),
        outcome("d", "passed"),
    )
    browser.open(serve(EvalSource([before, after])).url)
    browser.until(lambda: browser.texts("#changes tbody tr"), "the comparison is shown")
    rows = [text.split() for text in browser.texts("#changes tbody tr td:first-child")]
    assert rows == [["broken"], ["mended"], ["new"], ["gone"]]
    assert "exit_code: wanted 0" in browser.text("#changes")
    assert browser.texts(".eval h1") == ["before", "after"]
    assert browser.texts(".eval .note")[:2] == ["67% of 3 tasks passed"] * 2
    browser.click("#only-bad")
    assert len(browser.texts("#tasks tbody tr")) == 1
    browser.click("#tasks .link", "a")
    assert browser.commands() == ["true # a", "true # a"]


def test_100000_calls_are_scrolled_searched_and_sorted(browser: Browser, tmp_path: Path) -> None:
    def texts() -> list[str]:
        made = []
        for n in range(100_000):
            decision = "deny" if n % 10 == 0 else "allow"
            call = {
                "key": f"k{n}",
                "shell": f"echo {n}",
                "at": 1794736800000 + n * 500,
                "decision": decision,
                "root": f"/p{n % 7}",
                "outcome": "ok",
            }
            call |= {"findings": [{"rule": "name-x", "axis": "name", "decision": "deny"}]} if decision == "deny" else {}
            made.append(
                dumps(
                    call
                    | {
                        "result": {
                            "exit_code": 0,
                            "duration_ms": n % 977,
                            "usage": {"user_seconds": 0.01, "peak_memory_bytes": 4096 * n},
                        }
                    }
                )
            )
        return made

    path = tmp_path / "large.html"
    path.write_text(
        "".join(page.report(page.meta(name="n", kind="log", live=False), texts(), {"calls": {}, "parts": []}, None))
    )
    browser.open(path.as_uri())
    assert browser.text(".chip[data-chip=all]") == "100,000calls"
    assert browser.commands()[0] == "echo 99999"
    assert browser.js("return document.querySelectorAll('.row').length") < 100
    browser.press(Keys.END)
    assert browser.commands()[-1] == "echo 0"
    assert browser.js("return document.querySelectorAll('.row').length") < 100
    browser.click(".chip", "deny")
    assert browser.text(".chip[data-chip=deny]") == "10,000deny"
    browser.press("/", "e", "c", "h", "o", " ", "9", "9", "9", "9", "0")
    browser.until(lambda: browser.commands() == ["echo 99990"], "the text is searched for")
    browser.press(Keys.ESCAPE, Keys.ESCAPE, Keys.ESCAPE)
    browser.click("#head button", "Took")
    assert browser.texts(".row .took")[0] == "976 ms"
    browser.press("2")
    browser.until(lambda: len(browser.texts(".plot")) == 7, "the plots are drawn")


def test_time_range_is_selected_by_dragging_and_by_keys(browser: Browser, tmp_path: Path) -> None:
    texts = [
        dumps({"key": str(n), "shell": f"echo {n}", "at": 1794736800000 + n * 1000, "decision": "allow", "outcome": "ok"})
        for n in range(11)
    ]  # fmt: skip
    path = tmp_path / "r.html"
    path.write_text(
        "".join(page.report(page.meta(name="n", kind="log", live=False), texts, {"calls": {}, "parts": []}, None))
    )
    browser.open(path.as_uri())
    timeline = browser.driver.find_element("css selector", "#timeline svg")
    middle = timeline.rect["width"] / 2
    ActionChains(browser.driver).move_to_element_with_offset(timeline, -10, 0).click_and_hold().move_by_offset(
        int(middle) - 30, 0
    ).release().perform()
    browser.settle()
    assert browser.commands() == [f"echo {n}" for n in (9, 8, 7, 6, 5)]
    browser.press(Keys.ESCAPE)
    assert len(browser.commands()) == 11
    browser.press("j", "j", "j", "]", Keys.END, "k", "[")
    assert browser.commands() == [f"echo {n}" for n in (8, 7, 6, 5, 4, 3, 2, 1)]
    assert len(browser.texts("#timeline .brush")) <= 1


def test_spans_and_connections_are_shown(browser: Browser, project: Path) -> None:
    provider = TracerProvider()
    config = SandboxConfig(str(project), containment=Containment(backend="none"))
    with LiveView(str(project)) as view, Sandbox(config) as box:
        provider.add_span_processor(SimpleSpanProcessor(view.spans))  # type: ignore[arg-type]
        instrument(box, tracer_provider=provider)
        connection = Connection("index.example:443", "refused", "192.0.2.1", "not granted", count=3)
        box.on_result = lambda result: view.result(result.replace(connections=(connection,), transaction="t1"))
        box.run(["ls"])
        browser.open(view.url)
        browser.click(".row")
        browser.until(lambda: browser.texts(".spans td"), "the spans are there")
        assert browser.texts(".spans td:first-child")[0] == "execute_tool run_command"
        shown = " ".join(browser.texts("#detail section"))
        assert "index.example:443 refused · 3 times" in shown
        assert "at 192.0.2.1" in shown
        assert "t1" in shown
    provider.shutdown()


def test_entry_without_a_call_is_a_note_without_verdict(
    browser: Browser, serve: Callable[..., Server], home: dict[str, str], project: Path
) -> None:
    Log(SandboxConfig(str(project)), event="trust", environ=home).note({"reason": "corral.toml was trusted"})
    browser.open(serve().url)
    assert browser.texts(".row .verdict") == ["note"]
    assert browser.texts(".row .ending") == ["trust"]
    assert browser.commands() == ["corral.toml was trusted"]


@pytest.mark.parametrize(
    ("network", "said"), [({}, "held where it was asked for"), ({"network": "on"}, "not asked for")], ids=str
)
def test_optional_layer_is_not_shown_as_held(
    browser: Browser, tmp_path: Path, network: dict[str, str], said: str
) -> None:
    result = {"exit_code": 0, "backend": "warden", "enforcement": "partial", "missing_layers": ["seccomp"], **network}
    call = {"key": "k", "argv": ["ls"], "decision": "allow", "outcome": "ok", "result": result}
    path = tmp_path / "r.html"
    path.write_text(
        "".join(
            page.report(page.meta(name="n", kind="log", live=False), [dumps(call)], {"calls": {}, "parts": []}, None)
        )
    )
    browser.open(path.as_uri())
    browser.click(".row")
    told = dict(text.split(": ") for text in browser.texts(".layers li"))
    assert told.pop(said) == "net"
    assert told.pop("missing") == "seccomp"
    assert set(told) == {"held"}
    assert len(browser.texts(".layers li")) == len(LAYERS)
