"""Finds the entries of a git directory that make git run a program. Reads the disk, changes nothing.

A repository that a command makes may keep what git itself writes. An entry that is not known to be harmless counts as dangerous.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

# Roles of directories: a repository, a bare repository, the directories of submodules and worktrees, and reflogs.
GIT, BARE, MODULES, LOGS = ".git", ".git/bare", ".git/modules", ".git/logs"
MAX_CONFIG_BYTES = 1 << 18  # against a configuration that takes long to read
# Keys that `git init`, `clone`, `worktree`, `branch`, `remote` and `sparse-checkout` write. None of them names a program.
_HARMLESS = {
    "core": {"repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase", "precomposeunicode", "symlinks",
             "autocrlf", "eol", "sparsecheckout", "sparsecheckoutcone"},
    "remote": {"url", "pushurl", "fetch", "push", "tagopt", "mirror", "prune", "promisor", "partialclonefilter", "skipdefaultupdate"},
    "branch": {"remote", "merge", "rebase", "pushremote", "description"},
    "user": {"name", "email"},
    "submodule": {"url", "active", "branch"},
    "extensions": {"objectformat", "refstorage", "partialclone", "worktreeconfig", "compatobjectformat", "relativeworktrees"},
    "index": {"sparse", "version"},
    "pull": {"rebase", "ff"},
    "push": {"default", "autosetupremote"},
    "init": {"defaultbranch"},
    "gc": {"auto"},
}  # fmt: skip
# Names that git writes in a repository, besides those in capitals. If one is a link, git writes to its target.
WRITTEN_BY_GIT = frozenset(
    {"logs", "refs", "objects", "info", "index", "packed-refs", "shallow", "description", "gc.log"}
)


def is_written_by_git(role: str, name: str) -> bool:
    """Say whether git writes this name in a directory of this role, through a link if it is one."""
    return role in (GIT, LOGS) or (role == BARE and (name in WRITTEN_BY_GIT or name.isupper()))


def is_repository(directory: str, listed: Iterable[os.DirEntry[str]]) -> bool:
    """Say whether git takes a directory for a repository, whatever its name is."""
    if not any(entry.name == "HEAD" for entry in listed):
        return False
    # lexists: a later command can create the target of a dangling link.
    own = all(os.path.lexists(f"{directory}/{name}") for name in ("objects", "refs"))
    return own or os.path.lexists(f"{directory}/commondir")


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of each setting, lower-cased. A line in any unusual form has no section and no key."""
    section = ""
    for line in text.split("\n"):
        words = line.strip()
        if not words or words[0] in "#;":
            continue
        if words[0] == "[" and words[-1] == "]" and "]" not in words[1:-1]:
            section = words[1:-1].partition(" ")[0].lower()
            continue
        key, _, value = words.partition("=")
        if not key.strip().isalnum() or not section.isalnum() or words.endswith("\\") or "\r" in words:
            yield "", "", line
            continue
        yield section, key.strip().lower(), value.strip().strip('"')


def is_harmless(text: str) -> bool:
    """Say whether a configuration makes git run no program."""
    for section, key, value in _entries(text):
        if key not in _HARMLESS.get(section, ()):
            return False
        # `ext::` and similar transports name a program.
        if key in ("url", "pushurl") and ("::" in value or value.startswith("-")):
            return False
    return True


def configured_paths(directory: str) -> Iterator[str]:
    """Yield the paths of hooks and included configuration that a repository's configuration names."""
    text = _read(f"{directory}/config") or ""
    top = os.path.dirname(directory) if os.path.basename(directory) == GIT else directory
    for section, key, value in _entries(text):
        if not value or value.startswith("~"):
            continue
        if (section, key) == ("core", "hookspath"):
            yield os.path.join(top, value)
        elif section in ("include", "includeif") and key == "path":
            yield os.path.join(directory, value)


def gitdir_target(pointer: str) -> str:
    """Return the git directory that a `.git` file names, or ""."""
    word, _, target = (_read(pointer) or "").partition(": ")
    if word != "gitdir" or "\n" in target.rstrip("\n"):
        return ""
    return _resolve_without_links(os.path.dirname(pointer), target.rstrip("\n"))


def risky_entries(directory: str, repositories: Collection[str], samples: SampleHooks) -> list[str]:
    """Return the names in a git directory that could make git run a program, or hide such a name."""
    found = [name for name in ("config", "config.worktree") if not _is_harmless_file(f"{directory}/{name}")]
    if os.path.lexists(f"{directory}/commondir") and not _is_worktree_of_known(directory, repositories):
        found.append("commondir")
    found += [name for name in ("info", "hooks", "modules", "worktrees") if _is_no_directory(f"{directory}/{name}")]
    if "info" not in found and os.path.lexists(f"{directory}/info/attributes"):
        found.append("info/attributes")
    if "hooks" not in found:
        found += [f"hooks/{name}" for name in _names(f"{directory}/hooks") if not samples.match(directory, name)]
    return found


def _is_harmless_file(path: str) -> bool:
    if not os.path.lexists(path):
        return True
    text = _read(path)
    return text is not None and is_harmless(text)


def _is_worktree_of_known(directory: str, repositories: Collection[str]) -> bool:
    """Say whether a worktree's git directory lies in the known repository that its `commondir` names."""
    text = _read(f"{directory}/commondir")
    if not text:
        return False
    common = _resolve_without_links(directory, text.rstrip("\n"))
    return common in repositories and os.path.dirname(directory) == f"{common}/worktrees"


def _resolve_without_links(directory: str, target: str) -> str:
    """Return the absolute path of `target`, or "" if a link is part of it: a command could change the link later."""
    path = os.path.normpath(os.path.join(directory, target))
    try:
        return path if os.path.realpath(path) == path else ""
    except OSError:
        # Another process changes the path at this moment.
        return ""


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _is_no_directory(path: str) -> bool:
    return os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode)


def _read(path: str) -> str | None:
    """Return the text of a regular file that is no link and not too long, or None."""
    from corral.policy.user_dirs import read_regular_file  # noqa: PLC0415  the keeper imports this module, and reads nothing

    try:
        data, _ = read_regular_file(path, MAX_CONFIG_BYTES)
    except OSError:
        return None
    return data.decode("utf-8", "surrogateescape") if len(data) <= MAX_CONFIG_BYTES else None


class SampleHooks:
    """The sample hooks that git copies into every new repository and never runs."""

    def __init__(self, programs: Collection[str]) -> None:
        self._folders = [f"{os.path.dirname(path.rstrip('/'))}/share/git-core/templates/hooks" for path in programs]
        self._folders.append("/usr/share/git-core/templates/hooks")

    def match(self, directory: str, name: str) -> bool:
        """Say whether a hook of a repository is an unchanged sample."""
        if not name.endswith(".sample"):
            return False
        text = _read(f"{directory}/hooks/{name}")
        return text is not None and any(text == _read(f"{folder}/{name}") for folder in self._folders)
