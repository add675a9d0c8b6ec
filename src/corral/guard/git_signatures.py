"""Says which git commands make commits and tags that git signs. Pure."""

from __future__ import annotations

from corral.model.grant import BROKER, POLICY, Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command

SIGNATURE = Grant(BROKER, "sign/git", "signing_keys in your policy", by=POLICY)
_COMMITTING = frozenset({"am", "cherry-pick", "commit", "commit-tree", "merge", "pull", "rebase", "revert"})
_TAG_OPTIONS = ("--sign", "--local-user")


def is_signed(command: Command) -> bool:
    """Say whether a command is a git command that may sign: one that commits, or `git tag` with an option that asks for it."""
    name = command.real or command.name.rpartition("/")[2]
    if name != "git" or not command.verbs:
        return False
    verb = command.verbs[0].text
    return verb in _COMMITTING or (verb == "tag" and any(_asks(word.text) for word in command.words[1:]))


def _asks(text: str) -> bool:
    if text.startswith("--"):
        return text.startswith(_TAG_OPTIONS)
    return text[:1] == "-" and not {"s", "u"}.isdisjoint(text)
