"""Draws bar charts as self-contained SVG files, with a light and a dark background, and with a texture for every colour."""

from html import escape
from math import log10

from corral._lib.records import Record, frozen

WIDTH, MARGIN, LABEL = 860, 20, 265
LINE, BAR, CHARACTER = 30, 18, 7.2  # the width of a character is a generous guess: the reader may have another font
# Solid, striped, empty, dotted: readers who cannot tell the colours apart, or who print in grey, can tell the textures apart.
RULES = """\
text {{ fill: {ink}; stroke: {paper} }}
.soft {{ fill: {soft} }}
.paper {{ fill: {paper} }}
.rule {{ stroke: {line} }}
.goal {{ stroke: {ink} }}
.ours, .good {{ fill: {ours}; stroke: {ours} }}
.other, .mild {{ fill: url(#stripes); stroke: {other} }}
.stripe {{ fill: {other} }}
.bare {{ fill: {paper}; stroke: {soft} }}
.bad {{ fill: url(#dots); stroke: {bad} }}
.dot {{ fill: {bad} }}
"""
LIGHT = RULES.format(
    paper="#ffffff", ink="#1c2024", soft="#5b636b", line="#c9ced4", ours="#0b6e5f", other="#8a5a00", bad="#b3261e"
)
DARK = RULES.format(
    paper="#14171a", ink="#e8eaec", soft="#a3abb3", line="#4a525a", ours="#4fc3ad", other="#e0a84a", bad="#ff8a80"
)
STYLE = f"""
/* A rim in the paper's colour keeps words readable on a line. */
text {{ font: 13px system-ui, sans-serif; paint-order: stroke; stroke-width: 4px; stroke-linejoin: round }}
.title {{ font-size: 16px; font-weight: 600 }}
.panel {{ font-weight: 600 }}
.strong {{ font-weight: 700 }}
.goal {{ stroke-width: 2; stroke-dasharray: 5 3 }}
{LIGHT}@media (prefers-color-scheme: dark) {{
{DARK}}}
"""
PATTERNS = (
    '<pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" class="paper"/><rect width="3" height="6" class="stripe"/></pattern>'
    '<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="6" class="paper"/><circle cx="3" cy="3" r="2" class="dot"/></pattern>'
)


@frozen
class Bar(Record):
    """One bar of a panel: its parts, each with a texture, and the number as text."""

    label: str
    parts: tuple[tuple[float, str], ...]
    text: str

    @property
    def length(self) -> float:
        """Return the sum of all parts."""
        return sum(value for value, _ in self.parts)


@frozen
class Panel(Record):
    """Bars on one scale. `goal` is a bound to draw, with its label."""

    title: str
    bars: tuple[Bar, ...]
    logarithmic: bool = False
    goal: tuple[float, str] | None = None


def drawn(title: str, panels: list[Panel], legend: dict[str, str]) -> str:
    """Return an SVG file with the panels one below the other. `legend` maps a texture to its meaning."""
    body: list[str] = []
    y = MARGIN + 16
    body.append(_text(MARGIN, y, title, "title"))
    y += 26
    x: float = MARGIN
    used = {texture for panel in panels for bar in panel.bars for _, texture in bar.parts}
    for texture, words in legend.items():
        if texture not in used:
            continue
        body.append(f'<rect x="{x}" y="{y - 11}" width="14" height="12" class="{texture}"/>')
        body.append(_text(x + 20, y, words, "soft"))
        x += 44 + CHARACTER * len(words)
    y += 14
    for panel in panels:
        y = _panel(body, panel, y + 24)
    height = y + MARGIN
    said = escape("; ".join(f"{bar.label}: {bar.text}" for panel in panels for bar in panel.bars))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
    parts = [head, f"<title>{escape(title)}</title><desc>{said}</desc>", f"<style>{STYLE}</style>"]
    parts += [
        f"<defs>{PATTERNS}</defs>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" class="paper"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(body: list[str], panel: Panel, y: int) -> int:
    """Draw a panel, and return the y coordinate of its end."""
    body.append(_text(MARGIN, y, panel.title, "panel"))
    top = y + 10
    scale = _Scale(panel)
    left = MARGIN + LABEL
    end_y = top + len(panel.bars) * LINE
    body.append(f'<path d="M{left} {top}V{end_y}" class="rule"/>')
    if panel.goal is not None:
        bound, words = panel.goal
        x = left + scale.at(bound)
        body.append(f'<path d="M{x:.1f} {top - 2}V{end_y}" class="goal"/>')
        body.append(_text(x + 6, top - 2, words, "soft"))
    for i, bar in enumerate(panel.bars):
        line = top + i * LINE + 4
        ours = any(texture == "ours" for _, texture in bar.parts) or bar.label.startswith("corral")
        body.append(_text(left - 10, line + 14, bar.label, "strong" if ours else "", anchor="end"))
        x, reached = float(left), 0.0
        for value, texture in bar.parts:
            reached += value
            end = left + scale.at(reached)
            if value:
                width = max(end - x, 1.5)
                body.append(f'<rect x="{x:.1f}" y="{line}" width="{width:.1f}" height="{BAR}" class="{texture}"/>')
            x = end
        body.append(_text(x + 8, line + 14, bar.text, "strong" if ours else ""))
    return end_y


class _Scale:
    """Maps numbers to x coordinates: linear from zero, or logarithmic from just below the smallest number."""

    def __init__(self, panel: Panel) -> None:
        numbers = [bar.length for bar in panel.bars if bar.length > 0] + ([panel.goal[0]] if panel.goal else [])
        self._most = max(numbers, default=1.0)
        self._least = min(numbers, default=1.0) / 1.6
        self._logarithmic = panel.logarithmic
        longest = max((len(bar.text) for bar in panel.bars), default=0)
        self._width = WIDTH - 2 * MARGIN - LABEL - 8 - CHARACTER * longest

    def at(self, number: float) -> float:
        if self._logarithmic:
            return self._width * log10(max(number, self._least) / self._least) / log10(self._most / self._least)
        return self._width * number / self._most


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    named = f' class="{style}"' if style else ""
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{named}{at}>{escape(words)}</text>'
