"""`corral init`: writes a policy file of suggestions that fit the project, commented out. It never overwrites a file."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy import user_dirs
from corral.policy.config import DEFAULT_TIMEOUT_SECONDS, checked_root
from corral.policy.loader import project_policy_path, user_policy_path
from corral.policy.parser import parse
from corral.policy.project_types import PROJECT_TYPES
from corral.policy.rule_examples import compile_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from corral.policy.project_types import ProjectType, Publishing

MAX_ENTRIES = 1000  # of each directory that is looked at
_SKIPPED = ("node_modules", "vendor", "target", "build", "dist", "venv")
_HEAD = """\
# What the agents that work here may do. corral judges every command by this, and the kernel holds what runs.
#
# This file may tighten what the owner's ~/.config/corral/policy.toml says. Whatever would loosen it waits until the
# owner has run `corral trust`, and again when the file has changed. Commands cannot write it.
#
#   corral policy show    what holds now, and where each line of it comes from
#   corral policy test    whether the examples below hold
"""
_OWNER_HEAD = """\
# What agents may do in all projects of mine. A project's corral.toml may only tighten this, until I trust it with
# `corral trust`. Commands can neither read nor write this file.
#
#   corral policy show    what holds in a project, and where each line of it comes from
#   corral policy test    whether the examples below hold
"""
_PROFILE = """
# workspace: the kernel contains, so scripts, pipes and deleting inside the project are fine.
# strict: no inline code, no deleting, nothing outside the project; for agents that deserve no trust at all.
{mark}profile = "{profile}"
"""
_NETWORK = """
[containment]
# The network is "off" unless a policy names hosts: nothing that a command reads can be sent away, and nothing is
# installed. A list opens these hosts and no others.{found_by}
# network = {hosts}
"""
_RULES = """
# Rules decide about commands by their first words. corral looks through options, paths, wrappers and links. The first
# rule that fits counts. Every rule carries examples, which corral judges whenever it reads this file.
"""
_PUSH = """
# [[rule]]
# command = "git push"
# decision = "deny"
# reason = "only a person pushes"
# instead = "Commit, and say what should be pushed."
# deny = ["git push origin main", "git -C sub push --force"]
# allow = ["git stash push", "git commit -m 'push it'"]
"""
_RULE = """
# [[rule]]
# command = "{command}"
# decision = "deny"
# reason = "releases are made by a person"
# deny = ["{refused}"]
# allow = ["{allowed}"]
"""


def main(options: argparse.Namespace) -> int:
    """Write the file, or show what it would be."""
    if options.user:
        path, kinds, text = user_policy_path(os.environ), [], user_text()
    else:
        root = checked_root(options.root)
        path, kinds = project_policy_path(root), detect_project_types(root)
        text = project_text(kinds)
    # It must load and its examples hold, or it is not written.
    compile_policy(parse(text.encode(), path), path)
    if options.shown:
        print(text, end="")
        return 0
    if options.user:
        user_dirs.private_directory("config", os.environ)
    _write(path, text)
    found = ", ".join(kind.name for kind in kinds)
    if options.json:
        print(json_text({"path": path, "kinds": [kind.name for kind in kinds]}))
    else:
        print(printable(f"Wrote {path}{f', for {found}' if found else ''}."), file=sys.stderr)
        print(
            "Every line is a suggestion and commented out. Edit the file, then run: corral policy show",
            file=sys.stderr,
        )
    return 0


def _write(path: str, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise PolicyError(
            f"{path} already exists and was not changed. Run corral init --print to see the suggestions"
        ) from None
    except OSError as error:
        raise PolicyError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        os.unlink(path)
        raise PolicyError(f"{path} cannot be written: {error.strerror}") from None


def detect_project_types(root: str) -> list[ProjectType]:
    """Return the kinds of project that a directory and those in it are."""
    names = _names(root)
    for entry in sorted(names):
        inner = f"{root}/{entry}"
        if not entry.startswith(".") and entry not in _SKIPPED and os.path.isdir(inner) and not os.path.islink(inner):
            names = names | _names(inner)
    return [kind for kind in PROJECT_TYPES if any(_is_there(mark, names) for mark in kind.marks)]


def _names(directory: str) -> set[str]:
    try:
        return set(os.listdir(directory)[:MAX_ENTRIES])
    except OSError:
        return set()


def _is_there(mark: str, names: set[str]) -> bool:
    return any(name.endswith(mark[1:]) for name in names) if mark.startswith("*") else mark in names


def project_text(kinds: list[ProjectType]) -> str:
    """Return a corral.toml for a project of these kinds."""
    found = ", ".join(kind.name for kind in kinds) or "no kind that is known"
    seconds = max((kind.seconds for kind in kinds), default=600)
    parts = [_HEAD, f"\n# Found here: {found}.\n", _PROFILE.format(mark="# ", profile="strict"), _times(seconds)]
    parts += [_variables(kinds), _network(kinds), _caches(kinds), _RULES, _PUSH]
    publishing: list[Publishing] = [each for kind in kinds for each in kind.publishing]
    parts += [_RULE.format(command=p.command, refused=p.refused, allowed=p.allowed) for p in publishing]
    return "".join(parts)


def user_text() -> str:
    """Return a policy.toml for the owner."""
    parts = [_OWNER_HEAD, _PROFILE.format(mark="", profile="workspace"), _times(600), _variables(())]
    return "".join([*parts, _network(()), _caches(PROJECT_TYPES), _RULES, _PUSH])


def _times(seconds: int) -> str:
    return (
        f"\n# How long a command may take; {DEFAULT_TIMEOUT_SECONDS:g} seconds unless this or --timeout says otherwise.\n"
        f"# timeout_seconds = {seconds}\n"
    )


def _variables(kinds: Iterable[ProjectType]) -> str:
    names = [name for kind in kinds for name in kind.variables] or ["CI"]
    return f"\n# Variables that commands see besides PATH, HOME, LANG and their like.\n# environment = {_list(names)}\n"


def _network(kinds: Iterable[ProjectType]) -> str:
    known = [kind for kind in kinds if kind.index]
    hosts = [f"{kind.index}:443" for kind in known] or ["host.example:443"]
    ways = "".join(f"\n# {kind.name}: {kind.index_found_by} names the host to write here." for kind in known)
    return _NETWORK.format(hosts=_list(hosts), found_by=ways)


def _caches(kinds: Iterable[ProjectType]) -> str:
    paths = [path for kind in kinds for path in kind.caches]
    if not paths:
        return ""
    return f"# What tools have fetched already can be shown to them, read-only.\n# read = {_list(paths)}\n"


def _list(names: list[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
