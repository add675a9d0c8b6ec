"""Signs commits and tags for a sandbox with keys that the user named, of SSH or gpg. The keys and the agents stay outside.

Only a git object is signed: no log-in, file or push certificate. Each use is in the audit log.
"""

from __future__ import annotations

import os
import stat

from corral._lib.lazy_regex import pattern
from corral._lib.sha256 import sha256_hex
from corral.audit.audit_log import Log
from corral.broker.commands.box import launcher
from corral.broker.programs import SYSTEM_DIRECTORIES, clean_environment, find_program, run_program
from corral.broker.streams import RefusedError
from corral.guard.git_signatures import SIGNATURE
from corral.guard.path_zones import inside
from corral.model.errors import AuditError
from corral.policy.settings import GPG_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from corral.broker.server import Request
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig

PROGRAM = "sign"
SIGNER = "bin/git-signer"  # in the broker's directory
MAX_OBJECT_BYTES = 1 << 20
_HEX = rb"(?:[0-9a-f]{40}|[0-9a-f]{64})"
_PERSON = rb"[^<>\n\0]*<[^<>\n\0]*> \d{1,12} [+-]\d{4}\n"
_COMMIT = pattern(
    rb"tree " + _HEX + rb"\n(?:parent " + _HEX + rb"\n){0,64}author " + _PERSON + rb"committer " + _PERSON
    + rb"(?:(?:encoding|mergetag) [^\n\0]*\n(?: [^\n\0]*\n)*){0,64}\n[^\0]*"
)  # fmt: skip
_TAG = pattern(rb"object " + _HEX + rb"\ntype (?:commit|tree|blob|tag)\ntag [^\n\0]+\ntagger " + _PERSON + rb"\n[^\0]*")
_KEY_ID = pattern(r"[0-9A-F]{8,64}")
_PUBLIC_KEY = pattern(r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+|sk-[\w@.-]+) [A-Za-z0-9+/=]+")
# Git calls it as ssh-keygen and as gpg. It gives ssh-keygen a file, and reads the signature from another one beside it. Everything but
# signing needs no key, so the programs inside do that.
_SCRIPT = """#!/bin/sh
case "$1 $2" in
"-Y sign") for file; do :; done; exec /run/corral/bin/sign ssh <"$file" >"$file.sig" ;;
-Y*) exec ssh-keygen "$@" ;;
"--status-fd=2 -bsau") exec /run/corral/bin/sign gpg "$3" ;;
esac
exec gpg "$@"
"""
_DISPLAY = ("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY")  # for the window in which gpg's agent asks for a passphrase


def signing_services(
    config: SandboxConfig, grants: Iterable[Grant], environ: Mapping[str, str]
) -> dict[str, SigningService]:
    """Return the service that signs, if the grants of a call name it and the user has named a key."""
    is_granted = any(grant.opening == SIGNATURE.opening for grant in grants)
    return {PROGRAM: SigningService(config, environ)} if is_granted and config.signing_keys else {}


