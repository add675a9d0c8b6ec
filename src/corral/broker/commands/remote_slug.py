"""Finds host and slug (owner/name) of the project's remote, as forges name repositories."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral._lib.records import Record, frozen
from corral.guard.git_remotes import read_remotes
from corral.policy.path_grants import home_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_URL = pattern(
    r"(?:https?://(?:[^/@\s]*@)?|ssh://(?:[^/@\s]*@)?|git://|(?:[\w.-]+@))"
    r"([A-Za-z0-9][A-Za-z0-9.-]*)(?::\d+)?[:/]/?([A-Za-z0-9][\w.-]*)/([A-Za-z0-9_.][\w.-]*?)(?:\.git)?/?"
)


@frozen
class Remote(Record):
    """The repository of a project on a forge; both are empty if it has no such remote."""

    host: str = ""
    slug: str = ""  # owner/name


def remote_of(url: str) -> Remote:
    """Return the repository that a remote's URL names, or an empty one."""
    found = _URL.fullmatch(url)
    if found is None or found[3] in (".", ".."):
        return Remote()
    return Remote(found[1].lower(), f"{found[2]}/{found[3]}")


def project_remote(root: str, environ: Mapping[str, str]) -> Remote:
    """Return the repository of a project's own remote. Empty unless no command can write the file that names it."""
    found = read_remotes(root, root, home_directory(environ))
    if found is None or not found.is_certain_for(found.fetched()):
        return Remote()
    return remote_of(found.urls.get(found.fetched(), ""))
