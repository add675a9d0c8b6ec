"""Makes the git files of the commands' home directory from the user's: configuration, ignored files, attributes, message template."""

from __future__ import annotations

import os
from _blake2 import blake2b

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem.scratch import OWN, block
from corral.git.configuration.carried_settings import FILES, carried, is_true, split_key
from corral.git.configuration.user_settings import expanded, read_settings
from corral.guard.path_zones import inside
from corral.model.errors import PolicyError
from corral.policy.path_grants import home_directory
from corral.policy.store import Store
from corral.policy.user_dirs import read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.git.configuration.carried_settings import Carried, Setting
    from corral.policy.config import SandboxConfig

BROKER_CONFIG = "/run/corral/gitconfig"  # the names by which git finds the broker's transports, and its signer
MAX_FILE_BYTES = 1 << 18
SESSION_SECONDS = 8 * 3600.0  # an agent's calls are single processes, which share no session
_SIGNER = f"{OWN}signer"
# Git refuses repositories of other users because it would run their hooks. The sandbox confines those. It ignores a missing file to
# include: there is one only in a sandbox with a broker, whose settings come last.
_LAST = f"[safe]\n\tdirectory = *\n[include]\n\tpath = {BROKER_CONFIG}\n"
# Git shows what a signer of SSH says, and not always what gpg says. Verifying needs no key of the user's.
_SCRIPT = """#!/bin/sh
case "$1 $2" in "-Y sign") ;; *) exec ssh-keygen "$@" ;; esac
echo "corral: the user signs commits, and no key signs for commands. Use --no-gpg-sign, or ask the user to name a key (signing_keys)." >&2
exit 1
"""
_NO_KEY = "key::ssh-ed25519 none"  # git wants one before it starts the signer


@frozen
class HomeFiles(Record):
    """The files by name, and the user's settings that are not in them, each with the reason."""

    files: Mapping[str, bytes]
    left_out: tuple[str, ...] = ()


def home_files(config: SandboxConfig, environ: Mapping[str, str], programs: Iterable[str], home: str) -> HomeFiles:
    """Return the git files for the commands' home. `programs` are the directories of PATH that no command can write."""
    programs = tuple(programs)
    # A command may have exported a variable that names other files.
    environ = {name: value for name, value in environ.items() if name not in config.output.exported}
    settings, error = read_settings(config.project_root, environ, programs)
    has_lfs = any(os.access(f"{folder}/git-lfs", os.X_OK) for folder in programs)
    found = carried(settings, has_lfs=has_lfs)
    contents, unread = _contents(found, config, environ)
    lines = [
        *found.settings,
        *((key, f"~/{OWN}{FILES[key]}") for key in contents),
        *_signing(settings, config, f"{home}/{_SIGNER}"),
    ]
    # Not a file to include: `git config --global KEY` reads no included files.
    files = {".gitconfig": block(_text(lines) + _LAST.encode())}
    files |= {f"{OWN}{FILES[key]}": data for key, data in contents.items()}
    files |= {_SIGNER: _SCRIPT.encode()} if ("gpg.ssh.program", f"{home}/{_SIGNER}") in lines else {}
    return HomeFiles(files, (*([f"all ({error})"] if error else []), *found.left_out, *unread))


def is_first_report(left_out: tuple[str, ...], root: str, environ: Mapping[str, str]) -> bool:
    """Say whether settings of a project that are left out were not reported in the last hours. From then on they were."""
    digest = blake2b(repr((root, left_out)).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    try:
        store = Store("cache", "git-reports", environ, root)
        store.create()
        store.remove_expired(SESSION_SECONDS)
        if store.read(digest, 0) is not None:
            return False
        store.write(digest, b"")
    except (OSError, PolicyError):
        # Each sandbox reports it then.
        return True
    return True


def _contents(
    found: Carried, config: SandboxConfig, environ: Mapping[str, str]
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the contents of the files that settings name, by key, and the settings whose file cannot be used."""
    home = home_directory(environ)
    folder = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    usual = {"core.excludesfile": f"{folder}/git/ignore", "core.attributesfile": f"{folder}/git/attributes"}
    chosen = dict(found.settings)
    named = {key: (path, "") for key, path in usual.items() if key not in chosen}
    named |= {key: (expanded(path, origin, home), origin) for key, path, origin in found.files}
    containment = config.containment
    writable = [config.project_root, *map(os.path.realpath, (*containment.write, *containment.settings))]
    contents: dict[str, bytes] = {}
    left_out: list[str] = []
    for key, (path, origin) in named.items():
        # By a name or a link that a command can write, the host would read any file of the user's for it.
        if any(_is_in(each, writable) for each in (path, origin) if each):
            left_out += [key] if os.path.lexists(path) else []
            continue
        try:
            data, _ = read_regular_file(path, MAX_FILE_BYTES, follows=True)
        except FileNotFoundError:
            continue
        except OSError:
            left_out.append(key)
            continue
        if len(data) > MAX_FILE_BYTES:
            left_out.append(key)
        else:
            contents[key] = data
    return contents, tuple(left_out)


def _is_in(path: str, writable: list[str]) -> bool:
    links, real = resolve_links(path)
    return any(inside(each, place) for each in (os.path.normpath(path), *links, real) for place in writable)


def _signing(settings: Iterable[Setting], config: SandboxConfig, signer: str) -> list[tuple[str, str | None]]:
    """Return settings that let git's own signing fail with a reason. Those of the broker, which signs, come after them."""
    last = {key: value for _, _, key, value in settings}
    if not {"commit.gpgsign", "tag.gpgsign", "user.signingkey"} & last.keys():
        return []
    refusing = {"gpg.format": "ssh", "gpg.ssh.program": signer, "user.signingkey": _NO_KEY}
    found: list[tuple[str, str | None]] = [*refusing.items()]
    if config.containment.unsigned_commits == "refuse":
        found += [(key, last[key]) for key in ("commit.gpgsign", "tag.gpgsign") if key in last and is_true(last[key])]
    return found


def _text(settings: Iterable[tuple[str, str | None]]) -> bytes:
    lines: list[str] = []
    for key, value in settings:
        section, subsection, name = split_key(key)
        head = subsection.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'[{section} "{head}"]' if subsection else f"[{section}]")
        lines.append(f"\t{name}" if value is None else f'\t{name} = "{_escaped(value)}"')
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _escaped(value: str) -> str:
    for letter, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
        value = value.replace(letter, escape)
    return value
