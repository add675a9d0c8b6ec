"""What was measured is on one page, which the tool wrote: nobody edits a number, and no number stands elsewhere."""

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
# Bounds that the program sets itself, word for word: nobody measured them.
SETTINGS = (
    "reaches 16 MiB",
    "over 1 MiB",
    "over 8 MiB",
    "above 16 MiB",
    "longer than 32 MB",
    "up to 16 MiB",
    "every 5 seconds",
    "30 seconds for what a client has to say",
    "would fill 16 MiB",
    "of at most 16 MiB",
    "at most 32 MiB",
    "at most 64 MiB",
    "or at 512 MB",
    "refuses after 4 seconds",
    "refuses after 4 of 10 seconds",
)
MEASURED = re.compile(
    r"(?<![\w.])\d[\d.,]*\s?(?:x|×|ms|µs|us|MiB|MB|GB|GB/s|calls/s|runs/s|percent|seconds?)(?![\w/])|(?<![\w.])\d+(?:\.\d+)?%"
    r"|\| *\d+\.\d+ \(\d+(?:\.\d+)?\) *\|"  # a cell with a ratio, and another in brackets
)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report() -> Report:
    """What the project carries."""
    return read()


def test_the_page_the_plots_and_the_readme_are_what_the_json_says(report: Report) -> None:
    assert _page.differing(report) == []


def test_a_number_that_somebody_edited_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
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


def test_the_check_is_a_command() -> None:
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
def test_no_measured_number_stands_elsewhere(path: Path) -> None:
    text = path.read_text()
    if path.name == "README.md":
        text = text[: text.index(_page.BEGIN)] + text[text.index(_page.END) :]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for setting in SETTINGS:
        prose = prose.replace(setting, "")
    told = "what was measured stands in docs/benchmarks.md; what the program sets itself belongs into SETTINGS"
    assert [line for line in prose.splitlines() if MEASURED.search(line)] == [], told


def test_the_search_for_numbers_finds_measurements_and_leaves_settings() -> None:
    found = ["| 2.2 (1.9) |", "it costs 1.2x", "takes 35 ms", "at 2.5 GB/s", "0.7× as long", "about 5% more"]
    left = ["exit code 126", "Python 3.11", "x86_64", "port 8080", "128 + N", "utf-8"]
    assert [bool(MEASURED.search(line)) for line in (*found, *left)] == [True] * len(found) + [False] * len(left)


def test_missed_goals_are_said_with_what_the_rows_say_about_why() -> None:
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


def test_what_broke_and_what_no_chapter_knows_is_on_the_page(report: Report) -> None:
    new = Section("transactions", (Row("commit", 1.5, "ms"),), ("a note",), name="transactions", who="as root")
    broke = Section("hook", broke="it took more than 150 seconds", name="hook")
    page = _page.rendered(Report(report.facts, (new, broke)))
    assert "## Transactions" in page
    assert "| commit | 1.5 ms |" in page
    assert "It broke: it took more than 150 seconds" in page


def test_a_report_survives_being_written(report: Report) -> None:
    data = json.loads(FILE.read_text())
    assert to_json(data) == FILE.read_text()
    assert report_from(data) == report


def test_every_way_that_can_be_drawn_is_drawn_and_said_in_words(report: Report) -> None:
    for name, text in plots(report).items():
        root = ET.fromstring(text)
        said = root.findtext(f"{SVG}desc")
        assert root.findtext(f"{SVG}title"), name
        assert said, name
        shown = {element.text for element in root.iter(f"{SVG}text")}
        assert all(part.rpartition(": ")[2] in shown for part in said.split("; ")), name
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_colour_is_never_alone_and_there_is_a_dark_set() -> None:
    text = drawn("t", [Panel("p", (Bar("a", ((1.0, "good"), (2.0, "mild"), (0.5, "bad")), "3"),))], {"good": "right"})
    assert text.count("prefers-color-scheme: dark") == 1
    textures = dict(re.findall(r"^\.(ours|other|bare|bad)[^{]*\{ fill: ([^;]+);", text, re.MULTILINE))
    assert (textures["other"], textures["bad"]) == ("url(#stripes)", "url(#dots)")
    assert textures["ours"] != textures["bare"]


def test_text_from_outside_stays_text() -> None:
    assert "<script>" not in drawn("<script>", [Panel("<b>", (Bar("<i>", ((1.0, "other"),), "1 & 2"),))], {})
    assert table(("a",), [("x|y\n<script>",)]) == "| a |\n| --- |\n| x\\|y &lt;script> |\n"


def test_every_case_is_there_once_and_of_one_kind() -> None:
    carried = cases()
    assert {case.kind for case in carried} == {"benign", "dangerous"}
    assert [command for command, count in Counter(case.command for case in carried).items() if count > 1] == []
    assert sum(
        len(commands) for sorts in tomllib.loads(CASES.read_text()).values() for commands in sorts.values()
    ) == len(carried)
