"""The owner's name and e-mail for commits, and nothing else of their git configuration. Reads the disk, changes nothing."""

from __future__ import annotations

import os

from corral.containment.filesystem.protected import read_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_INCLUDES = 5  # one in another, against files that include each other
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


def identity_config(home: str, environ: Mapping[str, str]) -> str:
    """Return a configuration for commands."""
    known: dict[str, str] = {}
    config = environ.get("XDG_CONFIG_HOME", "")
    base = config if config.startswith("/") else f"{home}/.config"
    for path in (f"{base}/git/config", f"{home}/.gitconfig"):
        known.update(_settings(path, home, MAX_INCLUDES))
    quoted = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in known.items()
    }
    user = "".join(f'\t{name} = "{value}"\n' for name, value in quoted.items())
    # Whose a repository is matters to git because its hooks would run; here they are held.
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
            yield key, _plain(value.strip())
        elif (section, key) == ("include", "path") and depth:
            led = _plain(value.strip())
            led = f"{home}/{led[2:]}" if led.startswith("~/") else os.path.join(os.path.dirname(path), led)
            yield from _settings(led, home, depth - 1)


def _plain(value: str) -> str:
    """Return a value as git reads it: without quotes, escapes and what follows as a note."""
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
