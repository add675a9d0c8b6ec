"""`corral hook HOST`: reads one call of a coding agent from stdin and answers in its protocol. Any failure refuses: exit code 2."""

from __future__ import annotations

import os
import sys

from corral.apps.cli.verb import Verb, argument
from corral.guard.shell.grammar import GRAMMAR_PACKAGES
from corral.integrations.hooks import respond

VERB = Verb(
    "agents",
    "Answer one call of a coding agent in its own hook protocol.",
    examples="""\
corral hook claude < payload.json
corral hook codex
""",
    notes="""\
corral reads one call from stdin in the protocol of HOST, and answers in it. If the host allows that, corral rewrites an
allowed command to run through `corral run`. `corral install HOST` writes a faster form of this command into the host's
settings.
""",
    exit_codes="0 with the answer on stdout; 2 the call is refused, whatever the reason",
    has_json=False,
    arguments=(argument("host HOST", "Use the protocol of this host; `corral install` lists the hosts."),),
)


def main(arguments: list[str]) -> int:
    """Answer one call. This does not use argparse: most hosts run the call on the exit code of a parser error."""
    return respond.main([*(arguments[:1] or ("",)), *_grammar_folders()])


def _grammar_folders() -> list[str]:
    """Return the folders of corral's dependencies, for a command that will run without site-packages."""
    package = os.path.abspath(__file__).removesuffix("/corral/apps/cli/verbs/hook.py")
    found = [
        folder
        for name in GRAMMAR_PACKAGES
        for folder in sys.path
        if folder.startswith("/") and os.path.isdir(f"{folder}/{name}")
    ]
    return [folder for folder in dict.fromkeys(found) if folder != package]
