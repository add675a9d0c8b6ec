"""Writes the user's own policy file: sets a key, or adds [[grant]] entries. Everything else in the file stays as it is."""

from __future__ import annotations

import os

from corral.audit.audit_log import Log
from corral.model.errors import PolicyError
from corral.policy import user_dirs
from corral.policy.loader import user_policy_path
from corral.policy.parser import parse
from corral.policy.render_policy import toml_value
from corral.policy.settings import MAX_FILE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.policy.answers.family_grants import PolicyGrant


def user_policy_text(environ: Mapping[str, str]) -> bytes:
    """Return the content of the user's own policy file; nothing if it does not exist."""
    path = user_policy_path(environ)
    try:
        return user_dirs.read_regular_file(path, MAX_FILE_BYTES, follows=True)[0]
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror}") from None


def set_user_key(key: str, value: object, environ: Mapping[str, str], *, comment: str = "") -> str:
    """Set a key of the user's own policy file, and change nothing else in it. Return its path."""
    path = user_policy_path(environ)
    before = user_policy_text(environ)
    text = before.decode()
    line = f"{key} = {toml_value(value)}"
    known = [number for name, _, number, _ in parse(before, path)["settings"] if name == key]
    if known:
        lines = text.split("\n")
        # Only the line that the parser names: a text of several lines may contain one that looks the same.
        old = lines[known[0] - 1]
        lines[known[0] - 1] = (
            f"{line}{old[old.index('#') :].rjust(len(old) - old.index('#') + 2) if '#' in old else ''}"
        )
        after = "\n".join(lines)
    else:
        after = f"{line}  # {comment}\n{text}" if comment else f"{line}\n{text}"
    refusal = PolicyError(f"{path} could not be changed; write this line into it yourself: {line}")
    try:
        wanted = [(name, value if name == key else old) for name, old, _, _ in parse(before, path)["settings"]]
        wanted = wanted if known else [(key, value), *wanted]
        if [(name, new) for name, new, _, _ in parse(after.encode(), path)["settings"]] != wanted:
            raise refusal
    except PolicyError:
        raise refusal from None
    _write(path, after, f"the user set {line}", environ)
    return path


def with_grants_added(grants: Iterable[PolicyGrant], environ: Mapping[str, str]) -> str:
    """Return the text of the user's policy file with these entries at its end. Raise PolicyError if it would be wrong."""
    path = user_policy_path(environ)
    before = user_policy_text(environ)
    text = before.decode()
    blocks = [_block(grant) for grant in grants]
    after = "\n".join([f"{text.rstrip()}\n" if text.strip() else "", *blocks]).lstrip("\n")
    old, new = (parse(data, path)["grants"] for data in (before, after.encode()))
    if [_meaning(grant) for grant in new[: len(old)]] != [_meaning(grant) for grant in old]:
        raise PolicyError(f"{path} could not be extended; write these lines into it yourself:\n{''.join(blocks)}")
    return after


def write_grants(after: str, reason: str, environ: Mapping[str, str]) -> str:
    """Write what `with_grants_added` has returned. Return the path of the file."""
    path = user_policy_path(environ)
    _write(path, after, reason, environ)
    return path


def _meaning(grant: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in grant.items() if name not in ("line", "column")}


def _block(grant: PolicyGrant) -> str:
    lines = ["[[grant]]", f"command = {toml_value(grant.family)}"]
    lists: dict[str, list[object]] = {}
    for kind, target in grant.openings:
        if kind == "transport":
            verb, _, rest = target.partition(" ")
            lists.setdefault(verb, []).append(rest)
        elif kind == "registry":
            lists.setdefault("network", []).append(f"@{target}")
        elif kind in ("local", "publish"):
            lists.setdefault(kind, []).append(int(target))
        else:
            lists.setdefault(kind, []).append(target)
    lines += [f"{name} = {toml_value(targets)}" for name, targets in lists.items()]
    if grant.project:
        lines.append(f"project = {toml_value(grant.project)}")
    if grant.always:
        lines.append("always = true")
    return "\n".join(lines) + "\n"


def _write(path: str, text: str, reason: str, environ: Mapping[str, str]) -> None:
    # Logged first: if the log cannot be written, nothing is loosened.
    Log(event="trust").note({"files": [path], "decision": "allow", "reason": reason})
    user_dirs.private_directory("config", environ)
    _replace(os.path.realpath(path), text.encode())


def _replace(path: str, data: bytes) -> None:
    partial = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(partial, flags, 0o644)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        raise PolicyError(f"{path} cannot be written: {error.strerror}") from None
