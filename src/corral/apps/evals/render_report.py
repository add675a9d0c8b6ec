"""Formats runs, comparisons and the progress of a run as text for a terminal. Pure: returns text, never prints."""

from __future__ import annotations

from corral._lib.terminal import clip, columns, pad, printable, wrap
from corral.apps.evals.compare import BROKEN, GONE, MENDED, NEW, OTHER
from corral.apps.evals.outcome import ERROR, FAILED, PASSED, SKIPPED
from corral.apps.evals.results import counts, rates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from corral._lib.terminal import Terminal
    from corral.apps.evals.compare import Change, Comparison
    from corral.apps.evals.outcome import Outcome
    from corral.apps.evals.results import Rate

BAR_COLUMNS = 24
RATE_COLUMNS = 10
MAX_TAG_COLUMNS = 32
MAX_NOT_PASSED = 50  # shown in full; the results have the rest
# The sign and the colour of each status and each kind of change.
STYLES = {
    PASSED: ("allow", "allow"), FAILED: ("deny", "deny"), ERROR: ("stop", "deny"), SKIPPED: ("dot", "dim"),
    BROKEN: ("deny", "deny"), MENDED: ("allow", "allow"), NEW: ("dot", "mark"), GONE: ("dot", "dim"), OTHER: ("warn", "ask"),
}  # fmt: skip
TITLES = {BROKEN: "broken", MENDED: "mended", NEW: "new", GONE: "gone", OTHER: "changed in another way"}


def progress_text(done: int, total: int, bad: int, seconds: float, terminal: Terminal, *, known: int = 0) -> str:
    """Return one line with the progress of a run. `known` tasks were done before it started."""
    share = done / total if total else 1.0
    bar = _bar(share, min(BAR_COLUMNS, max(terminal.columns - 44, 4)), "ask" if bad else "allow", terminal)
    failed = terminal.paint("deny", f"{bad} failed") + "  " if bad else ""
    # An estimate from the first second would be far off.
    has_estimate = done > known and seconds > 1 and done < total
    left = f"  {_clock(seconds / (done - known) * (total - done))} left" if has_estimate else ""
    return f"{bar} {done:{len(str(total))}}/{total}  {failed}{_clock(seconds)}{left}"


def _bar(share: float, width: int, style: str, terminal: Terminal) -> str:
    full, empty = ("█", "░") if terminal.unicode else ("#", ".")
    filled = int(share * width)
    return terminal.paint(style, full * filled) + terminal.paint("dim", empty * (width - filled))


def _clock(seconds: float) -> str:
    whole = int(seconds + 0.5)
    return f"{whole // 60}:{whole % 60:02d}"


def outcome_text(outcome: Outcome, terminal: Terminal) -> str:
    """Return one task: its sign, id and source, and every unmet expectation."""
    sign, style = STYLES[outcome.status]
    head = terminal.paint(style, f"{terminal.sign(sign)} {outcome.status}")
    where = f"  {printable(outcome.source)}"
    room = terminal.columns - columns(f"  {outcome.status} {outcome.id}") - 2
    lines = [
        f"{head} {terminal.paint('head', printable(outcome.id))}{terminal.paint('dim', clip(where, max(room, 1), terminal.sign('cut')))}"
    ]
    for words in outcome.words:
        lines += wrap(printable(words), terminal.columns, "    ")
    return "\n".join(lines)


def _is_uncontained(outcome: Outcome) -> bool:
    return any(call.get("enforcement") != "full" and call.get("denied") is False for call in outcome.calls)


