"""`corral completions`: prints the completion script for a shell, or the words that a script asks for at each key."""

from __future__ import annotations

import os

from corral.apps.cli.verb import Options, Verb, argument
from corral.model.errors import PolicyError

SHELLS = ("bash", "zsh", "fish")
WORDS = ("rules", "grants")
VERB = Verb(
    "help",
    "Print a script that lets your shell complete corral's commands.",
    examples="""\
corral completions bash > ~/.local/share/bash-completion/completions/corral
corral completions zsh > "${fpath[1]}/_corral"
corral completions fish > ~/.config/fish/completions/corral.fish
corral completions bash | less
""",
    notes="""\
For the current shell only: eval "$(corral completions bash)". The script completes verbs, options, profiles, rules, hosts
and approvals. After --, it completes the command as the shell does.
""",
    exit_codes="0; 125 corral itself failed",
    has_json=False,
    arguments=(
        argument(
            "shell",
            "Print the script for this shell (default: $SHELL).",
            nargs="?",
            choices=SHELLS,
            metavar="|".join(SHELLS),
        ),
        argument("--words KIND", choices=WORDS),
    ),
)


def main(options: Options) -> int:
    """Print the script, or the words."""
    if options.words:
        print("\n".join({"rules": _rule_ids, "grants": _approval_ids}[options.words]()))
        return 0
    shell = options.shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        raise PolicyError(f"name a shell: {', '.join(SHELLS)}")
    from corral.apps.cli.completion_scripts import script  # noqa: PLC0415  words are asked for at every key

    print(script(shell), end="")
    return 0


def _approval_ids() -> list[str]:
    from corral.policy.answers.approvals import list_approvals  # noqa: PLC0415

    return [approval.id for approval in list_approvals(os.environ)]


def _rule_ids() -> list[str]:
    from corral.apps.rule_pages import rule_ids  # noqa: PLC0415

    return [name for name in rule_ids() if name.replace("-", "").isalnum() and name.islower()]
