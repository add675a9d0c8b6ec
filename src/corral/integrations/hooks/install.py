"""Adds corral's hook to a host's settings, and removes it. Plans the change as text first; writes it only if the file is unchanged.

The previous contents are kept in the user's state directory. Uninstall restores those bytes, or removes only our entry if the
file changed since.
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
    PROJECT,
    USER,
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

    from corral.integrations.hooks.hosts import Host

MAX_BYTES = 8 << 20  # no settings file is longer
_PLUGIN_LINE = "const COMMAND = "


@frozen
class Change(Record):
    """A planned change of a settings file. None means that the file does not exist."""

    host: Host
    level: str
    path: str
    before: bytes | None
    after: bytes | None

    @property
    def is_needed(self) -> bool:
        """Say whether the file would change."""
        return self.before != self.after


def plan_install(host: Host, level: str, root: str, environ: Mapping[str, str]) -> Change:
    """Plan the file with our entry: at the end, or in place of an older entry of ours."""
    path = _real_path(host, level, root, environ)
    before = read_settings(path)
    words = command(host.name, environ)
    if host.entries is None:
        if before is not None and before.strip() and not _plugin_words(json_edit.decode(before, path)):
            raise SettingsError(f"{path}:1:1: this plugin is not corral's; move it away and try again")
        return Change(host, level, path, before, plugin_text(host, words))
    text = json_edit.decode(before or b"", path)
    if _is_blank(text):
        text = "{}\n"
    for key, value in host.skeleton.items():
        node = _parse(text, path, host)
        text = text if node.at(key) else json_edit.with_child(text, node, key, value)
    wanted = host.entries(words)
    for event in _events(text, path, host):
        if event not in wanted:
            text = _remove_hooks(text, path, host, event)
    for event, entry in wanted.items():
        text = _put_entry(text, path, host, event, entry)
    return Change(host, level, path, before, text.encode())


def plan_uninstall(host: Host, level: str, root: str, environ: Mapping[str, str]) -> Change:
    """Plan the file without us: its previous contents, or the present ones without our entry."""
    path = _real_path(host, level, root, environ)
    current = read_settings(path)
    if current is None:
        return Change(host, level, path, None, None)
    backup = _read_backup(path, environ)
    if backup is not None and backup[1] == sha256(current).hexdigest():
        return Change(host, level, path, current, backup[0])
    return Change(host, level, path, current, _without_ours(host, path, current, backup))


def apply(change: Change, environ: Mapping[str, str], root: str) -> str:
    """Write a change if the file is still the same. Return the path of the backup, or an empty string if there was no file."""
    if read_settings(change.path) != change.before:
        raise SettingsError(f"{change.path} changed in the meantime, so corral did not write it; try again")
    is_install = change.after is not None and _remove_ours(change.host, change.path, change.after) != change.after
    backup = _write_backup(change, environ, root) if is_install else ""
    if change.after is None:
        os.unlink(change.path)
        _remove_empty(_directories_made(change, environ))
    else:
        _write(change.path, change.after)
    if not is_install:
        for file in _backup_files(change.path, environ):
            if os.path.lexists(file):
                os.unlink(file)
    return backup


def installed_hooks(host: Host, path: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return (event, entry, hook) for every hook of ours in a settings file."""
    data = read_settings(path)
    if data is None:
        return []
    text = json_edit.decode(data, path)
    if host.entries is None:
        words = _plugin_words(text)
        return [(host.event, {}, {"command": words[0], "args": words[1:]})] if words else []
    if _is_blank(text):
        return []
    hooks = _parse(text, path, host).value.get("hooks")
    return [
        (event, entry, hook)
        for event, entries in (hooks.items() if isinstance(hooks, dict) else ())
        for entry in (entries if isinstance(entries, list) else ())
        for hook in hooks_in(entry)
        if runs_corral(hook)
    ]


def _real_path(host: Host, level: str, root: str, environ: Mapping[str, str]) -> str:
    """Return the real settings file. A link is followed for the user's own file, and refused in a project."""
    path = settings_path(host, level, root, environ)
    real = os.path.realpath(path)
    if level == PROJECT and real != path:
        raise SettingsError(
            f"{path} is a symbolic link, or below one, to {real}; corral does not follow links in a project"
        )
    if level == USER and root and inside(real, root):
        raise SettingsError(
            f"{real} is inside the project {root}, whose commands could write it; install with --project instead"
        )
    return real


