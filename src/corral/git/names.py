"""Decides which names of refs, paths and configuration keys may cross from a command's git directory to the user's. Pure."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

OID = pattern(r"[0-9a-f]{40}\Z")
_SHORT_OID = pattern(r"[0-9a-f]{7,64}\Z")
_DESCRIBED = pattern(r".*-g[0-9a-f]{7,64}\Z")  # as `git describe` prints a commit
_BAD_IN_REF = pattern(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_CROSSING = ("refs/heads/", "refs/tags/", "refs/remotes/", "refs/notes/", "refs/original/")
_ORIGINAL = "refs/original/"
_PRIVATE = ("refs/bisect/", "refs/worktree/", "refs/rewritten/", "refs/corral/")
STASH = "refs/stash"
MAX_REF_CHARACTERS = 1000
MAX_MESSAGE_CHARACTERS = 200
# Characters that some file systems ignore in names.
_IGNORED = pattern("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT_NAMES = (".git", "git~1")


def is_safe_path(path: bytes) -> bool:
    """Say whether git would write a tracked file of this path inside the working tree, on any file system."""
    if not path or len(path) > 4096 or path.startswith(b"/") or b"\0" in path:
        return False
    text = path.decode("utf-8", "surrogateescape")
    return all(part not in ("", ".", "..") and not _is_git_name(part) for part in text.split("/"))


def _is_git_name(part: str) -> bool:
    for piece in part.split("\\"):
        plain = piece.partition(":")[0].rstrip(" .").lower()
        plain = plain if plain.isascii() else _IGNORED.sub("", plain)
        if plain in _GIT_NAMES or piece == "..":
            return True
    return False


def is_settings_of_submodules(path: bytes) -> bool:
    """Say whether git could read a file of this path as `.gitmodules`, on any file system."""
    name = path.rpartition(b"/")[2].decode("utf-8", "surrogateescape").lower()
    name = _IGNORED.sub("", name).partition(":")[0].rstrip(" .")
    return name == ".gitmodules" or name.startswith(("gitmod~", "gi7eba~"))


def is_private_ref(name: str) -> bool:
    """Say whether a ref belongs to work in progress, and so stays on the sandbox's side without a word."""
    return name.startswith(_PRIVATE)


def why_not_ref(name: str, known: Collection[str]) -> str:
    """Return why a new ref must not cross, or "". `known` are the refs that the user has."""
    if not name.startswith(_CROSSING) or len(name) > MAX_REF_CHARACTERS:
        return "refs of this kind stay in the sandbox"
    if name.startswith(_ORIGINAL):
        # `git filter-branch` keeps refs there under their full names. No short name finds them.
        inner = name.removeprefix(_ORIGINAL)
        return "it is not a valid name" if inner.startswith(_ORIGINAL) else why_not_ref(inner, ())
    if _BAD_IN_REF.search(name) or not name.isprintable():
        return "it is not a valid name"
    parts = name.split("/")
    if any(not part or part.startswith((".", "-")) or part.endswith((".lock", ".")) for part in parts):
        return "it is not a valid name"
    if "$" in name or "`" in name:
        # Many prompts show the branch, and some let the shell expand its name.
        return "a shell could run a part of its name"
    short = name.split("/", 2)[2]
    if _SHORT_OID.match(short) or _DESCRIBED.match(short) or (_SHORT_OID.match(parts[-1]) and len(parts[-1]) >= 40):
        return "it looks like an object name"
    if short in ("HEAD", "@") or short.endswith("_HEAD") or short.startswith(("refs/", "heads/", "tags/", "remotes/")):
        return "git could take it for something else"
    for other in (
        *(kind + short for kind in ("refs/heads/", "refs/tags/", "refs/remotes/")),
        f"refs/remotes/{short}/HEAD",
    ):
        if other != name and other in known:
            return f"{other} has the same short name"
    return ""


def is_safe_symref(name: str, target: str, known: Collection[str]) -> bool:
    """Say whether a symbolic ref may cross: only the default branch of a remote."""
    kind, _, rest = name.partition("refs/remotes/")
    remote = rest.partition("/")[0]
    is_remote = not kind and rest == f"{remote}/HEAD" and target.startswith(f"refs/remotes/{remote}/")
    return is_remote and target != name and (target in known or not why_not_ref(target, ()))


def typed(word: str) -> str:
    """Return a word for a command that a note tells the user to type. Names of refs and directories may be a command's."""
    from shlex import quote  # noqa: PLC0415  imports re, and only notes need it

    return quote(word)


def plain(text: str) -> str:
    """Return a message without characters that a terminal or a log would interpret."""
    return "".join(letter for letter in text if letter.isprintable())[:MAX_MESSAGE_CHARACTERS]
