"""Says which package manager's registry a command needs, and whether it fetches only what a lock file pins. Pure."""

from __future__ import annotations

from corral.guard.rules.loader import registries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTHONS = ("python", "pypy")
_ALL = "*"  # every subcommand fetches


def registry_of(name: str, words: Sequence[str]) -> tuple[str, bool] | None:
    """Return the tool whose registry a command needs, and whether it is a pinned shape. None: the command needs no registry.

    `name` is the program, with or without a directory; `words` are the words after it, as literal text.
    """
    name = _plain_name(name)
    if name in _PYTHONS:
        name, words = _module(words)
        tools = [tool for tool, row in registries().items() if row["module"] == name]
    else:
        tools = [tool for tool, row in registries().items() if name in row["names"]]
    if not tools or not name:
        return None
    row = registries()[tools[0]]
    if name != row["names"][0] and name.endswith("x") and name in row["names"]:
        return tools[0], False  # npx, uvx, pnpx: fetches a package that the command names, and runs it
    if _ALL not in row["fetches"] and not _subcommands(words).intersection(row["fetches"]):
        return None
    is_pinned = any(_has_shape(words, shape, row["plain"]) for shape in row["locked"])
    return tools[0], is_pinned


def tool_of(name: str) -> str:
    """Return the tool that a program belongs to, such as `npm` for npx. Empty if there is no such tool."""
    name = _plain_name(name)
    return next((tool for tool, row in registries().items() if name == tool or name in row["names"]), "")


def _plain_name(name: str) -> str:
    """Return a program's name without its directory and version, as in `pip3.12`."""
    return name.rpartition("/")[2].rstrip("0123456789.").rstrip("-")


def _module(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the module that `python -m` runs, and the words after it."""
    for number, word in enumerate(words):
        if word == "-m":
            return (words[number + 1], words[number + 2 :]) if number + 1 < len(words) else ("", ())
        if not word.startswith("-") or word in ("-c", "-"):
            break
    return "", ()


def _subcommands(words: Sequence[str]) -> set[str]:
    """Return the words that can be the subcommand: after an option, the first word can be its value."""
    bare = [number for number, word in enumerate(words) if not word.startswith("-")]
    if not bare:
        is_asking = any(word in ("-h", "--help", "-v", "-V", "--version") for word in words)
        return set() if is_asking else {""}
    first = words[bare[0]]
    return {first, *(words[number] for number in bare[1:2] if bare[0] > 0)}


def _has_shape(words: Sequence[str], shape: Sequence[str], plain: Sequence[str]) -> bool:
    """Say whether words are exactly a shape with further plain options. Any other word could name another package or registry."""
    subcommands = [word.split("|") for word in shape if not word.startswith("-")]
    needed = [word.split("|") for word in shape if word.startswith("-")]
    known = {option for options in (*needed, plain) for option in options}
    if len(words) < len(subcommands) or any("://" in word for word in words):
        return False
    if any(word not in names for word, names in zip(words, subcommands, strict=False)):
        return False
    given: set[str] = set()
    rest = iter(words[len(subcommands) :])
    for word in rest:
        name, equals, value = word.partition("=")
        if f"{name}=" in known and word.startswith("-"):
            given.add(f"{name}=")
            value = value if equals else next(rest, "")
            if not value or value.startswith("-"):
                return False
        elif word in known:
            given.add(word)
        else:
            return False
    return all(given.intersection(options) for options in needed)