def read_settings(path: str) -> bytes | None:
    """Return a file's contents, or None if it does not exist."""
    try:
        # read_regular_file() does not block: a project may contain a named pipe of this name.
        data, _ = user_dirs.read_regular_file(path, MAX_BYTES, follows=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{path} is longer than {MAX_BYTES} bytes, too long for a settings file")
    return data


def _is_blank(text: str) -> bool:
    return not text.strip("\ufeff \t\r\n")


def _parse(text: str, path: str, host: Host) -> json_edit.Node:
    return json_edit.parse(text, path, comments=host.has_comments)


def _events(text: str, path: str, host: Host) -> list[str]:
    hooks = _parse(text, path, host).at("hooks")
    if hooks is None:
        return []
    json_edit.expect(hooks, dict, text, path)
    return [str(child.key) for child in hooks.children if isinstance(child.value, list)]


def _entries_of(text: str, path: str, host: Host, event: str) -> json_edit.Node | None:
    hooks = _parse(text, path, host).at("hooks")
    found = json_edit.expect(hooks, dict, text, path).at(event) if hooks else None
    return json_edit.expect(found, list, text, path) if found else None


def _put_entry(text: str, path: str, host: Host, event: str, entry: dict[str, Any]) -> str:
    """Replace an entry that contains only our hooks, or add ours at the end; remove our other hooks."""
    found = _entries_of(text, path, host, event)
    own = [child for child in found.children if all(map(runs_corral, hooks_in(child.value)))] if found else []
    if own:
        if own[0].value != entry:
            text = json_edit.with_value(text, own[0], entry)
        return _remove_hooks(text, path, host, event, keep=entry)
    text = _remove_hooks(text, path, host, event, prune=False)
    root = _parse(text, path, host)
    hooks = root.at("hooks")
    if hooks is None:
        return json_edit.with_child(text, root, "hooks", {event: [entry]})
    entries = hooks.at(event)
    if entries is None:
        return json_edit.with_child(text, hooks, event, [entry])
    return json_edit.with_child(text, entries, None, entry)


def _remove_hooks(text: str, path: str, host: Host, event: str, *, keep: object = None, prune: bool = True) -> str:
    """Remove every hook of ours from one event, except the first entry equal to `keep`; if `prune`, remove what becomes empty."""
    while True:
        found = _entries_of(text, path, host, event)
        shorter = _remove_one_hook(text, found, keep) if found is not None else None
        if shorter is None:
            return text
        text = _prune(shorter, path, host, event) if prune else shorter


def _remove_one_hook(text: str, entries: json_edit.Node, keep: object) -> str | None:
    is_kept = keep is None
    for at, child in enumerate(entries.children):
        if not is_kept and child.value == keep:
            is_kept = True
            continue
        hooks = hooks_in(child.value)
        ours = [index for index, hook in enumerate(hooks) if runs_corral(hook)]
        if ours and len(ours) == len(hooks):
            return json_edit.without_child(text, entries, at)
        group = child.at("hooks")
        if ours and group is not None:
            return json_edit.without_child(text, group, ours[0])
    return None


def _prune(text: str, path: str, host: Host, event: str) -> str:
    root = _parse(text, path, host)
    hooks = root.at("hooks")
    entries = hooks.at(event) if hooks else None
    if hooks is None or entries is None or entries.children:
        return text
    parent, key = (hooks, event) if len(hooks.children) > 1 else (root, "hooks")
    return json_edit.without_child(text, parent, [child.key for child in parent.children].index(key))


def _remove_ours(host: Host, path: str, data: bytes) -> bytes | None:
    """Return a file's contents without our hooks; None if the file is our plugin."""
    text = json_edit.decode(data, path)
    if host.entries is None:
        return None if _plugin_words(text) else data
    if _is_blank(text):
        return data
    for event in _events(text, path, host):
        text = _remove_hooks(text, path, host, event)
    return text.encode()


def _without_ours(host: Host, path: str, current: bytes, backup: tuple[bytes | None, str] | None) -> bytes | None:
    """Return a file's contents without our hooks; None if install created the file and nothing else is left in it."""
    left = _remove_ours(host, path, current)
    if backup is None or backup[0] is not None or host.entries is None or left is None:
        return left
    return None if _parse(json_edit.decode(left, path), path, host).value == host.skeleton else left


def plugin_text(host: Host, words: list[str]) -> bytes:
    """Return the host's plugin with our command filled in."""
    with open(f"{package()}/integrations/hooks/hosts/{host.plugin}", encoding="utf-8") as file:
        filled = _PLUGIN_LINE + json.dumps(words, ensure_ascii=False)
        return file.read().replace(f"{_PLUGIN_LINE}[]", filled, 1).encode()


def _plugin_words(text: str) -> list[str]:
    for line in text.splitlines():
        if line.startswith(_PLUGIN_LINE):
            try:
                words = json.loads(line.removeprefix(_PLUGIN_LINE))
            except ValueError:
                return []
            hook = {"command": words[0], "args": words[1:]} if isinstance(words, list) and words else {}
            return command_words(hook) if runs_corral(hook) else []
    return []


def _write(path: str, data: bytes) -> None:
    """Replace a file atomically, and keep its mode and owner."""
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


def _missing_directories(path: str) -> list[str]:
    """Return the directories that must be made for a file, innermost first."""
    missing = []
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _directories_made(change: Change, environ: Mapping[str, str]) -> list[str]:
    """Return the directories that install made for a file, innermost first."""
    facts, _ = _backup_files(change.path, environ)
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
            # It contains other files, so its parents are not empty either.
            return


def _backup_files(path: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the files that hold the facts about an installation, and the previous contents of the settings file."""
    base = f"{user_dirs.user_directory('state', environ)}/install"
    name = sha256(os.fsencode(path)).hexdigest()[:16]
    return f"{base}/{name}.json", f"{base}/{name}.before"


def _read_backup(path: str, environ: Mapping[str, str]) -> tuple[bytes | None, str] | None:
    """Return a file's previous contents and the digest of what we wrote; None if there is no backup."""
    facts, before = _backup_files(path, environ)
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


def _write_backup(change: Change, environ: Mapping[str, str], root: str) -> str:
    """Keep the file's contents from before corral. If an older entry of ours is replaced, that is the file without it."""
    user_dirs.private_directory("state", environ, root or "/nonexistent")
    facts, backup = _backup_files(change.path, environ)
    os.makedirs(os.path.dirname(facts), 0o700, exist_ok=True)
    known = _read_backup(change.path, environ)
    before = change.before
    if known is not None and before is not None and known[1] == sha256(before).hexdigest():
        before = known[0]
    elif before is not None:
        before = _without_ours(change.host, change.path, before, known)
    if before is not None:
        _write(backup, before)
    after = sha256(change.after or b"").hexdigest()
    made = [*_missing_directories(change.path), *(_directories_made(change, environ) if known is not None else ())]
    data = {"path": change.path, "host": change.host.name, "existed": before is not None, "after": after, "made": made}
    _write(facts, (json.dumps(data) + "\n").encode())
    return backup if before is not None else ""
