"""Makes random scripts from the grammar files beside it.

A section of a file is a rule, and each of its lines is one alternative. `«name»` stands for another rule or a value below. `⏎` is a new
line, `⇥` a tab, and `¶` ends a piece, which the reduction of a hole can drop. `3*` before a line makes it three times as likely.
`«wrapped name»` puts what a rule makes into a random construct, and `«maybe name»` makes it only sometimes.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 9  # of rules inside one another; below it only alternatives without rules are taken
MAX_PIECES = 14
SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+,")
# The values of a variable: harmless ones, and ones that carry a payload into the uses of [use-KIND].
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "name": (("ls", "echo", "ls", "du", "printf"), ("rm",)),
    "action": (("-print", "-ls", "-depth"), ("-delete",)),
    "depth": (("p/q", "./p/q", "p/q/"), ("p", "0", ".", "d1", "src", "./p", "inlink")),
    "gap": (("n", "1", "x"), ("",)),
    "code": (("ls", "echo hi", "true", "ls -l"), ("rm -rf victim", "find victim -delete", "cat ../outside/secret.txt")),
    "target": (("out", "p/out", "./out"), ("../outside/CANARY", "p/../../outside/CANARY")),
    "source": (("a.txt", "./a.txt", "p/q/x.txt"), ("../outside/secret.txt", "src/../../outside/secret.txt")),
    "number": (("p/q",), ("0", "1", "2")),
}
KIND_CHOICES = ("name", "name", "name", "action", "depth", "depth", "gap", "code", "code", "target", "source", "number")
METACHARACTERS = (
    "'", '"', "\\", "`", "$", "(", ")", "{", "}", "#", "\n", ";", "&", "|", "<", ">", " ", "\\\n", "$(", "${", "$((", "))", "<<E", "$'", "!",
    "=", "[", "]", "[[ ", " ]]", "~", "*", " #", "\t", "''", '""', "\\'", '\\"', "}'", "\r", "<(", "<<<", "@(", "|&", ";;", "${x:-", "$[", "esac ",
)  # fmt: skip
_PLACE = re.compile(r"«([^»]*)»")
_WEIGHT = re.compile(r"(\d+)\* ")


@cache
def rules() -> dict[str, list[str]]:
    """Read the grammar files."""
    made: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).with_name("grammar").glob("*.txt")):
        name = ""
        for line in path.read_text().splitlines():
            if not line or line.startswith("// "):
                continue
            header = re.fullmatch(r"\[([a-z0-9-]+)\]", line)
            if header:
                name = header[1]
                made.setdefault(name, [])
                continue
            weight = _WEIGHT.match(line)
            text = line[weight.end() :] if weight else line
            made[name] += [text.replace("⏎", "\n").replace("⇥", "\t").replace("␣", " ").replace("ε", "")] * (
                int(weight[1]) if weight else 1
            )
    return made


class Generator:
    """Makes one script; the same seed makes the same script."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.rules = rules()
        self.kind = self.pick(KIND_CHOICES)
        good, bad = KINDS[self.kind]
        self.good, self.bad = self.pick(good), self.pick(bad)
        self.value = self.good
        self.variable = self.rule("special" if self.chance(0.06) else "variable", 0)

    def pick(self, options: tuple[str, ...] | list[str]) -> str:
        """Return one of the options."""
        return options[int(self.random.random() * len(options))]

    def chance(self, share: float) -> bool:
        """Return true for this share of the calls."""
        return self.random.random() < share

    def script(self) -> tuple[str, list[str], str]:
        """Return the family, the pieces, and what joins them."""
        family = self.pick(self.rules["script"])
        text = self.rule(family, 0)
        pieces = [piece for piece in text.split(" ¶ ") if piece][:MAX_PIECES]
        if self.chance(0.04):
            pieces = [self.continued(piece) for piece in pieces]
        lines = any("\n" in piece or piece.endswith("&") or "#" in piece for piece in pieces)
        return family, pieces, "\n" if lines or self.chance(0.4) else "; "

    def rule(self, name: str, depth: int) -> str:
        """Expand a rule."""
        alternatives = self.rules["set" if name == "set-good" else name]
        text = self.pick(alternatives)
        if depth > MAX_DEPTH and "«" in text:
            text = min(alternatives, key=lambda t: (t.count("«"), len(t)))
            if depth > MAX_DEPTH + 6:
                return _PLACE.sub(":", text)
        before = self.value
        if name == "set":
            self.value = self.bad if self.chance(0.5) else self.good
        elif name == "set-good":
            self.value = self.good
        cut = int(self.random.random() * (len(self.value) + 1))

        def place(match: re.Match[str]) -> str:
            return self.place(match[1], depth + 1, cut)

        made = _PLACE.sub(place, text)
        self.value = before
        return made

    def place(self, name: str, depth: int, cut: int) -> str:
        """Return the text for one place in an alternative."""
        value = self.value
        terminal = _TERMINALS.get(name)
        if terminal is not None:
            return terminal(self)
        if name in ("first", "rest"):
            return self.quoted(value[:cut] if name == "first" else value[cut:])
        modifier, _, rest = name.rpartition(" ")
        if modifier == "maybe":
            return self.place(rest, depth, cut) if self.chance(0.35) else ""
        if modifier == "wrapped":
            return self.wrapped(self.place(rest, depth, cut), depth)
        if modifier == "quoted":
            return self.quoted(self.place(rest, depth, cut))
        if modifier == "broken":
            return self.continued(self.place(rest, depth, cut))
        if modifier == "mutated":
            return self.mutated(self.place(rest, depth, cut))
        if name == "use":
            return self.rule(f"use-{self.kind}", depth)
        if name == "use-plainly":  # the first uses of each kind, of the variable as it is
            text = self.pick(self.rules[f"use-{self.kind}"][:6])
            return text.replace("«r»", self.pick((f"${self.variable}", f"${{{self.variable}}}", f'"${self.variable}"')))
        return self.rule(name, depth)

    def wrapped(self, body: str, depth: int) -> str:
        """Put a statement into random constructs, or leave it."""
        for _ in range(2):
            if self.chance(0.3):
                name = "runs-here"
            elif self.chance(0.15):
                name = "runs-elsewhere"
            else:
                break
            template = self.rule(name, depth + 2)
            if "\n" in body or body.endswith("&") or "#" in body or self.chance(0.15):
                template = template.replace("BODY;", "BODY\n").replace(" BODY", "\nBODY")
            body = template.replace("BODY", body)
        return body

    def continued(self, text: str) -> str:
        """Put a line continuation at a random place."""
        at = int(self.random.random() * (len(text) + 1))
        return text[:at] + "\\\n" + text[at:]

    def mutated(self, text: str) -> str:
        """Insert, drop or double a few characters that have a meaning in bash."""
        for _ in range(1 + int(self.random.random() * 2)):
            at = int(self.random.random() * (len(text) + 1))
            kind = self.random.random()
            if kind < 0.7:
                text = text[:at] + self.pick(METACHARACTERS) + text[at:]
            elif kind < 0.85:
                text = text[:at] + text[at + 1 :]
            else:
                text = text[:at] + text[max(0, at - 3) : at] + text[at:]
        return text

    def quoted(self, text: str) -> str:
        """Return text in a random spelling that bash reads as this one word."""
        plain = bool(text) and set(text) <= SAFE and text[0] not in "~-+%"
        style = int(self.random.random() * 12)
        at = int(self.random.random() * (len(text) + 1))
        if plain and style < 7:
            return text
        if plain and style == 7:
            return text[:at] + self.pick(("''", '""', "\\\n", "$''")) + text[at:]
        if plain and style == 8 and at < len(text):
            return text[:at] + "\\" + text[at:]
        if style == 9:
            escaped = "".join(f"\\x{ord(c):02x}" if self.chance(0.3) else c for c in text.replace("\\", "\\\\"))
            return "$'" + escaped.replace("'", "\\'").replace("\n", "\\n") + "'"
        if style == 10 and not set(text) & set('$`\\"!'):
            return f'"{text}"'
        return "'" + text.replace("'", "'\\''") + "'"


_TERMINALS: dict[str, Callable[[Generator], str]] = {
    "x": lambda g: g.variable,
    "good": lambda g: g.good,
    "bad": lambda g: g.bad,
    "v": lambda g: g.value,
    "q": lambda g: g.quoted(g.value),
    "any": lambda g: g.quoted(g.good if g.chance(0.5) else g.bad),
    "qgood": lambda g: g.quoted(g.good),
    "qbad": lambda g: g.quoted(g.bad),
    "first-good": lambda g: g.good[:1] or "''",
    "rest-good": lambda g: g.quoted(g.good[1:]),
    "V": lambda g: g.quoted(g.value.upper()),
    "letter": lambda g: g.value[:1] or "a",
    "tail": lambda g: g.quoted(g.value[1:]),
    "body": lambda g: g.value[:-1],
    "length": lambda g: str(len(g.value)),
    "hex": lambda g: f"{ord(g.value[0]):x}" if g.value else "41",
    "digit": lambda g: g.value if g.value.isdigit() else g.pick(("0", "1", "2")),
}
