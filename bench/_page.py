"""Renders docs/benchmarks.md, its plots and the README's table from docs/benchmarks.json and nothing else.

`python -m bench._page` writes the files. With `--check` it compares them with the JSON and fails if one differs.
"""

import re
import sys
from pathlib import Path

from bench import _prose
from bench._chapters import CHAPTERS, others
from bench._plots import plots
from bench._report import DOCS, Report, read
from bench._rows import goal_in_words, reached, summary
from bench._tables import table

README = DOCS.parent / "README.md"
NO_BREAK = "\N{NO-BREAK SPACE}"
BEGIN, END = "<!-- made by make bench-all -->\n", "<!-- end of what make bench-all made -->\n"


def rendered(report: Report) -> str:
    """Return the page."""
    parts = [_prose.INTRO, _short(report), _goals(report)]
    drawn = plots(report)
    for chapter in (*CHAPTERS, *others(report)):
        lines = [f"## {chapter.heading}\n"]
        if chapter.plot in drawn:
            lines.append(f"![{chapter.heading}: the numbers of the table below as bars](images/{chapter.plot})\n")
        parts.append("\n".join([*lines, chapter.text(report)]))
    parts += [_machine(report), _not_compared(report)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _short(report: Report) -> str:
    facts = report.facts
    load = f"load {facts['load']['one_minute']:g} before and {facts['load_after']['one_minute']:g} after (the run itself causes about 1)"
    where = (
        f"{facts['cores']} cores, {facts['processor']}, kernel {facts['kernel']}, Python {facts['versions']['Python']}"
    )
    busy = facts["load"]["one_minute"] > facts["cores"] / 2
    note = " **The machine was busy: ratios are rough, milliseconds too high.**" if busy else ""
    lines = [(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", what), found) for what, found in in_short(report)]
    return f"## In short\n\nMeasured on {facts['at']}: {where}; {load}.{note}\n\n{table(('', 'measured'), lines)}"


def _goals(report: Report) -> str:
    """Return a table with a line for each goal and a column for each user, missed goals first."""
    judged = [(section, row) for section in report.sections for row in section.rows if row.met is not None]
    chapters = {name: chapter for chapter in (*CHAPTERS, *others(report)) for name in chapter.names}
    users = list(dict.fromkeys(section.who for section, _ in judged))
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    missed = set()
    for section, row in judged:
        # In a chapter with several benchmarks, the line names the benchmark that the goal belongs to.
        what = row.what if len(chapters[section.name].names) == 1 else f"{row.what} ({section.title})"
        key = (section.name, what, goal_in_words(row).replace(" ", NO_BREAK))
        found.setdefault(key, {})[section.who] = reached(row) if row.met else f"**{reached(row)}**"
        if not row.met:
            missed.add(key)
    lines = [
        (_link(chapters[name].heading), what, *(said.get(who, "") for who in users), goal, verdict)
        for verdict, keys in (("**missed**", missed), ("met", found.keys() - missed))
        for (name, what, goal), said in found.items()
        if (name, what, goal) in keys
    ]
    met = summary(list(report.sections)).splitlines()[0]
    head = f"## Goals\n\n{met}. {_prose.GOALS}\n"
    return head + table(("", "what", *users, "goal", ""), lines)


def _link(heading: str) -> str:
    return f"[{heading}](#{heading.lower().replace(' ', '-')})"


def _machine(report: Report) -> str:
    facts = report.facts
    lines = [
        ("measured", f"{facts['at']}, in {facts['seconds'] / 60:.0f} minutes, {facts['rounds']} rounds"),
        ("corral", facts["corral"]),
        ("machine", f"{facts['cores']} cores, {facts['processor']}, {facts['memory_gib']:.0f} GiB, {facts['machine']}"),
        ("kernel", facts["kernel"]),
        ("load before, over one and five minutes", _loads(facts["load"])),
        ("load after", _loads(facts["load_after"])),
        *facts["versions"].items(),
    ]
    return f"## Machine and versions\n\n{table(('', ''), lines)}"


def _loads(load: dict[str, float]) -> str:
    return f"{load['one_minute']:g}, {load['five_minutes']:g}"


def _not_compared(report: Report) -> str:
    lines = [(name, why) for name, why in report.facts["not_installed"].items()]
    return (
        f"## Tools that could not be installed\n\n{_prose.NOT_INSTALLED}\n{table(('', 'why'), lines)}" if lines else ""
    )


def in_short(report: Report) -> list[tuple[str, str]]:
    """Return the lines of the summary: what was measured, and the number."""
    lines = []
    if row := report.row("overhead", "/bin/true: corral"):
        best = min(
            (r for r in report.first("overhead").rows if r.subject == "/bin/true" and r.way[-1].isdigit()),
            key=lambda r: r.ratio or 0,
            default=None,
        )
        other = f"; the next sandbox, {best.way}: {best.ratio:.1f}x" if best is not None else ""
        lines.append(
            ("a contained `/bin/true`, against a bare `subprocess.run`", f"{row.ratio:.2f}x (goal 1.10x){other}")
        )
    if row := report.row("overhead", "a C compile: corral"):
        lines.append(("a contained C compile, against a bare one", f"{row.ratio:.2f}x"))
    if row := report.row("cold", "Sandbox() to its first result"):
        lines.append(("a new sandbox to its first result", f"{row.value:.0f} ms, {row.ratio:.1f}x a bare interpreter"))
    if row := report.row("hook", "git status: corral"):
        lines.append(
            ("a hook, policy and audit line included", f"{row.value:.0f} ms, {row.ratio:.1f}x a bare interpreter")
        )
    if row := report.row("capture", "memory: corral"):
        lines.append(("memory for 256 MB of output", f"{row.value:.1f} MiB; `subprocess.run`: {row.bare:.0f} MiB"))
    if row := report.row("leftovers", "processes left: corral"):
        lines.append(("daemons left after a time limit, of ten", f"{row.value:.0f}"))
    return [*lines, *_guards(report)]


def readme_table(report: Report) -> str:
    """Return the table that the README has between its two marks."""
    told = "The method, the machine, other sandboxes and missed goals: [benchmarks](docs/benchmarks.md).\n"
    return f"{table(('', 'measured'), in_short(report))}\n{told}"


def _guards(report: Report) -> list[tuple[str, str]]:
    allowed = report.row("accuracy", "benign, allowed: corral workspace")
    missed = report.row("accuracy", "dangerous, let through: corral workspace")
    if allowed is None or missed is None:
        return []
    total = int(missed.unit.removeprefix("of "))
    said = f"{allowed.value:.0f} {allowed.unit} benign commands allowed, {total - missed.value:.0f} of {total} dangerous ones stopped or asked about"
    return [("the guard of `workspace` alone, on [our test commands](bench/cases.toml)", said)]


def files(report: Report) -> dict[Path, str]:
    """Return the text of every file that is made from a report."""
    made = {DOCS / "images" / name: text for name, text in plots(report).items()}
    before, _, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    if not after:
        raise SystemExit(f"{README.name} has no marks for the table of benchmarks")
    return {
        DOCS / "benchmarks.md": rendered(report),
        **made,
        README: before + BEGIN + readme_table(report) + END + after,
    }


def write(report: Report) -> None:
    """Write all files, and remove plots that are no longer drawn."""
    made = files(report)
    (DOCS / "images").mkdir(exist_ok=True)
    for path in (DOCS / "images").glob("bench-*.svg"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text)


def differing(report: Report) -> list[Path]:
    """Return the files that differ from what the report gives."""
    made = files(report)
    strange = [path for path in (DOCS / "images").glob("bench-*.svg") if path not in made]
    return [path for path, text in made.items() if not path.exists() or path.read_text() != text] + strange


def main() -> int:
    """Write the files, or compare them with `--check`."""
    report = read()
    if "--check" not in sys.argv[1:]:
        write(report)
        return 0
    wrong = differing(report)
    for path in wrong:
        print(
            f"{path.relative_to(DOCS.parent)} is not what docs/benchmarks.json says: make bench-all, or python -m bench._page"
        )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
