"""A hook put into a host's settings, and taken out again: planned as text first, written only if the file is still the same.

What stood there before is kept in the owner's state directory; undoing gives back those bytes, or takes out our entry alone.
"""

from __future__ import annotations

import json
import os
import stat
from hashlib import sha256

from corral._lib.records import Record, frozen
from corral.guard.path_zones import inside
from corral.integrations.hooks import json_edit
from corral.integrations.hooks.hook_command import command, package
from corral.integrations.hooks.json_edit import SettingsError
from corral.integrations.hooks.registry import (
    PLUGIN_LINE,
    PROJECT,
    USER,
    Host,
    command_words,
    hooks_in,
    runs_corral,
    settings_path,
)
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_BYTES = 8 << 20  # against a settings file that is none


@frozen
class Change(Record):
    """What a file is to become; None is no file."""

    host: Host
    level: str
    path: str
    before: bytes | None
    after: bytes | None

    @property
    def is_needed(self) -> bool:
        """Whether anything would change."""
        return self.before != self.after


def plan_install(host: Host, level: str, root: str, environ: Mapping[str, str]) -> Change:
    """Return what the host's file becomes with our entry, at its end or where an older one stands."""
    path = _place(host, level, root, environ)
    before = read_settings(path)
    words = command(host.name, environ)
    if host.entries is None:
        return Change(host, level, path, before, _plugin(words, before, path))
    text = json_edit.decode(before or b"", path)
    if not text.strip("\ufeff \t\r\n"):
        text = "{}\n"
    for key, value in host.skeleton.items():
        node = _parsed(text, path, host)
        text = text if node.at(key) else json_edit.with_child(text, node, key, value)
    wanted = host.entries(words)
    for event in _events(text, path, host):
        if event not in wanted:
            text = _without(text, path, host, event)
    for event, entry in wanted.items():
        text = _with(text, path, host, event, entry)
    return Change(host, level, path, before, text.encode())


def plan_uninstall(host: Host, level: str, root: str, environ: Mapping[str, str]) -> Change:
    """Return what the host's file becomes without us: what stood there before, or all but our entry."""
    path = _place(host, level, root, environ)
    current = read_settings(path)
    if current is None:
        return Change(host, level, path, None, None)
    kept = _recorded(path, environ)
    if kept is not None and kept[1] == sha256(current).hexdigest():
        return Change(host, level, path, current, kept[0])
    return Change(host, level, path, current, _without_ours(host, path, current, kept))


def apply(change: Change, environ: Mapping[str, str], root: str) -> str:
    """Write a change, if the file is still what it was; return where the bytes before lie, if there were any."""
    if read_settings(change.path) != change.before:
        raise SettingsError(f"{change.path} changed in the meantime, and was left alone; run it again")
    kept = _record(change, environ, root) if change.after is not None and _is_ours(change) else ""
    if change.after is None:
        os.unlink(change.path)
        _remove_empty(_made_for(change, environ))
    else:
        _write(change.path, change.after)
    if not _is_ours(change):
        _forget(change.path, environ)
    return kept


