"""One command that a call could run, and what it does."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.expand import Word

    Row = dict[str, Any]


class Act:
    """One command, and its effects as (key or verb, word, detail)."""

    __slots__ = ("cwds", "depth", "effects", "name", "real", "row", "words")

    def __init__(self, name: str, words: list[Word], depth: int, cwds: tuple[str, ...] | None) -> None:
        self.name = name
        self.words = words
        self.depth = depth
        self.cwds = cwds
        self.real = ""  # the base name that decides, behind links and copies
        self.row: Row | None = None
        self.effects: list[tuple[str, Word, str]] = []


def known_output(acts: list[Act]) -> str | None:
    """Return what a single echo, printf or pwd prints, when that is certain."""
    if len(acts) != 1 or acts[0].name not in ("echo", "printf", "pwd"):
        return None
    act = acts[0]
    words = act.words[1:]
    if act.name == "pwd":
        return act.cwds[0] if act.cwds and len(act.cwds) == 1 and not words else None
    if act.effects or not all(w.proven for w in words):
        return None
    texts = [w.text for w in words]
    if act.name == "echo":
        while texts and texts[0] in ("-n", "-e", "-ne", "-en"):
            texts.pop(0)
        return None if any("\\" in t for t in texts) else " ".join(texts)
    if len(texts) == 1 and "%" not in texts[0] and "\\" not in texts[0]:
        return texts[0]
    if len(texts) == 2 and texts[0] in ("%s", "%s\\n"):
        return texts[1]
    return None
