"""Tests that the benchmark page is generated, that no number is edited by hand, and that other pages state no measured number."""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from bench import _page
from bench._chapters import CHAPTERS
from bench._plots import plots
from bench._report import FILE, Report, read, report_from, to_json
from bench._rows import Row, Section, at_most
from bench._svg import Bar, Panel, drawn
from bench._tables import table
from bench.accuracy import CASES, cases

REPOSITORY = Path(__file__).parents[2]
# Quotes from the pages with limits that corral sets itself. They are not measurements.
SETTINGS = (
    "can send 8 MiB",
    "send at most 8 MiB",
    "keeps 128 MiB",
    "256 MiB for one object",
    "2 GiB and 500,000 for all loose objects",
    "4 GiB for a pack",
    "more than 256 MiB",
    "for 5 to 10 seconds",
    "at most 256 MiB",
    "more than 256 MiB",
    "for 5 to 10 seconds",
    "reaches 16 MiB",
    "over 1 MiB",
    "over 8 MiB",
    "above 16 MiB",
    "longer than 32 MB",
    "up to 16 MiB",
    "every 5 seconds",
    "has 30 seconds to say",
    "would exceed 16 MiB",
    "at most 16 MiB",
    "at most 32 MiB",
    "up to 64 MiB",
    "or at 512 MB",
    "0.15 seconds of CPU time",
    "after 0.2 seconds",
    "at most 128 kB",
    "at most 256 kB",
    "refuses after 4 seconds",
    "refuses after 4 of 10 seconds",
)
MEASURED = re.compile(
    r"(?<![\w.])\d[\d.,]*\s?(?:x|×|ms|µs|us|MiB|MB|GB|GB/s|calls/s|runs/s|percent|seconds?)(?![\w/])|(?<![\w.])\d+(?:\.\d+)?%"
    r"|\| *\d+\.\d+ \(\d+(?:\.\d+)?\) *\|"  # a cell with a ratio, and another ratio in brackets
)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report() -> Report:
    """The report in docs/benchmarks.json."""
    return read()


def test_page_plots_and_readme_match_the_json(report: Report) -> None:
    assert _page.differing(report) == []


def test_edited_number_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    for name in ("docs/images", "docs"):
        (tmp_path / name).mkdir(exist_ok=True, parents=True)
    readme = tmp_path / "README.md"
    readme.write_text((REPOSITORY / "README.md").read_text())
    monkeypatch.setattr(_page, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(_page, "README", readme)
    _page.write(report)
    assert _page.differing(report) == []
    page = tmp_path / "docs" / "benchmarks.md"
    page.write_text(page.read_text().replace("x |", "1x |", 1))
    readme.write_text(readme.read_text().replace("x (goal", "0x (goal", 1))
    (tmp_path / "docs" / "images" / "bench-more.svg").write_text("<svg/>")
    assert {path.name for path in _page.differing(report)} == {"benchmarks.md", "README.md", "bench-more.svg"}


def test_check_runs_as_a_command() -> None:
    command = [sys.executable, "-m", "bench._page", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def documents() -> list[Path]:
    docs = [
        path
        for path in (REPOSITORY / "docs").rglob("*.md")
        if path.name != "benchmarks.md" and "rules" not in path.parts
    ]
    return sorted([*docs, *(REPOSITORY / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md"))])


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_measured_numbers_are_only_on_the_page(path: Path) -> None:
    text = path.read_text()
    if path.name == "README.md":
        text = text[: text.index(_page.BEGIN)] + text[text.index(_page.END) :]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for setting in SETTINGS:
        prose = prose.replace(setting, "")
    told = "measured numbers belong in docs/benchmarks.md; add limits that corral sets itself to SETTINGS"
    assert [line for line in prose.splitlines() if MEASURED.search(line)] == [], told


def test_search_finds_measurements_and_skips_settings() -> None:
    found = ["| 2.2 (1.9) |", "it costs 1.2x", "takes 35 ms", "at 2.5 GB/s", "0.7× as long", "about 5% more"]
    left = ["exit code 126", "Python 3.11", "x86_64", "port 8080", "128 + N", "utf-8"]
    assert [bool(MEASURED.search(line)) for line in (*found, *left)] == [True] * len(found) + [False] * len(left)


def test_missed_goal_is_shown_with_the_cost_of_each_part() -> None:
    rows = (
        Row("/bin/true: corral", 1.2, "ms", 1.0, goal=at_most(1.1)),
        Row("/bin/true: corral without containment", 1.1, "ms", 1.0),
        Row("/bin/true: a process that only spawns", 0.95, "ms", 1.0),
        Row("/bin/true: nono-py 0.16.0", 3.0, "ms", 1.0),
    )
    text = next(chapter for chapter in CHAPTERS if chapter.names == ("overhead",)).text(
        of(Section("t", rows, name="overhead"))
    )
    assert "**The goal is missed for /bin/true.**" in text
    assert "0.95x for a process that only spawns" in text
    assert "+0.15 for guard, result and supervision; +0.10 for the layers of the kernel: 1.20x." in text
    met = of(Section("t", (rows[0].replace(value=1.05), *rows[1:]), name="overhead"))
    assert "missed" not in CHAPTERS[0].text(met)


def of(*sections: Section, **facts: Any) -> Report:
    return Report(facts, sections)


def test_page_has_failed_and_unknown_benchmarks(report: Report) -> None:
    new = Section("transactions", (Row("commit", 1.5, "ms"),), ("a note",), name="transactions", who="as root")
    broke = Section("hook", broke="it took more than 150 seconds", name="hook")
    page = _page.rendered(Report(report.facts, (new, broke)))
    assert "## Transactions" in page
    assert "| commit | 1.5 ms |" in page
    assert "It broke: it took more than 150 seconds" in page


def test_report_survives_a_round_trip(report: Report) -> None:
    data = json.loads(FILE.read_text())
    assert to_json(data) == FILE.read_text()
    assert report_from(data) == report


def test_every_bar_is_drawn_and_described_in_text(report: Report) -> None:
    for name, text in plots(report).items():
        root = ET.fromstring(text)
        said = root.findtext(f"{SVG}desc")
        assert root.findtext(f"{SVG}title"), name
        assert said, name
        shown = {element.text for element in root.iter(f"{SVG}text")}
        assert all(part.rpartition(": ")[2] in shown for part in said.split("; ")), name
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_every_colour_has_a_texture_and_a_dark_variant() -> None:
    text = drawn("t", [Panel("p", (Bar("a", ((1.0, "good"), (2.0, "mild"), (0.5, "bad")), "3"),))], {"good": "right"})
    assert text.count("prefers-color-scheme: dark") == 1
    textures = dict(re.findall(r"^\.(ours|other|bare|bad)[^{]*\{ fill: ([^;]+);", text, re.MULTILINE))
    assert (textures["other"], textures["bad"]) == ("url(#stripes)", "url(#dots)")
    assert textures["ours"] != textures["bare"]


def test_text_from_outside_is_escaped() -> None:
    assert "<script>" not in drawn("<script>", [Panel("<b>", (Bar("<i>", ((1.0, "other"),), "1 & 2"),))], {})
    assert table(("a",), [("x|y\n<script>",)]) == "| a |\n| --- |\n| x\\|y &lt;script> |\n"


def test_cases_are_unique_and_have_one_kind() -> None:
    carried = cases()
    assert {case.kind for case in carried} == {"benign", "dangerous"}
    assert [command for command, count in Counter(case.command for case in carried).items() if count > 1] == []
    assert sum(
        len(commands) for sorts in tomllib.loads(CASES.read_text()).values() for commands in sorts.values()
    ) == len(carried)
