"""Asks a package manager which registry it is configured for, or reads the default from its installation."""

from __future__ import annotations

import os
import tempfile
import zipfile

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import matching_paths
from corral.broker.package_managers.addresses import Address, addresses_in, go_addresses, parse_address, settings_in
from corral.broker.package_managers.host_command import run_bounded
from corral.model.errors import PolicyError
from corral.policy.user_dirs import private_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from corral.broker.package_managers.lookup import Lookup, Program

MAX_ANSWER_BYTES = 64 * 1024
MAX_ANSWERED = 4  # registries of one answer
MAX_MEMBER_BYTES = 64 * 1024


@frozen
class Answered(Record):
    """The addresses that a tool named, and the command that said so. `ended` is false if a command hung or printed too much."""

    replacing: tuple[Address, ...] = ()
    added: tuple[Address, ...] = ()
    source: str = ""
    ended: bool = True


def ask(lookup: Lookup, *, seconds: float) -> Answered:
    """Run the tool's own commands that print its registry, in an empty directory, until one names an address."""
    # Configuration can name programs: a tool whose configuration commands can write is not started outside.
    if not lookup.program.path or not lookup.is_certain:
        return Answered()
    row, ended = lookup.row, True
    try:
        # Not in /tmp: some tools also read configuration in the directories above, where other users could put it.
        place = private_directory("cache", lookup.environ, lookup.config.project_root)
    except (PolicyError, OSError):
        return Answered()
    for words in row["asks"]:
        with tempfile.TemporaryDirectory(prefix=".ask-", dir=place, ignore_cleanup_errors=True) as directory:
            argv = [*lookup.program.words, *words[1:]]
            own = dict(lookup.environ) | dict(row["env"])
            answer = run_bounded(argv, directory, own, seconds=seconds, max_bytes=MAX_ANSWER_BYTES)
        if answer is None:
            ended = False
            continue
        text = _plain_text(answer.output) if answer.code == 0 else ""
        replacing, added = _parsed(row, text)
        if len(replacing) + len(added) > MAX_ANSWERED:
            continue
        if replacing or added:
            return Answered(tuple(replacing), tuple(added), " ".join(words), ended)
    return Answered(ended=ended)


def _plain_text(output: bytes) -> str:
    """Return an answer as text. Empty if it holds control characters: a terminal would show another text than corral reads."""
    text = output.decode("ascii", "replace")
    is_plain = all(line.replace("\t", " ").isprintable() for line in text.split("\n"))
    return text if is_plain and "\N{REPLACEMENT CHARACTER}" not in text else ""


def _parsed(row: Mapping[str, Any], text: str) -> tuple[list[Address], list[Address]]:
    if row["form"] == "settings":
        return settings_in(text, row["keys"]), settings_in(text, row["more"])
    if row["form"] == "go":
        return go_addresses(text), []
    # A line that is more than an address is a notice.
    lines = [line.strip() for line in text.splitlines()]
    return list(dict.fromkeys(each for line in lines if (each := parse_address(line)) is not None)), []


def builtin_addresses(row: Mapping[str, Any], program: Program) -> list[Address]:
    """Return the addresses in the file of an installation that holds the tool's default."""
    library, _, member = row["builtin"].partition(" ")
    if not library or not program.path:
        return []
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(program.path)))
    for path in matching_paths(f"{prefix}/{library}"):
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as file:
                text = file.read(MAX_MEMBER_BYTES).decode("utf-8", "replace")
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            continue
        blocks = (each.partition("</url>")[0] for each in text.split("<url>")[1:])
        return list(dict.fromkeys(address for block in blocks for address in addresses_in(block)))[:MAX_ANSWERED]
    return []
