"""`corral hook HOST`: one payload of a coding agent on stdin, one answer in its protocol. Whatever goes wrong refuses: exit code 2."""

from __future__ import annotations

import os
import sys

from corral.guard.shell.grammar import GRAMMAR_PACKAGES
from corral.integrations.hooks import respond


def main(arguments: list[str]) -> int:
    """Answer one payload. Not by argparse: its exit code for what it cannot read lets the call run at most hosts."""
    return respond.main([*(arguments[:1] or ("",)), *_dependencies()])


def _dependencies() -> list[str]:
    """Return where the dependencies lie, for a command that will run without site-packages."""
    package = os.path.dirname(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    )
    found = [
        folder
        for name in GRAMMAR_PACKAGES
        for folder in sys.path
        if folder.startswith("/") and os.path.isdir(f"{folder}/{name}")
    ]
    return [folder for folder in dict.fromkeys(found) if folder != package]
