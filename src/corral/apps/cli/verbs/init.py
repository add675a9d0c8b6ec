"""`corral init`: writes a policy file with suggestions for the project, commented out. Never overwrites a file."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.mentioned_variables import mentioned_variables
from corral.apps.cli.verb import Options, Verb, argument
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy import user_dirs
from corral.policy.config import DEFAULT_TIMEOUT_SECONDS, checked_root
from corral.policy.loader import project_policy_path, user_policy_path
from corral.policy.parser import parse
from corral.policy.project_types import PROJECT_TYPES, ProjectType
from corral.policy.rule_examples import compile_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_ENTRIES = 1000  # read from each directory
_SKIPPED = ("node_modules", "vendor", "target", "build", "dist", "venv")
_COMMANDS = """\
#
#   corral policy show    show the policy in force, and where each setting comes from
#   corral policy test    check that the examples below hold
"""
_HEAD = """\
# What coding agents may do in this project. corral judges every command by this policy, and the kernel confines it.
#
# This file may tighten the user's own policy, ~/.config/corral/policy.toml. A setting that would loosen it has no
# effect until the user runs `corral trust`, and again after every change of this file. Commands cannot write this file.
"""
_USER_HEAD = """\
# What coding agents may do in all my projects. A project's corral.toml may only tighten this, until I trust it with
# `corral trust`. Commands can neither read nor write this file.
"""
_PROFILE = """
# workspace: relies on the kernel, so scripts, pipes and deleting inside the project are allowed.
# strict: no inline code, no deleting, nothing outside the project. For agents that you do not trust.
{mark}profile = "{profile}"
"""
_TIMEOUT = """
# The time limit of a command; {default:g} seconds unless this setting or --timeout changes it.
# timeout_seconds = {seconds}
"""
_VARIABLES = """
# Environment variables that commands see besides PATH, HOME, LANG and the like.{secret}
# environment = {names}
"""
_CREDENTIALS = "\n# The project's files also mention {names}, which look like credentials."
_NETWORK = """
[containment]
# The network is "off" unless a policy names hosts. Then a command can send nothing away and install nothing.
# A list opens these hosts only.{found_by}
# network = {hosts}
"""
_CACHES = """\
# More directories of your tools, shown to commands read-only.
# read = {paths}
"""
_RULES = """
# A rule decides about commands by their first words. corral looks through options, paths, wrappers and links. The first
# rule that matches counts. Every rule has examples, which corral judges whenever it reads this file.
"""
_RULE = """
# [[rule]]
# command = "{command}"
# decision = "deny"
# reason = "{reason}"
{instead}# deny = [{refused}]
# allow = [{allowed}]
"""
VERB = Verb(
    "policy",
    "Write a policy file with suggestions for this project.",
    examples="""\
corral init                  write corral.toml
corral init --user           write ~/.config/corral/policy.toml, for all your projects
corral init --print          print the file and write nothing
""",
    notes="""\
corral never changes an existing file. Every line of a new file is commented out, so the file changes no decision.
""",
    exit_codes="0 written, 125 the file exists already or corral itself failed",
    arguments=(
        ROOT,
        argument("--user", "Write the file for all your projects."),
        argument("--print", "Print the file and write nothing.", dest="shown"),
    ),
)


def main(options: Options) -> int:
    """Write the file, or print it."""
    if options.user:
        path, kinds, text = user_policy_path(os.environ), [], user_text()
    else:
        root = checked_root(options.root)
        path, kinds = project_policy_path(root), detect_project_types(root)
        text = project_text(kinds, *mentioned_variables(root))
    # Raises unless the file loads and its examples hold.
    compile_policy(parse(text.encode(), path), path)
    if options.shown:
        print(text, end="")
        return 0
    if options.user:
        user_dirs.private_directory("config", os.environ)
    _write(path, text)
    names = [kind.name for kind in kinds]
    found = f", for {', '.join(names)}" if names else ""
    if options.json:
        print(json_text({"path": path, "kinds": names}))
    else:
        print(printable(f"Wrote {path}{found}."), file=sys.stderr)
        hint = "Every line is a suggestion and commented out. Edit the file, then run: corral policy show"
        print(hint, file=sys.stderr)
        if options.user:
            from corral.apps.cli.verbs.posture import ask_posture  # noqa: PLC0415  a project's file has no question

            ask_posture(os.environ)
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
    """Return the project types that match the directory and its subdirectories."""
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


def project_text(kinds: list[ProjectType], mentioned: Iterable[str] = (), secret: Iterable[str] = ()) -> str:
    """Return a corral.toml for a project of these types, whose files mention these variables."""
    found = ", ".join(kind.name for kind in kinds) or "no known project type"
    seconds = max((kind.seconds for kind in kinds), default=600)
    head = f"{_HEAD}{_COMMANDS}\n# Found here: {found}.\n{_PROFILE.format(mark='# ', profile='strict')}"
    rules = [
        _RULE.format(
            command=each.command,
            reason="releases are made by a person",
            instead="",
            refused=f'"{each.refused}"',
            allowed=f'"{each.allowed}"',
        )
        for kind in kinds
        for each in kind.publishing
    ]
    return "".join([head, _settings(seconds, kinds, kinds, (mentioned, secret)), *rules])


def user_text() -> str:
    """Return a policy.toml for all projects of the user."""
    head = f"{_USER_HEAD}{_COMMANDS}{_PROFILE.format(mark='', profile='workspace')}"
    return head + _settings(600, (), PROJECT_TYPES)


def _settings(
    seconds: int,
    kinds: Iterable[ProjectType],
    cached: Iterable[ProjectType],
    mentioned: tuple[Iterable[str], Iterable[str]] = ((), ()),
) -> str:
    names, secret = map(list, mentioned)
    variables = list(dict.fromkeys([*names, *(name for kind in kinds for name in kind.variables)])) or ["CI"]
    indexed = [kind for kind in kinds if kind.index]
    hosts = [f"{kind.index}:443" for kind in indexed] or ["host.example:443"]
    found_by = "".join(f"\n# {kind.name}: {kind.index_found_by} names the host to write here." for kind in indexed)
    caches = [path for kind in cached for path in kind.caches]
    push = _RULE.format(
        command="git push",
        reason="only a person pushes",
        instead='# instead = "Commit, and say what should be pushed."\n',
        refused='"git push origin main", "git -C sub push --force"',
        allowed='"git stash push", "git commit -m \'push it\'"',
    )
    parts = [
        _TIMEOUT.format(default=DEFAULT_TIMEOUT_SECONDS, seconds=seconds),
        _VARIABLES.format(
            names=_list(variables), secret=_CREDENTIALS.format(names=", ".join(secret)) if secret else ""
        ),
        _NETWORK.format(hosts=_list(hosts), found_by=found_by),
        _CACHES.format(paths=_list(caches)) if caches else "",
    ]
    return "".join([*parts, _RULES, push])


def _list(names: list[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
