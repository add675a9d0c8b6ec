"""The command that a host is given to run, and whether it may be: nothing an agent could write judges that agent.

A host runs a command that it finds there without asking again, and goes on unjudged where it finds none.
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

ELSEWHERE = "Install corral outside of any project: run pipx install . (or uv tool install .) in a clone of corral. Then use that corral."
_NAMES = {"interpreter": "corral's Python", "package": "corral", "parser": "corral's parser"}
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  named, not used


def package() -> str:
    """Return the directory of corral itself."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def interpreter() -> str:
    """Return the real interpreter: that of an environment is a link into it."""
    return str(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]  # there since 3.3


def dependencies() -> str:
    """Return the directory that holds tree-sitter and its grammar."""
    for folder in sys.path:
        if folder.startswith("/") and all(os.path.isdir(f"{folder}/{name}") for name in GRAMMAR_PACKAGES):
            return os.path.realpath(folder)
    raise SettingsError(f"{' and '.join(GRAMMAR_PACKAGES)} are not installed in one place. {ELSEWHERE}")


def command(host: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words that a host is to run, with the owner's files where they are now."""
    own, needed = package(), dependencies()
    words = [interpreter(), "-I", "-S", f"{own}/integrations/hooks/program.py", host]
    return [*words, *([] if needed == os.path.dirname(own) else [needed]), *directory_options(environ)]


def project_of(cwd: str, environ: Mapping[str, str]) -> str:
    """Return the project that a directory belongs to, or nothing; a home directory is none, whatever it holds."""
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    at = os.path.realpath(cwd)
    while at not in ("/", home):
        # ~/.pyenv, ~/.asdf and their like are checkouts too, and nobody's project.
        if not os.path.basename(at).startswith(".") and any(os.path.lexists(f"{at}/{mark}") for mark in PROJECT_MARKS):
            return at
        at = os.path.dirname(at)
    return ""


def source_clone() -> str:
    """Return the clone of corral that this program runs from, or nothing."""
    above, folder = os.path.split(os.path.dirname(package()))
    return above if folder == "src" and os.path.isfile(f"{above}/pyproject.toml") else ""


def is_misplaced(environ: Mapping[str, str]) -> bool:
    """Say whether this corral must be installed elsewhere before a host may run it."""
    try:
        return any(project_of(path, environ) for path in _parts().values())
    except SettingsError:
        return True


def _parts() -> dict[str, str]:
    return {"interpreter": interpreter(), "package": package(), "parser": dependencies()}


def refuse_writable(guarded: Iterable[str], environ: Mapping[str, str]) -> None:
    """Raise where what would judge an agent's commands lies where its commands could write."""
    for what, path in _parts().items():
        for root in (*guarded, project_of(path, environ)):
            if root and inside(path, root):
                raise SettingsError(
                    f"{_NAMES[what]} is installed in {path}, inside {root}, where an agent could change it. {ELSEWHERE}"
                )
        _refuse_open(what, path)


def _refuse_open(what: str, path: str) -> None:
    at = path
    while True:
        mode = os.stat(at).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise SettingsError(
                f"corral's {what}, {path}, can be changed by anybody, since {at} is open to all: chmod o-w {at}"
            )
        if at == "/":
            return
        at = os.path.dirname(at)


def temporary_location() -> str:
    """Return where corral lies in a directory that is emptied now and then, or nothing."""
    return next((path for path in (package(), interpreter()) for place in TEMPORARY if inside(path, place)), "")
