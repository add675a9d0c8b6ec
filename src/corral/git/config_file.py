"""Decides which settings of a command's git configuration the host writes into the user's. Pure.

Upstream branches, remotes whose names the user does not have, submodules, and the name for commits can cross. Every other setting stays in
the sandbox.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral._lib.records import Record, frozen
from corral.git.names import is_safe_path, why_not_ref
from corral.guard.git_remotes import UNCONFIRMED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Key = tuple[str, str, str]  # section, subsection and name
    Settings = Mapping[Key, tuple[str, ...]]

_HEAD = pattern(r'\[([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\]\Z')
_KEY = pattern(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*((?s:.*)))?\Z")
_ESCAPED = pattern(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"', "\n": ""}
_NAME = pattern(r"[A-Za-z][A-Za-z0-9-]*")
_REMOTE = pattern(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_URL = pattern(r"(?:(?:https|ssh|file)://[!-~]+|[\w.-]+@[\w.-]+:[!-~]+|(?:\.{0,2}/)[!-~]+)\Z")
CHANGED_TOO = "the user changed it too"
UNSAFE_URL = "only addresses with ssh and https, and paths, can cross"
OTHER = "only new remotes, upstream branches, submodules, user.name and user.email can cross"
MAX_VALUES, MAX_VALUE_CHARACTERS = 20, 2000  # of one setting; git writes each with a process
_REBASE = ("true", "false", "merges", "interactive")


def parse(text: str) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """Return the settings of a configuration. Those in an unusual form are left out: they cannot cross."""
    found: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for written, piece in _written(text):
        setting = _KEY.match(piece.strip()) if written is not None else None
        value = "true" if setting is not None and setting[2] is None else _unquoted(setting[2]) if setting else None
        if written is not None and value is not None:
            key = (written[0], _ESCAPED.sub(r"\1", written[1]), written[2])
            found[key] = (*found.get(key, ()), value)
    return found


def _unquoted(raw: str) -> str | None:
    """Return a value as git reads it, or None if git would not read it."""
    found, kept, is_quoted = "", 0, False
    letters = iter(raw.replace("\r\n", "\n"))
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, "")
            if escaped not in _ESCAPES:
                return None
            found += _ESCAPES[escaped]
            kept = len(found)
        elif letter == '"':
            is_quoted = not is_quoted
        elif letter in "#;" and not is_quoted:
            break
        else:
            found += letter
            kept = len(found) if is_quoted or not letter.isspace() else kept
    return None if is_quoted else found[:kept]


def merged(old: str, new: str, private: str) -> str:
    """Return the configuration for commands, after the user's has changed from `old` to `new`.

    It is the user's, with the settings that commands have changed and the user has not. Their values may have any form.
    """
    before, after, mine = (_by_key(_written(text)) for text in (old, new, private))
    own = {key for key in {*before, *mine} if mine.get(key) != before.get(key) and after.get(key) == before.get(key)}
    pieces = [text for key, text in _written(new) if key not in own]
    for key in sorted(own & mine.keys()):
        section, subsection, _ = key
        quoted = f' "{subsection}"' if subsection else ""
        pieces += [f"\n[{section}{quoted}]\n", *(f"\t{text}\n" for text in mine[key])]
    return "".join(pieces)


def _written(text: str) -> list[tuple[Key | None, str]]:
    """Return the pieces of a configuration, each with its key. Those without one are not settings, or in an unusual form."""
    found: list[tuple[Key | None, str]] = []
    section = subsection = pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if line.rstrip("\r\n").endswith("\\"):
            # The value continues in the next line.
            continue
        piece, pending = pending, ""
        bare, key = piece.strip(), None
        if head := _HEAD.match(bare):
            section, subsection = head[1].lower(), head[2] or ""
        elif bare.startswith("["):
            section = ""
        elif section and (name := _NAME.match(bare)):
            key = (section, subsection, name[0].lower())
        found.append((key, piece))
    return [*found, (None, pending)]


def _by_key(pieces: list[tuple[Key | None, str]]) -> dict[Key, tuple[str, ...]]:
    found: dict[Key, tuple[str, ...]] = {}
    for key, piece in pieces:
        if key is not None:
            found[key] = (*found.get(key, ()), piece.strip())
    return found


@frozen
class Change(Record):
    """A setting that commands changed: its new values, none if it is removed, and why it stays in the sandbox, or ""."""

    key: tuple[str, str, str]
    values: tuple[str, ...]
    why: str = ""


def changes(
    base: Settings, user: Settings, private: Settings, refs: Collection[str] = (), deleted: Collection[str] = ()
) -> list[Change]:
    """Return the settings that commands changed, each with its values. `refs` are those that the user had before.

    A command has deleted the refs in `deleted`, and may have made them again.
    """
    result: list[Change] = []
    for key in sorted({*base, *private}):
        old, new = base.get(key, ()), private.get(key, ())
        if old == new or user.get(key, ()) == new or key[2] == UNCONFIRMED:
            continue
        branch = f"refs/heads/{key[1]}"
        if user.get(key, ()) != old:
            why = CHANGED_TOO
        elif len(new) > MAX_VALUES or any(len(value) > MAX_VALUE_CHARACTERS for value in new):
            why = "it is too long"
        elif key[0] == "branch" and branch in deleted and new:
            why = "a command deleted this branch of the user's and made it again"
        elif key == ("branch", key[1], "remote") and branch in refs and branch not in deleted and old:
            why = "git push would send a branch of the user's elsewhere"
        else:
            why = _why_not(key, new, user, private, refs)
        result.append(Change(key, new, why))
    return result


def unconfirmed(user: Settings) -> set[str]:
    """Return the remotes that a command added and the user has not confirmed. A remote with another address is the user's."""
    return {
        key[1] for key, values in user.items()
        if key[0] == "remote" and key[2] == UNCONFIRMED and values == user.get(("remote", key[1], "url"))
    }  # fmt: skip