def installed_hooks(host: Host, path: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the event, the entry and the hook of every entry of ours in a file."""
    data = read_settings(path)
    if data is None:
        return []
    text = json_edit.decode(data, path)
    if host.entries is None:
        words = _plugin_words(text)
        return [("tool.execute.before", {}, {"command": words[0], "args": words[1:]})] if words else []
    if not text.strip("\ufeff \t\r\n"):
        return []
    hooks = _parsed(text, path, host).value.get("hooks")
    return [
        (event, entry, hook)
        for event, entries in (hooks.items() if isinstance(hooks, dict) else ())
        for entry in (entries if isinstance(entries, list) else ())
        for hook in hooks_in(entry)
        if runs_corral(hook)
    ]


def _place(host: Host, level: str, root: str, environ: Mapping[str, str]) -> str:
    """Return the real file to write; a link is followed for the owner's own file and never in a project."""
    path = settings_path(host, level, root, environ)
    real = os.path.realpath(path)
    if level == PROJECT and real != path:
        raise SettingsError(f"{path} is a link, or lies behind one, to {real}; in a project corral writes no such file")
    if level == USER and root and inside(real, root):
        raise SettingsError(
            f"{real} lies inside the project {root}, whose commands could write it; install with --project"
        )
    return real


def read_settings(path: str) -> bytes | None:
    """Return what a file holds; None where there is none."""
    try:
        # A project may have put a pipe there that nobody writes to.
        data, _ = user_dirs.read_regular_file(path, MAX_BYTES, follows=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{path} is longer than {MAX_BYTES} bytes, which no settings file is")
    return data


def _parsed(text: str, path: str, host: Host) -> json_edit.Node:
    return json_edit.parse(text, path, comments=host.has_comments)


def _events(text: str, path: str, host: Host) -> list[str]:
    hooks = _parsed(text, path, host).at("hooks")
    if hooks is None:
        return []
    json_edit.expect(hooks, dict, text, path)
    return [str(child.key) for child in hooks.children if isinstance(child.node.value, list)]


def _list_of(text: str, path: str, host: Host, event: str) -> json_edit.Node | None:
    hooks = _parsed(text, path, host).at("hooks")
    found = json_edit.expect(hooks, dict, text, path).at(event) if hooks else None
    return json_edit.expect(found, list, text, path) if found else None


def _with(text: str, path: str, host: Host, event: str, entry: dict[str, Any]) -> str:
    """Put an entry in: where one that is wholly ours stands, else at the end. Every other of ours goes."""
    found = _list_of(text, path, host, event)
    own = [child.node for child in found.children if all(map(runs_corral, hooks_in(child.node.value)))] if found else []
    if own:
        if own[0].value != entry:
            text = json_edit.with_value(text, own[0], entry)
        return _without(text, path, host, event, but=entry)
    text = _without(text, path, host, event, prune=False)
    root = _parsed(text, path, host)
    hooks = root.at("hooks")
    if hooks is None:
        return json_edit.with_child(text, root, "hooks", {event: [entry]})
    entries = hooks.at(event)
    if entries is None:
        return json_edit.with_child(text, hooks, event, [entry])
    return json_edit.with_child(text, entries, None, entry)


def _without(text: str, path: str, host: Host, event: str, *, but: object = None, prune: bool = True) -> str:
    """Take every hook of ours out of one event's list, but one entry; what is empty then goes as well."""
    while True:
        found = _list_of(text, path, host, event)
        if found is None:
            return text
        cut = _cut(text, found, but)
        if cut is None:
            return text
        text = cut
        if prune:
            text = _pruned(text, path, host, event)


def _cut(text: str, entries: json_edit.Node, but: object) -> str | None:
    spared = but is None
    for at, child in enumerate(entries.children):
        if not spared and child.node.value == but:
            spared = True
            continue
        hooks = hooks_in(child.node.value)
        ours = [index for index, hook in enumerate(hooks) if runs_corral(hook)]
        if ours and len(ours) == len(hooks):
            return json_edit.without_child(text, entries, at)
        group = child.node.at("hooks")
        if ours and group is not None:
            return json_edit.without_child(text, group, ours[0])
    return None


def _pruned(text: str, path: str, host: Host, event: str) -> str:
    root = _parsed(text, path, host)
    hooks = root.at("hooks")
    entries = hooks.at(event) if hooks else None
    if hooks is None or entries is None or entries.children:
        return text
    if len(hooks.children) > 1:
        return json_edit.without_child(text, hooks, [child.key for child in hooks.children].index(event))
    return json_edit.without_child(text, root, [child.key for child in root.children].index("hooks"))


def _removed(host: Host, path: str, data: bytes) -> bytes | None:
    text = json_edit.decode(data, path)
    if host.entries is None:
        return None if _plugin_words(text) else data
    if not text.strip("\ufeff \t\r\n"):
        return data
    for event in _events(text, path, host):
        text = _without(text, path, host, event)
    return text.encode()


def _without_ours(host: Host, path: str, current: bytes, kept: tuple[bytes | None, str] | None) -> bytes | None:
    """Return a file that changed since without our entry; None where it was not there before us, and nothing is left in it."""
    left = _removed(host, path, current)
    if kept is None or kept[0] is not None or host.entries is None or left is None:
        return left
    return None if _parsed(json_edit.decode(left, path), path, host).value == host.skeleton else left


def _plugin(words: list[str], before: bytes | None, path: str) -> bytes:
    if before is not None and before.strip() and not _plugin_words(json_edit.decode(before, path)):
        raise SettingsError(f"{path}:1:1: this plugin is not corral's; move it away and run it again")
    return plugin_text(words)


def plugin_text(words: list[str]) -> bytes:
    """Return the plugin that runs these words."""
    with open(f"{package()}/integrations/hooks/hosts/opencode.js", encoding="utf-8") as file:
        return file.read().replace(f"{PLUGIN_LINE}[]", PLUGIN_LINE + json.dumps(words, ensure_ascii=False), 1).encode()


def _plugin_words(text: str) -> list[str]:
    for line in text.splitlines():
        if line.startswith(PLUGIN_LINE):
            try:
                words = json.loads(line.removeprefix(PLUGIN_LINE))
            except ValueError:
                return []
            hook = {"command": words[0], "args": words[1:]} if isinstance(words, list) and words else {}
            return command_words(hook) if runs_corral(hook) else []
    return []


def _is_ours(change: Change) -> bool:
    """Say whether our entry stands in what a change leaves."""
    if change.after is None:
        return False
    return _removed(change.host, change.path, change.after) != change.after


def _write(path: str, data: bytes) -> None:
    """Replace a file in one step, with its mode and owner."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    try:
        old: os.stat_result | None = os.stat(path)
    except FileNotFoundError:
        old = None
    partial = f"{path}.corral-{os.urandom(4).hex()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            if old is not None:
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def _missing_above(path: str) -> list[str]:
    """Return the directories that have to be made for a file, the innermost first."""
    missing = []
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _made_for(change: Change, environ: Mapping[str, str]) -> list[str]:
    """Return the directories that install made for a file, the innermost first."""
    facts, _ = _files(change.path, environ)
    try:
        with open(facts, encoding="utf-8") as file:
            made = json.load(file)["made"]
        return [folder for folder in made if inside(change.path, folder)]
    except (OSError, ValueError, KeyError, TypeError):
        # Older versions did not record directories. A directory named `hooks` or `plugins` was created by corral.
        folder = os.path.dirname(change.path)
        is_for_hooks = "/" in change.host.file and os.path.basename(folder) in ("plugins", "hooks")
        return [folder] if is_for_hooks else []


def _remove_empty(folders: list[str]) -> None:
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            # The user's or the host's files are in it, and so in all above it.
            return


def _files(path: str, environ: Mapping[str, str]) -> tuple[str, str]:
    base = f"{user_dirs.user_directory('state', environ)}/install"
    name = sha256(os.fsencode(path)).hexdigest()[:16]
    return f"{base}/{name}.json", f"{base}/{name}.before"


def _recorded(path: str, environ: Mapping[str, str]) -> tuple[bytes | None, str] | None:
    """Return what stood in a file before us and the digest of what we wrote; None where nothing is known."""
    facts, before = _files(path, environ)
    try:
        with open(facts, encoding="utf-8") as file:
            known = json.load(file)
        if known["path"] != path:
            return None
        if not known["existed"]:
            return None, str(known["after"])
        with open(before, "rb") as file:
            return file.read(), str(known["after"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _record(change: Change, environ: Mapping[str, str], root: str) -> str:
    """Keep what stood there before corral; where an older entry is replaced, that is the file without it."""
    user_dirs.private_directory("state", environ, root or "/nonexistent")
    facts, kept = _files(change.path, environ)
    os.makedirs(os.path.dirname(facts), 0o700, exist_ok=True)
    known = _recorded(change.path, environ)
    before = change.before
    if known is not None and before is not None and known[1] == sha256(before).hexdigest():
        before = known[0]
    elif before is not None:
        before = _without_ours(change.host, change.path, before, known)
    if before is not None:
        _write(kept, before)
    after = sha256(change.after or b"").hexdigest()
    made = [*_missing_above(change.path), *(_made_for(change, environ) if known is not None else ())]
    data = {"path": change.path, "host": change.host.name, "existed": before is not None, "after": after, "made": made}
    _write(facts, (json.dumps(data) + "\n").encode())
    return kept if before is not None else ""


def _forget(path: str, environ: Mapping[str, str]) -> None:
    for file in _files(path, environ):
        try:
            os.unlink(file)
        except OSError:
            # There was none.
            continue
