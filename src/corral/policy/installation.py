"""Finds the directories of corral, its interpreter and its dependencies. Commands must not write there."""

from __future__ import annotations

import os
import sys

from corral._lib.symlink_chain import resolve_links
from corral.guard.shell.grammar import GRAMMAR_PACKAGES

DEFAULT_HOME = "/home/user"  # the home directory of commands where HOME is not set


def installation_paths() -> list[str]:
    """Return the directories of corral, its interpreter and its dependencies."""
    mine = [*code_paths(), *map(os.path.realpath, (sys.prefix, sys.base_prefix))]
    return sorted({real for real in mine if real != "/"})


def code_paths() -> list[str]:
    """Return the directories of corral's own code and of its dependencies."""
    return [os.path.realpath(path) for path in (_package(), *_dependencies())]


def installation_links() -> list[str]:
    """Return the symbolic links in the paths of the interpreter and of corral. Replacing one would redirect the next start."""
    return sorted({link for path in (sys.prefix, sys.executable, _package()) for link in resolve_links(path)[0]})


def _package() -> str:
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _dependencies() -> list[str]:
    folders = [folder for folder in sys.path if folder.startswith("/")]
    candidates = [[f"{folder}/{name}" for folder in folders] for name in GRAMMAR_PACKAGES]
    return [path for some in candidates for path in some if os.path.isdir(path)]
