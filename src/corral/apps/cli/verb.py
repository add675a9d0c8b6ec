"""Describes one verb of the command line and finds the verbs: each module in `verbs/` is one.

A verb's module defines `VERB` and `main(options)`. It defines `check_arguments(options, extra)` too if its arguments can
contradict each other: that raises UsageError. `extra` holds the words that no argument took.
"""

from __future__ import annotations

import os
import sys

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any, TypeAlias

    Options: TypeAlias = Namespace
else:
    Options = object  # for annotations; importing argparse would slow down `corral hook`

PACKAGE = "corral.apps.cli.verbs"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "verbs")
# `corral --help` lists the verbs under these titles, in this order.
GROUPS = {
    "run": "Run and check commands",
    "review": "Review changes before you keep them",
    "inspect": "See what happens",
    "policy": "Decide what is allowed",
    "agents": "Connect coding agents",
    "machine": "Test this machine",
    "help": "Help",
}


class UsageError(ValueError):
    """Raised for arguments that are missing or contradict each other."""


@frozen
class Argument(Record):
    """An argument of a verb, for argparse. A hidden argument has no `text`."""

    names: tuple[str, ...]
    text: str
    keywords: Mapping[str, Any]
    completes: str | tuple[str, ...] = ()  # for shells: fixed words, or a kind that `corral completions --words` lists


def argument(spec: str, text: str = "", *, completes: str | tuple[str, ...] = (), **keywords: Any) -> Argument:
    """Return the argument that `spec` describes: `-t --tty` is a flag, `-n N` takes a value, `id ID` is positional."""
    names = [word for word in spec.split() if word.startswith("-")] or spec.split()[:1]
    values = spec.split()[len(names) :]
    if len(values) > 1:
        keywords |= {"nargs": len(values), "metavar": tuple(values)}
    elif values:
        keywords["metavar"] = values[0]
    elif spec.startswith("-"):
        keywords.setdefault("action", "store_true")
    return Argument(tuple(names), text, keywords, completes)


@frozen
class Verb(Record):
    """The help of one verb. Lines of `examples` are a command, two spaces and a comment; paragraphs of `notes` flow."""

    group: str
    summary: str
    examples: str
    exit_codes: str
    arguments: tuple[Argument, ...]
    notes: str = ""
    usage: tuple[str, ...] = ()  # without the leading `corral`; argparse writes it where this is empty
    command_after: str | None = None  # the word that a command to run follows; "" for the verb itself
    has_json: bool = True


def verb_names() -> list[str]:
    """Return the names of all verbs, sorted."""
    files = (name for name in os.listdir(FOLDER) if name.endswith(".py") and not name.startswith("_"))
    # A Python keyword cannot name a module, so `try` lives in try_.py.
    return sorted(name.removesuffix(".py").rstrip("_") for name in files)


def load_verb(name: str) -> ModuleType:
    """Import the module of a verb."""
    from importlib import import_module  # noqa: PLC0415  `corral hook` does without

    path = f"{PACKAGE}.{name}"
    return sys.modules.get(path) or import_module(path if os.path.isfile(f"{FOLDER}/{name}.py") else f"{path}_")


def grouped_verbs() -> dict[str, list[str]]:
    """Return the names of the verbs in each group. This imports every verb."""
    names = verb_names()
    group_of = {name: load_verb(name).VERB.group for name in names}
    return {group: [name for name in names if group_of[name] == group] for group in GROUPS}
