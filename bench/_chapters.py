"""The chapters of docs/benchmarks.md in order, and the code that renders each. A benchmark without a chapter gets a plain one."""

from collections.abc import Callable

from bench import _prose
from bench._plots import FROM_NOTHING
from bench._report import Report
from bench._rows import Row, Section, number
from bench._tables import listed, matrix, notes, times
from bench.accuracy import CONTAINED
from bench.overhead import FLOOR
from corral._lib.records import Record, frozen


@frozen
class Chapter(Record):
    """A heading, the function that renders its text, its plot, and the names of its benchmarks."""

    heading: str
    names: tuple[str, ...]
    text: Callable[[Report], str]
    plot: str = ""


def _value(row: Row) -> str:
    return f"{number(row.value)} {row.unit}"


def _overhead(report: Report) -> str:
    parts = [_prose.OVERHEAD]
    for section in report.found("overhead"):
        parts.append(f"### {section.who or 'measured'}\n\n{matrix(section.rows, times)}\n{_bare_ms(section)}")
        parts.append(notes(section))
    return "\n".join([*parts, _why_missed(report)])


def _bare_ms(section: Section) -> str:
    bare = {row.subject: row.bare for row in section.rows if row.way == "corral" and row.bare is not None}
    return "Bare: " + ", ".join(f"{what} {number(ms)} ms" for what, ms in bare.items()) + ".\n" if bare else ""


def _why_missed(report: Report) -> str:
    """Return which goals are missed, and how much each part of corral adds."""
    ratios = {row.what: row.ratio for row in report.first("overhead").rows if row.ratio is not None}
    missed = [row.subject for row in report.first("overhead").rows if row.met is False]
    if not missed:
        return ""
    said = [f"**The goal is missed for {', '.join(missed)}.** This is where the time goes:\n"]
    steps = (FLOOR, "corral without containment", "corral")
    for what in missed:
        if all(f"{what}: {step}" in ratios for step in steps):
            floor, alone, ours = (ratios[f"{what}: {step}"] for step in steps)
            said.append(
                f"* {what}: {floor:.2f}x for {FLOOR} (over a socket, output by pipes, without guard, result or containment); "
                f"{alone - floor:+.2f} for guard, result and supervision; {ours - alone:+.2f} for the layers of the kernel: {ours:.2f}x."
            )
    said.append(_prose.WHY_MISSED)
    return "\n".join(said)


def _cold(report: Report) -> str:
    section = report.first("cold")
    nothing = [row for row in section.rows if row.subject == FROM_NOTHING]
    parts = [_prose.COLD, matrix(nothing, lambda row: f"{_value(row)}, {times(row)}")]
    parts += [
        f"### {found.who}\n\n{listed(found, lambda row: row.subject == FROM_NOTHING)}" for found in report.found("cold")
    ]
    parts += ["### A process that uses corral once\n", listed(report.first("startup")), notes(section)]
    return "\n".join(parts)


def _hook(report: Report) -> str:
    section = report.first("hook")
    return "\n".join([_prose.HOOK, listed(section), notes(section)])


def _capture(report: Report) -> str:
    section, flood = report.first("capture"), report.first("flood")
    return "\n".join(
        [
            _prose.CAPTURE,
            matrix(section.rows, _value),
            notes(section),
            f"### {flood.title}\n",
            listed(flood),
            notes(flood),
        ]
    )


def _leftovers(report: Report) -> str:
    section = report.first("leftovers")
    trees = [
        f"### {found.title}, {found.who}\n\n{listed(found)}\n{notes(found)}" for found in report.found("tree_kill")
    ]
    return "\n".join([_prose.LEFTOVERS, matrix(section.rows, _value), notes(section), *trees])


def _accuracy(report: Report) -> str:
    section = report.first("accuracy")
    totals = [row for row in section.rows if not row.subject.startswith("right on ")]
    sorts = [row for row in section.rows if row.subject.startswith("right on ")]
    mistakes = [note for note in section.notes if " (benign, " in note or " (dangerous, " in note]
    rest = section.replace(notes=tuple(note for note in section.notes if note not in mistakes))
    parts = [
        _prose.ACCURACY,
        _better(sorts),
        matrix(totals, lambda row: f"{row.value:.0f}"),
        "### Right answers by kind of command\n",
        _turned(sorts),
        notes(rest),
    ]
    if mistakes:
        parts += [
            "### Wrong answers of corral workspace\n",
            "```text",
            *(text.removeprefix(f"{CONTAINED} ") for text in mistakes),
            "```\n",
        ]
    return "\n".join(parts)


def _better(rows: list[Row]) -> str:
    """Return the kinds of commands on which another guard is right more often than `corral workspace`."""
    ours = {row.subject: row for row in rows if row.way == CONTAINED}
    said = [
        f"{row.way} on *{row.subject.removeprefix('right on ')}* ({row.value:.0f} {row.unit}, against {ours[row.subject].value:.0f})"
        for row in rows
        if not row.way.startswith("corral") and row.value > ours[row.subject].value
    ]
    return f"Better than corral workspace: {', '.join(said)}.\n" if said else ""


def _turned(rows: list[Row]) -> str:
    """Return a table with a line for each kind of command. There are more kinds than guards, so guards are the columns."""
    turned = [row.replace(what=f"{row.way}: {row.subject.removeprefix('right on ')}") for row in rows]
    return matrix(turned, lambda row: f"{row.value:.0f} {row.unit}")


def _guard(report: Report) -> str:
    section = report.first("guard")
    return "\n".join([_prose.GUARD, listed(section), notes(section)])


def _plainly(*names: str) -> Callable[[Report], str]:
    def text(report: Report) -> str:
        sections = [section for name in names for section in report.found(name)]
        parts = [_prose.PLAIN[name] for name in names if name in _prose.PLAIN]
        parts += [f"### {section.heading}\n\n{listed(section)}\n{notes(section)}" for section in sections]
        return "\n".join(parts)

    return text


SCALE = ("abreast", "scale", "crowd", "batch", "evals", "host_size")
CHAPTERS = (
    Chapter("Overhead of a command", ("overhead",), _overhead, "bench-overhead.svg"),
    Chapter("Cold start", ("cold", "startup"), _cold, "bench-cold.svg"),
    Chapter("Hooks", ("hook",), _hook, "bench-hook.svg"),
    Chapter("Output", ("capture", "flood"), _capture, "bench-capture.svg"),
    Chapter("Processes left running", ("leftovers", "tree_kill"), _leftovers, "bench-leftovers.svg"),
    Chapter("Accuracy of guards", ("accuracy",), _accuracy, "bench-accuracy.svg"),
    Chapter("Speed of guards", ("guard",), _guard),
    Chapter(
        "Scale",
        SCALE,
        _plainly(*SCALE),
        "bench-scale.svg",
    ),
)


def others(report: Report) -> list[Chapter]:
    """Return a plain chapter for each benchmark that no chapter names."""
    told = {name for chapter in CHAPTERS for name in chapter.names}
    names = dict.fromkeys(section.name for section in report.sections if section.name not in told)
    return [Chapter(name.replace("_", " ").capitalize(), (name,), _plainly(name)) for name in names]
