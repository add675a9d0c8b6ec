"""One command that a call could run, and what it does."""

from __future__ import annotations

from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.shell.expansion import Word

    Row = dict[str, Any]


class Command:
    """One command, and its effects as (key or verb, word, detail)."""

    __slots__ = ("cwds", "depth", "effects", "name", "output", "real", "row", "verbs", "words")

    def __init__(self, name: str, words: list[Word], depth: int, cwds: tuple[str, ...] | None) -> None:
        self.name = name
        self.words = words
        self.depth = depth
        self.cwds = cwds
        self.output: str | None = None  # what it prints, where that is certain
        self.real = ""  # the base name that decides, behind links and copies
        self.row: Row | None = None
        self.verbs: list[Word] = []  # its subcommands: `remote` and `add` of `git remote add`
        self.effects: list[tuple[str, Word, str]] = []


def known_output(acts: list[Command]) -> str | None:
    """Return what a single command prints, when that is certain; a hole stands for what is not."""
    if len(acts) != 1:
        return None
    act = acts[0]
    words = act.words[1:]
    if act.output is not None:
        return act.output.rstrip("\n")
    if act.row is not None and words and words[0].text in act.row.get("hooks", ()) and all(w.proven for w in words):
        return ":"  # settings of its own making, which nobody else gets a say in
    if act.name == "nproc" or (act.name == "id" and [w.text for w in words] in (["-u"], ["-g"])):
        return NUMBER_HOLE
    if act.name in ("which", "command") and words and words[-1].proven and "/" not in words[-1].text:
        named = len(words) == 1 if act.name == "which" else [w.text for w in words[:-1]] == ["-v"]
        return f"{HOLE}/{words[-1].text}" if named else None
    if act.name not in ("echo", "printf", "pwd"):
        return None
    if act.name == "pwd":
        return act.cwds[0] if act.cwds and len(act.cwds) == 1 and not words else None
    if act.effects or not all(w.proven for w in words):
        return None
    texts = [w.text for w in words]
    if act.name == "echo":
        while texts and texts[0][:1] == "-" and texts[0][1:] and not texts[0][1:].strip("neE"):
            texts.pop(0)
        return None if any("\\" in t for t in texts) else " ".join(texts)
    if len(texts) == 1 and "%" not in texts[0] and "\\" not in texts[0] and texts[0][:1] != "-":
        return texts[0]
    if len(texts) == 2 and texts[0] in ("%s", "%s\\n"):
        return texts[1]
    return None
