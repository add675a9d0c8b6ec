"""Builds the command that a host runs as its hook, and refuses an installation that an agent could change.

A host runs this command without asking again. If the command is missing, the host runs the agent's calls unchecked.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.guard.path_zones import inside
from corral.guard.shell.grammar import GRAMMAR_PACKAGES
from corral.integrations.hooks.json_edit import SettingsError
from corral.policy.user_dirs import PROJECT_MARKS, directory_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ELSEWHERE = "Install corral outside of any project: run pipx install . (or uv tool install .) in a clone of corral. Then use that corral."
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  compared with, not used


def package() -> str:
    """Return the directory of the corral package."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def interpreter() -> str:
    """Return the real interpreter: that of a virtual environment is a link to it."""
    return str(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]  # exists since 3.3


def dependencies() -> str:
    """Return the directory that contains tree-sitter and its grammar."""
    for folder in sys.path:
        if folder.startswith("/") and all(os.path.isdir(f"{folder}/{name}") for name in GRAMMAR_PACKAGES):
            return os.path.realpath(folder)
    raise SettingsError(f"{' and '.join(GRAMMAR_PACKAGES)} are not installed in the same directory. {_ELSEWHERE}")


def command(host: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words of a host's hook command, with options that fix the directories of the user's files."""
    own, needed = package(), dependencies()
    words = [interpreter(), "-I", "-S", f"{own}/integrations/hooks/program.py", host]
    return [*words, *([] if needed == os.path.dirname(own) else [needed]), *directory_options(environ)]


def project_of(cwd: str, environ: Mapping[str, str]) -> str:
    """Return the project that contains a directory, or an empty string. The home directory is never a project."""
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    at = os.path.realpath(cwd)
    while at not in ("/", home):
        # ~/.pyenv, ~/.asdf and similar directories are git checkouts, but not projects.
        if not os.path.basename(at).startswith(".") and any(os.path.lexists(f"{at}/{mark}") for mark in PROJECT_MARKS):
            return at
        at = os.path.dirname(at)
    return ""


def source_clone() -> str:
    """Return the clone of corral that this program runs from, or an empty string."""
    above, folder = os.path.split(os.path.dirname(package()))
    return above if folder == "src" and os.path.isfile(f"{above}/pyproject.toml") else ""


def is_misplaced(environ: Mapping[str, str]) -> bool:
    """Say whether corral must be installed elsewhere before a host may run it."""
    try:
        return any(project_of(path, environ) for path in _parts().values())
    except SettingsError:
        return True


def _parts() -> dict[str, str]:
    return {"corral's Python": interpreter(), "corral": package(), "corral's parser": dependencies()}


def refuse_writable(guarded: Iterable[str], environ: Mapping[str, str]) -> None:
    """Raise SettingsError if a part of corral is installed where the agent's commands, or any user, could change it."""
    for part, path in _parts().items():
        for root in (*guarded, project_of(path, environ)):
            if root and inside(path, root):
                raise SettingsError(
                    f"{part} is installed in {path}, inside {root}, where an agent could change it. {_ELSEWHERE}"
                )
        parents = ["/" + "/".join(path.split("/")[1:end]) for end in range(1, path.count("/") + 2)]
        for at in parents:
            mode = os.stat(at).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise SettingsError(
                    f"{part} is installed in {path}, and every user can write to {at}. Run: chmod o-w {at}"
                )


def temporary_location() -> str:
    """Return the part of corral that is in a temporary directory, or an empty string."""
    return next((path for path in (package(), interpreter()) for place in _TEMPORARY if inside(path, place)), "")
