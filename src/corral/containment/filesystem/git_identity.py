"""Reads the user's name and e-mail for commits from their git configuration, and nothing else of it. Changes nothing."""

from __future__ import annotations

import os

from corral.containment.filesystem.protected import read_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_INCLUDES = 5  # nested, against files that include each other
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


def identity_config(home: str, environ: Mapping[str, str]) -> str:
    """Return the text of a git configuration for commands."""
    known: dict[str, str] = {}
    config = environ.get("XDG_CONFIG_HOME", "")
    base = config if config.startswith("/") else f"{home}/.config"
    for path in (f"{base}/git/config", f"{home}/.gitconfig"):
        known.update(_settings(path, home, MAX_INCLUDES))
    quoted = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in known.items()
    }
    user = "".join(f'\t{name} = "{value}"\n' for name, value in quoted.items())
    # Git refuses repositories of other users because it would run their hooks. The sandbox confines those.
    return f"[user]\n{user}[safe]\n\tdirectory = *\n"


def _settings(path: str, home: str, depth: int) -> Iterator[tuple[str, str]]:
    section = ""
    for line in read_lines(path):
        text = line.strip()
        if text.startswith("["):
            section, _, text = text[1:].partition("]")
            section, text = section.strip().lower(), text.strip()
        name, _, value = text.partition("=")
        key = name.strip().lower()
        if section == "user" and key in ("name", "email"):
            yield key, _unquoted(value.strip())
        elif (section, key) == ("include", "path") and depth:
            included = _unquoted(value.strip())
            relative = f"{home}/{included[2:]}" if included.startswith("~/") else included
            yield from _settings(os.path.join(os.path.dirname(path), relative), home, depth - 1)


def _unquoted(value: str) -> str:
    """Return a value as git reads it: without quotes, escapes and trailing comments."""
    found: list[str] = []
    quoted = False
    letters = iter(value)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, "")
            found.append(_ESCAPES.get(escaped, escaped))
        elif letter == '"':
            quoted = not quoted
        elif letter in "#;" and not quoted:
            break
        else:
            found.append(letter)
    return "".join(found).strip()
