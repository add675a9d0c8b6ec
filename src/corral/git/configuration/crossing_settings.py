"""Writes the settings of a command's git configuration that may cross into the user's, and reports those that stay."""

from __future__ import annotations

import os

from corral.containment.filesystem.command_files import leads_to_command_files
from corral.git.config_file import CHANGED_TOO, Change, changes, listed, name_of, parse
from corral.git.names import plain
from corral.guard.git_remotes import UNCONFIRMED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.git.comparison import Comparison
    from corral.git.config_file import Settings

MAX_SETTINGS = 200  # that one comparison writes, with two processes for each
MAX_TOLD = 20
COMMAND_FILES = "it leads to files of commands outside the project"
NEW_REMOTE, CHANGED_NAME = "git has a new remote", "a command set"
INFORMING = (NEW_REMOTE, CHANGED_NAME)
_CONFIG = "config"
_MAX_CONFIG_BYTES = 1 << 18
# Git and git-lfs set these themselves.
_SILENT = ("gc", "maintenance")
_SILENT_KEYS = (("lfs", "", "repositoryformatversion"),)


def write(comparison: Comparison, private: str, user: str) -> str:
    """Write what crosses from the commands' configuration. Return the text of the user's configuration then."""
    theirs = parse(user)
    users = comparison.base.get("refs", {}).keys() - comparison.base.get("own_refs", ())
    deleted = comparison.base.get("deleted_refs", ())
    found = changes(parse(comparison.base[_CONFIG]), theirs, parse(private), users, deleted)
    unsafe = {each.key[:2] for each in found if _leads_to_command_files(comparison, each)}
    found = [each.replace(why=each.why or COMMAND_FILES) if each.key[:2] in unsafe else each for each in found]
    crossing = [each for each in found if not each.why]
    if crossing:
        crossing = _without_unread(comparison, crossing, theirs)[:MAX_SETTINGS]
        for each in crossing:
            _write_one(comparison, each)
        comparison.user_files.note("", _CONFIG)
        user = comparison.user.text(_CONFIG, _MAX_CONFIG_BYTES)
    written = {each.key for each in crossing}
    left = [each for each in found if each.key not in written and each.key not in _SILENT_KEYS]
    _tell(comparison, [each for each in left if each.key[0] not in _SILENT])
    return user


def _leads_to_command_files(comparison: Comparison, change: Change) -> bool:
    """Say whether an address names a repository whose settings and hooks are a command's: git runs them on a push."""
    worktree = comparison.mirror.user_dir.removesuffix("/.git")
    paths = [value.removeprefix("file://") for value in change.values if value.startswith(("/", ".", "file://"))]
    return change.key[2] == "url" and any(
        leads_to_command_files(os.path.join(worktree, path), os.environ) for path in paths
    )


def _write_one(comparison: Comparison, change: Change) -> None:
    name, path = name_of(change.key), f"{comparison.git.path}/{_CONFIG}"
    section, subsection, key = change.key
    _replace(comparison, path, name, change.values)
    if (section, key) == ("remote", "url"):
        mark = f"remote.{subsection}.{UNCONFIRMED}"
        _replace(comparison, path, mark, change.values)
        if change.values:
            # Until then a push to it is asked about each time.
            confirm = f"To confirm it: git config --unset remote.{subsection}.corralUnconfirmed"
            comparison.notes.append(f"{NEW_REMOTE}: {name} = {change.values[0]}. {confirm}")
    elif section == "user":
        comparison.notes.append(
            f"{CHANGED_NAME} {name} = {plain(', '.join(change.values)) or 'nothing'} in .git/config"
        )


def _replace(comparison: Comparison, path: str, name: str, values: tuple[str, ...]) -> None:
    comparison.git.run("config", "--file", path, "--unset-all", name)
    for value in values:
        comparison.git.run("config", "--file", path, "--add", name, value)


def _without_unread(comparison: Comparison, crossing: list[Change], theirs: Settings) -> list[Change]:
    """Leave out what the user has set in a form or file that corral does not read."""
    answer = comparison.git.run("config", "--list", "--show-scope", "-z")
    # A repository's own name for commits is meant to differ from the user's usual one.
    known = {
        key for scope, key in listed(answer.output) if key[0] != "user" or scope in ("local", "worktree")
    } - theirs.keys()  # fmt: skip
    remotes = {key[1] for key in known if key[0] == "remote"}
    return [
        each for each in crossing if each.key not in known and (each.key[0] != "remote" or each.key[1] not in remotes)
    ]


def _tell(comparison: Comparison, left: list[Change]) -> None:
    reasons: dict[str, list[str]] = {}
    for each in left[:MAX_TOLD]:
        reasons.setdefault(each.why or CHANGED_TOO, []).append(plain(name_of(each.key)))
    parts = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
    parts += [f"and {len(left) - MAX_TOLD} more"] if len(left) > MAX_TOLD else []
    if parts:
        comparison.notes.append(f"git settings stay in the sandbox: {'; '.join(parts)}")