def name_of(key: Key) -> str:
    """Return a key as `git config` takes it."""
    section, subsection, name = key
    return f"{section}.{subsection}.{name}" if subsection else f"{section}.{name}"


def listed(output: bytes) -> set[tuple[str, tuple[str, str, str]]]:
    """Return scope and key of each setting in the output of `git config --list --show-scope -z`."""
    found = set()
    fields = output.decode("utf-8", "surrogateescape").split("\0")
    for scope, setting in zip(fields[::2], fields[1::2], strict=False):
        section, _, rest = setting.partition("\n")[0].partition(".")
        subsection, _, name = rest.rpartition(".")
        found.add((scope, (section, subsection, name)))
    return found


def _why_not(
    key: tuple[str, str, str], values: tuple[str, ...], user: Settings, private: Settings, refs: Collection[str]
) -> str:
    """Return why a command's setting must not cross, or ""."""
    section, subsection, name = key
    if not all(map(str.isprintable, values)):
        return "it has characters that do not print"
    if section == "user" and not subsection and name in ("name", "email"):
        if any(set(value) & {*"$`"} for value in values):
            # Some prompts show it.
            return "a shell could run a part of it"
        return "" if len(values) <= 1 and not any(set(value) & {*"<>"} for value in values) else "it is not a name"
    if name in ("pushurl", "pushremote", "pushdefault", "insteadof", "pushinsteadof"):
        return "it would send pushes elsewhere"
    if section == "branch":
        return _why_not_branch(key, values, user, private, refs)
    if section == "remote" and _REMOTE.match(subsection):
        return _why_not_remote(key, values, user, private)
    if section == "submodule" and name in ("url", "active") and subsection:
        if not values or ("submodule", subsection, name) in user:
            return "the user has it already"
        is_plain = is_safe_path(subsection.encode("utf-8", "surrogateescape")) and not subsection.startswith("-")
        if not subsection.isprintable():
            return "its name has characters that do not print"
        is_known = is_safe_url(values[-1]) if name == "url" else values[-1] in ("true", "false")
        return "" if is_plain and is_known and len(values) == 1 else UNSAFE_URL
    return OTHER


def _why_not_branch(
    key: tuple[str, str, str], values: tuple[str, ...], user: Settings, private: Settings, refs: Collection[str]
) -> str:
    _, branch, name = key
    is_users = f"refs/heads/{branch}" in refs
    if why_not_ref(f"refs/heads/{branch}", ()) or "." in branch.replace("..", ""):
        return "the branch has an unusual name"
    if name == "remote":
        if not all(value == "." or _is_known_remote(value, user, private) for value in values):
            return "there is no such remote"
        if is_users and not all(
            ("remote", value, "url") in user and value not in unconfirmed(user) for value in values
        ):
            return "a branch of the user's follows only remotes that the user has confirmed"
        return ""
    if name == "merge":
        if not all(value.startswith("refs/heads/") and not why_not_ref(value, ()) for value in values):
            return "it is not a branch"
        is_own = not is_users or values in ((), (f"refs/heads/{branch}",))
        return "" if is_own else "git pull would merge another branch into a branch of the user's"
    return "" if name == "description" or (name == "rebase" and all(value in _REBASE for value in values)) else OTHER


def _why_not_remote(key: tuple[str, str, str], values: tuple[str, ...], user: Settings, private: Settings) -> str:
    _, remote, name = key
    if name not in ("url", "fetch"):
        return OTHER
    is_new = not any(known[:2] == ("remote", remote) for known in user)
    if remote not in unconfirmed(user) and (not values or not is_new):
        return "it is a remote of the user's"
    url = private.get(("remote", remote, "url"), ())
    if values and (len(url) > 1 or not all(map(is_safe_url, url))):
        return UNSAFE_URL
    if name == "fetch" and not all(_is_usual_fetch(value, remote) for value in values):
        return f"it fetches to other places than refs/remotes/{remote}"
    return ""


def is_safe_url(url: str) -> bool:
    """Say whether git reaches an address without starting a program that the address names."""
    return bool(_URL.match(url)) and "::" not in url and "://-" not in url and "@-" not in url


def _is_usual_fetch(value: str, remote: str) -> bool:
    source, _, target = value.removeprefix("+").partition(":")
    if not source.startswith("refs/heads/") or not target.startswith(f"refs/remotes/{remote}/"):
        return False
    # Git ends with an error, also for other remotes, if it cannot read one.
    names = (source.replace("*", "x", 1), target.replace("*", "x", 1))
    return source.count("*") == target.count("*") and not any(why_not_ref(name, ()) for name in names)


def _is_known_remote(name: str, user: Settings, private: Settings) -> bool:
    url = private.get(("remote", name, "url"), ())
    # Git takes the name of a remote that it does not know for an address.
    return ("remote", name, "url") in user or bool(_REMOTE.match(name) and len(url) == 1 and is_safe_url(url[0]))