class SigningService:
    """Signs git objects with the keys of `signing_keys`: the first one of SSH, and each of gpg."""

    def __init__(
        self, config: SandboxConfig, environ: Mapping[str, str], *, directories: Sequence[str] = SYSTEM_DIRECTORIES
    ) -> None:
        self._config = config
        keys = config.signing_keys
        self._is_gpg = keys[0].startswith(GPG_KEY)  # the format that git uses unless its configuration says otherwise
        self._ssh_key = next((key for key in keys if not key.startswith(GPG_KEY)), "")
        self._gpg_keys = tuple(key.removeprefix(GPG_KEY).upper() for key in keys if key.startswith(GPG_KEY))
        self._environ = environ
        self._directories = directories
        self._log = Log(config, event="broker", environ=environ)

    def git_files(self) -> dict[str, str]:
        """Return the files of the broker's directory by which git inside finds the service: a program, and settings."""
        named = self._gpg_keys[0] if self._is_gpg else f"key::{_public_key(self._ssh_key)}"
        settings = ["[gpg]", f"\tformat = {'openpgp' if self._is_gpg else 'ssh'}"]
        if self._gpg_keys:
            settings.append(f"\tprogram = /run/corral/{SIGNER}")
        if self._ssh_key:
            settings += ['[gpg "ssh"]', f"\tprogram = /run/corral/{SIGNER}"]
        settings += ["[user]", f"\tsigningKey = {named}", "[commit]", "\tgpgSign = true"]
        return {SIGNER: _SCRIPT, "gitconfig": "\n".join(settings) + "\n"}

    def handle(self, request: Request) -> int:
        """Sign the object on standard input, and print the signature."""
        request.target = SIGNATURE.target
        containment = self._config.containment
        writable = (self._config.project_root, *map(os.path.realpath, (*containment.write, *containment.settings)))
        if request.argv == ("ssh",) and self._ssh_key:
            key, place, name = self._ssh_key, self._ssh_key, "ssh-keygen"
            more: tuple[str, ...] = ("SSH_AUTH_SOCK",)
            words: tuple[str, ...] = ("-q", "-Y", "sign", "-n", "git", "-f", key)
        elif len(request.argv) == 2 and request.argv[0] == "gpg" and self._gpg_keys:
            chosen = self._chosen(request.argv[1])
            key, name, more = GPG_KEY + chosen, "gpg", ("GNUPGHOME", *_DISPLAY)
            place = self._environ.get("GNUPGHOME") or f"{self._environ.get('HOME', '')}/.gnupg"
            words = ("--batch", "--no-tty", "--status-fd=2", "--armor", "--local-user", chosen, "--detach-sign")
        else:
            raise RefusedError("it signs commits and tags with the keys that the user named, and nothing else")
        if not os.path.isabs(place) or any(
            inside(path, root) for path in (place, os.path.realpath(place)) for root in writable
        ):
            raise RefusedError(f"the key is in {place}, where commands can write")
        program = find_program(name, writable, self._directories)
        if not program:
            raise RefusedError(f"{name} is not installed")
        environ = clean_environment(self._environ, *more)

        def record(kind: str, data: bytes) -> None:
            self._record(kind, data, key)

        return run_program(
            request, launcher((program, *words), environ, None), environ, filters={0: GitObjectFilter(record)}
        )

    def _chosen(self, text: str) -> str:
        """Return the gpg key for the name that git gives. Git gives the committer's name where no key is configured."""
        digits = text.removeprefix("0x").rstrip("!").upper()
        if not _KEY_ID.fullmatch(digits):
            return self._gpg_keys[0]
        for key in self._gpg_keys:
            if key.endswith(digits):
                return key
        raise RefusedError(
            f"the user has not named the key {digits}. The user can add it to signing_keys: {GPG_KEY}FINGERPRINT"
        )

    def _record(self, kind: str, data: bytes, key: str) -> None:
        fields = {
            "program": PROGRAM,
            "target": SIGNATURE.target,
            "decision": "allow",
            "object": kind,
            "sha256": sha256_hex(data),
        }
        try:
            self._log.note(fields | {"key": key})
        except AuditError as error:
            if self._config.audit.required:
                raise RefusedError(str(error)) from None


class GitObjectFilter:
    """Holds the input back until it has ended, and passes it on if it is one commit or tag."""

    def __init__(self, record: Callable[[str, bytes], None]) -> None:
        self._record = record
        self._data = b""

    def feed(self, data: bytes) -> bytes:
        """Keep the next bytes."""
        self._data += data
        if len(self._data) > MAX_OBJECT_BYTES:
            raise RefusedError(f"the object is larger than {MAX_OBJECT_BYTES >> 20} MiB")
        return b""

    def end(self) -> bytes:
        """Return the object, after its use is recorded."""
        kind = kind_of_object(self._data)
        if not kind:
            raise RefusedError("only commits and tags of git are signed, and this is neither")
        self._record(kind, self._data)
        return self._data


def kind_of_object(data: bytes) -> str:
    """Return "commit" or "tag" for the text of such an object, or "" for anything else."""
    if _COMMIT.fullmatch(data):
        return "commit"
    return "tag" if _TAG.fullmatch(data) else ""


def _public_key(path: str) -> str:
    name = path if path.endswith(".pub") else f"{path}.pub"
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 16) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
    except OSError as error:
        raise RefusedError(f"the public key {name} cannot be read: {error.strerror}") from None
    found = _PUBLIC_KEY.match(text)
    if found is None:
        raise RefusedError(f"{name} is not a public key of SSH")
    return found[0]
