"""Returns commands that a message can offer: they work from the current directory, with this installation of corral."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VENV = "~/.corral"  # a virtual environment that holds only corral
UNKNOWN_CLONE = "CLONE-OF-CORRAL"  # stands for a directory that only the user knows


def own_command(environ: Mapping[str, str]) -> str:
    """Return the words that start this program from a shell in the current directory."""
    called = sys.argv[0]
    found = on_path("corral", environ)
    if os.path.basename(called) != "corral":
        return "corral" if found else f"{_quoted(_shortest(sys.executable))} -m corral"
    if found and os.path.realpath(found) == os.path.realpath(called):
        return "corral"
    short = _shortest(called)
    return _quoted(short if "/" in short else f"./{short}")


def with_own_command(command: str, environ: Mapping[str, str]) -> str:
    """Return a command line with its leading `corral` replaced by the words that start this program."""
    name, blank, rest = command.partition(" ")
    return f"{own_command(environ)}{blank}{rest}" if name == "corral" else command


def install_steps(host: str, environ: Mapping[str, str]) -> list[str]:
    """Return the commands that install the hook. A corral inside a project must first be installed elsewhere."""
    from corral.integrations.hooks import hook_command  # noqa: PLC0415  most messages offer no hook

    if not hook_command.is_misplaced(environ):
        return [f"{own_command(environ)} install {host}"]
    source = hook_command.source_clone()
    where = _quoted(_shortest(source)) if source else UNKNOWN_CLONE
    # A corral on PATH may be the one inside the project, which would hide the new one.
    if not on_path("corral", environ):
        for program, words in (("pipx", "pipx install"), ("uv", "uv tool install")):
            if on_path(program, environ):
                return [f"{words} {where}", f"corral install {host}"]
    install = f"python3 -m venv {VENV} && {VENV}/bin/pip install {where}"
    return [install, f"{VENV}/bin/corral install {host}"]


def on_path(name: str, environ: Mapping[str, str]) -> str:
    """Return the path at which a shell finds a program, or ""."""
    places = [f"{folder}/{name}" for folder in environ.get("PATH", "").split(":") if folder]
    return next((path for path in places if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def _shortest(path: str) -> str:
    try:
        return min(os.path.relpath(path), os.path.abspath(path), key=len)
    except OSError:
        return path  # the current directory was deleted


def _quoted(word: str) -> str:
    from shlex import quote  # noqa: PLC0415  imports re, which most commands do not need

    return quote(word)
