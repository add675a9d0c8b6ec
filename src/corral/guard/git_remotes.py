"""Reads the remotes of a repository from the user's git configuration, which commands cannot write.

Only the repository of the project root is certain: a command can write the configuration of any other. An unusual configuration
gives no remote.
"""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral.guard.unpushed_commits import git_directories, read_text, read_text_if_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_QUOTE = '"'
UNCONFIRMED = (
    "corralunconfirmed"  # a setting of a remote that a command added, with its address; the user removes it to confirm
)


@frozen
class Remotes(Record):
    """The remotes of one repository, and the branch that is checked out."""

    urls: Mapping[str, str]  # by name, to fetch from
    push_urls: Mapping[str, str]
    branch: str = ""  # the checked-out branch; "" if HEAD is detached
    tracked: Mapping[str, tuple[str, str]] = {}  # by branch: the remote it follows, and its ref there
    push_remotes: Mapping[str, str] = {}  # by branch
    push_default: str = ""
    push_mode: str = ""  # push.default
    defaults: Mapping[str, str] = {}  # by remote: its default branch, if known
    is_certain: bool = True
    unconfirmed: frozenset[str] = frozenset()  # remotes that a command added and the user has not confirmed

    def is_certain_for(self, name: str) -> bool:
        """Say whether the address of a remote is the user's."""
        return self.is_certain and name not in self.unconfirmed

    def fetched(self) -> str:
        """Return the remote that a plain `git fetch` uses, or nothing."""
        name = self.tracked.get(self.branch, ("", ""))[0] or "origin"
        return name if name in self.urls else ""

    def pushed(self) -> str:
        """Return the remote that a plain `git push` uses, or nothing."""
        name = self.push_remotes.get(self.branch) or self.push_default
        return name if name in self.urls else "" if name else self.fetched()


def read_remotes(folder: str, root: str, home: str) -> Remotes | None:
    """Return the remotes of the repository that contains a directory of the project, or None if they cannot be known."""
    try:
        found = git_directories(folder, root)
        if found is None:
            return None
        private, common = found
        own = _entries(read_text(f"{common}/config") + "\n" + read_text_if_any(f"{private}/config.worktree"))
        user = _entries("\n".join(read_text_if_any(path) for path in _user_files(home)))
        head = read_text(f"{private}/HEAD").strip()
        defaults = {name: _default_branch(common, name) for name in _names(own)}
        is_certain = os.path.lexists(f"{root}/.git") and git_directories(root, root) == found
        return _remotes(own, user, head, defaults, is_certain=is_certain)
    except (OSError, ValueError):
        return None


def _user_files(home: str) -> tuple[str, ...]:
    # GIT_CONFIG_GLOBAL and XDG_CONFIG_HOME name other files for some users: then an insteadOf is missed, and the broker refuses the address.
    return f"{home}/.gitconfig", f"{home}/.config/git/config", "/etc/gitconfig"


def _default_branch(common: str, remote: str) -> str:
    text = read_text_if_any(f"{common}/refs/remotes/{remote}/HEAD").strip()
    return text.removeprefix(f"ref: refs/remotes/{remote}/") if text.startswith("ref: ") else ""


def _entries(config: str) -> list[tuple[str, str, str, str]]:
    """Return section, subsection, key and value of every line. Raises ValueError for what git may read in another way."""
    found: list[tuple[str, str, str, str]] = []
    section = name = ""
    for line in map(str.strip, config.split("\n")):
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            if line[-1] != "]":
                raise ValueError("a section and a key in one line")
            head, _, name = line[1:-1].partition(" ")
            section = head.casefold()
            if not section.replace("-", "").isalnum() or "\\" in name:
                raise ValueError("an unusual section")
            name = name.strip().removeprefix(_QUOTE).removesuffix(_QUOTE)
            continue
        key, _, value = line.partition("=")
        if section in ("remote", "branch", "url", "push") and (line[-1] == "\\" or any(c in value for c in '"\\#;')):
            raise ValueError("an unusual value")
        found.append((section, name, key.strip().casefold(), value.strip()))
    return found


def _names(entries: list[tuple[str, str, str, str]]) -> list[str]:
    return list(
        dict.fromkeys(name for section, name, _, _ in entries if section == "remote" and name and "/" not in name)
    )


def _remotes(
    own: list[tuple[str, str, str, str]],
    user: list[tuple[str, str, str, str]],
    head: str,
    defaults: dict[str, str],
    *,
    is_certain: bool,
) -> Remotes:
    urls: dict[str, str] = {}
    pushes: dict[str, str] = {}
    tracked: dict[str, list[str]] = {}
    push_remotes: dict[str, str] = {}
    push_default = mode = ""
    added: dict[str, str] = {}
    for section, name, key, value in (*user, *own):
        if section == "remote" and name and key == "url":
            if name in urls:
                raise ValueError("a remote with several addresses")
            urls[name] = value
        elif section == "remote" and name and key == "pushurl":
            if name in pushes:
                raise ValueError("a remote with several addresses")
            pushes[name] = value
        elif section == "remote" and key in ("push", "mirror", "proxy", "vcs", "receivepack", "uploadpack"):
            raise ValueError("a remote that pushes by other rules")
        elif section == "remote" and key == UNCONFIRMED:
            added[name] = value
        elif section == "remote" and key == "pushdefault":
            push_default = value
        elif section == "branch" and key in ("remote", "merge"):
            tracked.setdefault(name, ["", ""])[key == "merge"] = value
        elif section == "branch" and key == "pushremote":
            push_remotes[name] = value
        elif section == "push" and key == "default":
            mode = value
    # An include may change any of these. Its file is the user's only if it is not in the project.
    is_certain = is_certain and not any(section in ("include", "includeif") for section, *_ in own)
    rules = [(key, prefix, base) for section, base, key, prefix in (*user, *own) if section == "url"]
    return Remotes(
        {name: _rewritten(url, rules, ("insteadof",)) for name, url in urls.items()},
        {
            name: pushes.get(name) or _rewritten(url, rules, ("pushinsteadof", "insteadof"))
            for name, url in urls.items()
        },
        head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else "",
        {name: (where[0], where[1]) for name, where in tracked.items()},
        push_remotes,
        push_default,
        mode,
        defaults,
        is_certain,
        frozenset(name for name, url in added.items() if urls.get(name) == url),
    )


def _rewritten(url: str, rules: list[tuple[str, str, str]], keys: tuple[str, ...]) -> str:
    """Return an address as git rewrites it: the longest matching prefix counts, of the first key that has one."""
    for key in keys:
        fitting = [(prefix, base) for each, prefix, base in rules if each == key and prefix and url.startswith(prefix)]
        if fitting:
            prefix, base = max(fitting, key=lambda rule: len(rule[0]))
            return base + url[len(prefix) :]
    return url
