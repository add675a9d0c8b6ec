"""Draws the plots of a report. A plot whose numbers were not measured is left out."""

from collections.abc import Callable

from bench._report import Report
from bench._rows import Row, goal_in_words, number
from bench._svg import Bar, Panel, drawn
from bench.accuracy import ANSWERS

WHOSE = {"ours": "corral", "other": "others", "bare": "no sandbox"}
FEW_COMMANDS = ("/bin/true", "a Python script")
FROM_NOTHING = "from nothing to the end of /bin/true"
NO_SANDBOX = ("subprocess.run", "posix_spawn", "a process that only spawns", "bare")


def plots(report: Report) -> dict[str, str]:
    """Return every plot that can be drawn, by file name."""
    made = {name: plot(report) for name, plot in PLOTS.items()}
    return {f"bench-{name}.svg": text for name, text in made.items() if text}


def shortened(way: str) -> str:
    """Return a name without the revision of its Debian package."""
    name, _, version = way.rpartition(" ")
    return f"{name} {version.partition('-')[0].partition('+')[0]}" if name and version[:1].isdigit() else way


def _texture(way: str) -> str:
    return "ours" if way.startswith("corral") else "bare" if way.startswith(NO_SANDBOX) else "other"


def _bars(rows: list[Row], said: Callable[[Row], str], length: Callable[[Row], float]) -> tuple[Bar, ...]:
    ranked = sorted(rows, key=length)
    return tuple(Bar(shortened(row.way), ((length(row), _texture(row.way)),), said(row)) for row in ranked)


def _of(report: Report, name: str, subject: str) -> list[Row]:
    return [row for row in report.first(name).rows if row.subject == subject]


def _ratio(row: Row) -> float:
    return row.ratio or 0.0


def _goal(rows: list[Row]) -> tuple[float, str] | None:
    """Return the goal of these rows. All rows that have a goal have the same one."""
    return next(((row.goal.bound, f"goal {goal_in_words(row)}") for row in rows if row.goal is not None), None)


def _overhead(report: Report) -> str:
    panels = []
    for what in FEW_COMMANDS:
        rows = _of(report, "overhead", what)
        bars = _bars(rows, lambda row: f"{_ratio(row):.2f}x  ({number(row.value)} ms)", _ratio)
        panels.append(Panel(f"{what}, times a bare subprocess.run", bars, logarithmic=True, goal=_goal(rows)))
    return drawn("Overhead of a command (logarithmic)", panels, WHOSE) if any(p.bars for p in panels) else ""


def _cold(report: Report) -> str:
    rows = _of(report, "cold", FROM_NOTHING)
    bars = _bars(rows, lambda row: f"{number(row.value)} ms", lambda row: row.value)
    return (
        drawn("A process from its start to the end of one contained /bin/true", [Panel("milliseconds", bars)], WHOSE)
        if bars
        else ""
    )


def _hook(report: Report) -> str:
    rows = _of(report, "hook", "git status")
    bars = _bars(rows, lambda row: f"{number(row.value)} ms, {_ratio(row):.1f}x", _ratio)
    panel = Panel("git status, times python -I -S -c pass", bars, goal=_goal(rows))
    return drawn("A hook from start to end", [panel], WHOSE) if bars else ""


def _capture(report: Report) -> str:
    speed = _bars(_of(report, "capture", "taken in"), lambda row: f"{number(row.value)} GB/s", lambda row: row.value)
    memory = _bars(_of(report, "capture", "memory"), lambda row: f"{number(row.value)} MiB", lambda row: row.value)
    panels = [
        Panel("taken in, GB/s (more is better)", speed[::-1]),
        Panel("growth of the caller's memory, MiB (less is better)", memory),
    ]
    return drawn("A command that prints 256 MB", panels, WHOSE) if speed else ""


def _leftovers(report: Report) -> str:
    rows = _of(report, "leftovers", "processes left")
    bars = _bars(rows, lambda row: f"{row.value:.0f} left", lambda row: row.value)
    return (
        drawn("Processes that outlive a time limit: a command and its ten daemons", [Panel("processes", bars)], WHOSE)
        if bars
        else ""
    )


def _accuracy(report: Report) -> str:
    rows = report.first("accuracy").rows
    guards = list(dict.fromkeys(row.way for row in rows))
    legend = {"good": "right", "mild": "asked", "bad": "wrong"}
    panels = []
    for kind, words in ANSWERS.items():
        textures = dict(zip(words.values(), ("good", "mild", "bad"), strict=True))
        bars = []
        for guard in guards:
            counts = {
                row.subject.partition(", ")[2]: row
                for row in rows
                if row.way == guard and row.subject.startswith(f"{kind}, ")
            }
            parts = tuple((counts[word].value, texture) for word, texture in textures.items())
            bars.append(Bar(guard, parts, " · ".join(f"{counts[word].value:.0f} {word}" for word in textures)))
        unit = next((row.unit for row in rows if row.subject.startswith(f"{kind}, ")), "")
        panels.append(Panel(f"{kind} commands, {unit}", tuple(bars)))
    return drawn("Accuracy of guards", panels, legend) if guards else ""


def _scale(report: Report) -> str:
    abreast = _bars(_of(report, "abreast", "two at a time"), lambda row: number(row.value), lambda row: row.value)
    bars = []
    for row in report.first("scale").rows:
        bars.append(Bar(f"corral, {row.what}", ((row.value, "ours"),), number(row.value)))
        if row.bare is not None:
            bars.append(Bar("bare, as many workers", ((row.bare, "bare"),), number(row.bare)))
    panels = [Panel("two at a time", abreast[::-1]), Panel("by number of workers", tuple(bars))]
    panels = [panel for panel in panels if panel.bars]
    return drawn("Many calls, calls a second (more is better)", panels, WHOSE) if panels else ""


PLOTS: dict[str, Callable[[Report], str]] = {
    "overhead": _overhead,
    "cold": _cold,
    "hook": _hook,
    "capture": _capture,
    "leftovers": _leftovers,
    "accuracy": _accuracy,
    "scale": _scale,
}
