"""What in a git directory makes git run something: judged for the repositories that commands make, which may keep what git itself puts there.

Reads the disk, changes nothing. What is not known to be harmless is not.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

# Roles of directories: a repository, one that is its own working tree, what holds those of submodules or worktrees, and reflogs.
GIT, BARE, MODULES, LOGS = ".git", ".git/bare", ".git/modules", ".git/logs"
MAX_CONFIG_BYTES = 1 << 18  # against a configuration that takes long to read
# What `git init`, `clone`, `worktree`, `branch`, `remote` and `sparse-checkout` write, and none of it names a program.
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


# What git writes in a repository, besides what is named in capitals: through a link there, to where it leads.
WRITTEN_BY_GIT = frozenset(
    {"logs", "refs", "objects", "info", "index", "packed-refs", "shallow", "description", "gc.log"}
)


def is_written_by_git(role: str, name: str) -> bool:
    """Say whether git writes what has this name in a directory of this role, through a link if it is one."""
    return role in (GIT, LOGS) or (role == BARE and (name in WRITTEN_BY_GIT or name.isupper()))


def is_repository(directory: str, listed: Iterable[os.DirEntry[str]]) -> bool:
    """Say whether git takes a directory for a repository, whatever it is called."""
    if not any(entry.name == "HEAD" for entry in listed):
        return False
    # Links that lead nowhere as yet are completed elsewhere.
    own = all(os.path.lexists(f"{directory}/{name}") for name in ("objects", "refs"))
    return own or os.path.lexists(f"{directory}/commondir")


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of a configuration in small letters; nothing at all for a line that is not plainly one."""
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
    """Say whether a configuration makes git run nothing."""
    for section, key, value in _entries(text):
        if key not in _HARMLESS.get(section, ()):
            return False
        # `ext::` and its like name a program.
        if key in ("url", "pushurl") and ("::" in value or value.startswith("-")):
            return False
    return True


def configured_paths(directory: str) -> Iterator[str]:
    """Yield the paths that a repository's configuration refers to for what to run: hooks, and further configuration."""
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
    """Return the git directory that a `.git` file names, or nothing."""
    word, _, target = (_read(pointer) or "").partition(": ")
    if word != "gitdir" or "\n" in target.rstrip("\n"):
        return ""
    return _without_links(os.path.dirname(pointer), target.rstrip("\n"))


def risky_entries(directory: str, repositories: Collection[str], samples: SampleHooks) -> list[str]:
    """Return the names in a git directory that could make git run something, or hide what does."""
    found = [name for name in ("config", "config.worktree") if not _is_harmless_file(f"{directory}/{name}")]
    if os.path.lexists(f"{directory}/commondir") and not _belongs(directory, repositories):
        found.append("commondir")
    found += [name for name in ("info", "hooks", "modules", "worktrees") if not _is_directory(f"{directory}/{name}")]
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


def _belongs(directory: str, repositories: Collection[str]) -> bool:
    """Say whether a worktree's directory lies in the repository that it names as its own."""
    text = _read(f"{directory}/commondir")
    if not text:
        return False
    common = _without_links(directory, text.rstrip("\n"))
    return common in repositories and os.path.dirname(directory) == f"{common}/worktrees"


def _without_links(directory: str, target: str) -> str:
    """Return where a path leads from a directory, or nothing if that is through a link, which may lead elsewhere tomorrow."""
    path = os.path.normpath(os.path.join(directory, target))
    try:
        return path if os.path.realpath(path) == path else ""
    except OSError:
        # Somebody changes it at this moment.
        return ""


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _is_directory(path: str) -> bool:
    """Say whether a path is a directory, or nothing; a link is neither."""
    return not os.path.lexists(path) or stat.S_ISDIR(os.lstat(path).st_mode)


def _read(path: str, limit: int = MAX_CONFIG_BYTES) -> str | None:
    """Return the text of a regular file; a link is none, and neither is what is too long."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, encoding="utf-8", errors="surrogateescape", newline="") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        text = file.read(limit + 1)
    return text if len(text) <= limit else None


class SampleHooks:
    """The samples of hooks that git puts into every new repository; git runs none of them."""

    def __init__(self, programs: Collection[str]) -> None:
        self._folders = [f"{os.path.dirname(path.rstrip('/'))}/share/git-core/templates/hooks" for path in programs]
        self._folders.append("/usr/share/git-core/templates/hooks")

    def match(self, directory: str, name: str) -> bool:
        """Say whether a name in a repository's hooks is a sample as git has it."""
        if not name.endswith(".sample"):
            return False
        text = _read(f"{directory}/hooks/{name}")
        return text is not None and any(text == _read(f"{folder}/{name}") for folder in self._folders)
