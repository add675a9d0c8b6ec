"""Checks a repository on this machine before git serves it outside: its hooks and configuration must be the user's own."""

from __future__ import annotations

import os

from corral.broker.streams import RefusedError
from corral.git import config_file
from corral.guard.path_zones import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_FILE_BYTES = 1 << 20


def git_directory(path: str, writable: Iterable[str]) -> str:
    """Return the real git directory at a path. Raise RefusedError if a command could have written its hooks."""
    candidates = (f"{path}/.git", path, f"{path}.git/.git", f"{path}.git")
    found = next((place for place in candidates if os.path.isdir(f"{place}/objects") and _has_head(place)), "")
    if not found:
        raise RefusedError(f"{path} is not a git repository on this machine")
    real = os.path.realpath(found)
    places = tuple(writable)
    for part in (real, *_programs(real)):
        if is_writable(part, places):
            raise RefusedError(
                f"{path} has {part}, which commands can write: its hooks would run outside the sandbox. "
                "Push to such a repository inside, by a path that the sandbox shows"
            )
    return real


def _has_head(place: str) -> bool:
    return os.path.isfile(f"{place}/HEAD") and not os.path.islink(f"{place}/HEAD")


def _programs(directory: str) -> list[str]:
    """Return the real paths of the files that decide which programs git runs for a repository."""
    settings = config_file.parse(_text(f"{directory}/config"))
    hooks = [f"{directory}/hooks"]
    for (section, _, name), values in settings.items():
        if (section, name) == ("core", "hookspath"):
            hooks += [os.path.join(directory, os.path.expanduser(value)) for value in values]
    found = [f"{directory}/config", *hooks]
    for folder in hooks:
        try:
            found += [f"{folder}/{name}" for name in os.listdir(folder)]
        except OSError:
            # It does not exist, or git cannot read it either.
            continue
    for name in ("objects", "refs"):
        found.append(f"{directory}/{name}")
    return [os.path.realpath(path) for path in found]


def is_writable(real: str, places: Iterable[str]) -> bool:
    """Say whether a command can write a real path: it is in one of the places, or in the scratch of a sandbox."""
    if any(inside(real, place) for place in places):
        return True
    # The scratch of a sandbox, of this project or another.
    own = f"corral-{os.getuid()}"
    parts = real.split("/")
    is_kept = any(f"/{above}/scratch/" in f"{real}/" for above in ("corral", own))
    return is_kept or any(part.startswith(f"{own}-") for part in parts)


def default_branch(directory: str) -> str:
    """Return the default branch of a git directory in full, or ""."""
    text = _text(f"{directory}/HEAD").strip()
    return text.removeprefix("ref: ") if text.startswith("ref: refs/heads/") else ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return ""