def summary_text(outcomes: Sequence[Outcome], seconds: float, terminal: Terminal, *, told: Collection[str] = ()) -> str:
    """Return the summary of a run: counts, the tasks that did not pass and are not in `told`, and the rates per tag."""
    found = counts(outcomes)
    parts = [
        terminal.paint(STYLES[name][1], f"{terminal.sign(STYLES[name][0])} {found[name]} {name}")
        for name in found
        if found[name]
    ]
    blocks = [[f"{'  '.join(parts) or 'nothing to do'}  of {len(outcomes)}, {_clock(seconds)}"]]
    if bare := sum(_is_uncontained(outcome) for outcome in outcomes):
        tasks = "1 task" if bare == 1 else f"{bare} tasks"
        blocks[0].append(terminal.paint("ask", f"{terminal.sign('warn')} {tasks} ran without full containment"))
    bad = [outcome for outcome in outcomes if not outcome.is_good and outcome.id not in told]
    if bad:
        lines = [line for outcome in bad[:MAX_NOT_PASSED] for line in outcome_text(outcome, terminal).split("\n")]
        more = [f"and {len(bad) - MAX_NOT_PASSED} more"] * (len(bad) > MAX_NOT_PASSED)
        blocks.append([*lines, *more])
    blocks += [[terminal.paint("head", "Tags"), *rate_lines(rates(outcomes), terminal)]] if rates(outcomes) else []
    skipped = [outcome for outcome in outcomes if outcome.status == SKIPPED]
    if skipped:
        blocks.append([line for outcome in skipped for line in outcome_text(outcome, terminal).split("\n")])
    return "\n\n".join("\n".join(block) for block in blocks)


def rate_lines(found: Sequence[Rate], terminal: Terminal) -> list[str]:
    """Return a table of the rates, in which sign and colour mark rates below 100%."""
    width = min(max(columns(printable(rate.tag)) for rate in found), MAX_TAG_COLUMNS)
    digits = max(len(str(rate.tried)) for rate in found)
    lines = []
    for rate in found:
        sign, style = STYLES[SKIPPED if not rate.tried else PASSED if rate.passed == rate.tried else FAILED]
        bar = _bar(rate.share, RATE_COLUMNS, style, terminal)
        tag = pad(clip(printable(rate.tag), width, terminal.sign("cut")), width)
        skipped = f"  {rate.skipped} skipped" if rate.skipped else ""
        rated = f"{bar} {rate.share:4.0%}" if rate.tried else " " * (RATE_COLUMNS + 5)
        number = f"{rate.passed:{digits}}/{rate.tried:<{digits}}"
        lines.append(f"  {terminal.paint(style, terminal.sign(sign))} {tag}  {number} {rated}{skipped}".rstrip())
    return lines


def comparison_text(comparison: Comparison, terminal: Terminal) -> str:
    """Return the changes between two runs, the worst first."""
    blocks: list[list[str]] = []
    for kind, title in TITLES.items():
        some = [change for change in comparison.changes if change.kind == kind]
        if some:
            sign, style = STYLES[kind]
            head = terminal.paint(style, f"{terminal.sign(sign)} {len(some)} {title}")
            blocks.append([head, *(line for change in some for line in _change_lines(change, terminal))])
    if comparison.tags:
        width = min(max(columns(printable(tag)) for tag, _, _ in comparison.tags), MAX_TAG_COLUMNS)
        rows = [_tag_line(row, width, terminal) for row in comparison.tags]
        blocks.append([terminal.paint("head", "Tags"), *rows])
    same = "1 task" if comparison.same == 1 else f"{comparison.same} tasks"
    blocks.append([f"nothing changed in {same}"] if not blocks else [f"{same} as before"])
    return "\n\n".join("\n".join(block) for block in blocks)


def _change_lines(change: Change, terminal: Terminal) -> list[str]:
    moved = " → " if terminal.unicode else " -> "
    states = moved.join(word for word in (change.before, change.after) if word)
    lines = [f"  {terminal.paint('head', printable(change.id))}  {terminal.paint('dim', states)}"]
    for words in change.words:
        lines += wrap(printable(words), terminal.columns, "      ")
    return lines


def _tag_line(row: tuple[str, float | None, float | None], width: int, terminal: Terminal) -> str:
    tag, before, after = row
    moved = "→" if terminal.unicode else "->"
    style = "allow" if (after or 0.0) >= (before or 0.0) else "deny"
    name = pad(clip(printable(tag), width, terminal.sign("cut")), width)
    return f"  {name}  {_share(before)} {moved} {terminal.paint(style, _share(after))}"


def _share(value: float | None) -> str:
    return "   —" if value is None else f"{value:4.0%}"
