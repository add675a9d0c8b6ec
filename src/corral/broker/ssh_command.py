"""Parses the words that git gives to ssh, and builds those for the user's ssh. Pure but for the paths that it resolves.

Only one shape is understood: a host, perhaps a port, and git's program with one quoted path.
"""

from __future__ import annotations

import os

from corral._lib.network.network_grants import parse_port
from corral._lib.records import Record, frozen
from corral.broker.local_repository import is_writable
from corral.broker.remotes import LOCAL_HOST
from corral.broker.streams import RefusedError
from corral.guard.broker_shapes import is_ignored_ssh_option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FETCH, PUSH = "git-upload-pack", "git-receive-pack"
PROTOCOL_VERSION = "version=2"  # what git asks for; nothing of the agent's environment is used
_SEND_PROTOCOL = ("-o", "SendEnv=GIT_PROTOCOL")
# No question, no program of the user's configuration that a command could be meant for, no connection but this one.
_OPTIONS = (
    *("-T", "-a", "-x"),
    *("-o", "BatchMode=yes", "-o", "PermitLocalCommand=no", "-o", "ClearAllForwardings=yes"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "RemoteCommand=none", "-o", "Tunnel=no"),
)
_IDENTITY_OPTIONS = ("identityfile", "identitiesonly")
_VALUES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/~+@,")


@frozen
class TransportCall(Record):
    """One call of ssh by git."""

    service: str  # git-upload-pack or git-receive-pack
    host: str
    port: str
    path: str
    sends_protocol: bool


def parse_call(argv: Sequence[str]) -> TransportCall:
    """Return the call of `[-o SendEnv=GIT_PROTOCOL] [-p PORT] HOST "git-upload-pack 'PATH'"`. Refuse anything else.

    Options of the command's GIT_SSH_COMMAND that the broker ignores may stand before it.
    """
    words = list(argv)
    while words[:1] == ["-o"] and len(words) > 1 and is_ignored_ssh_option(words[1]):
        words = words[2:]
    sends_protocol = tuple(words[:2]) == _SEND_PROTOCOL
    if sends_protocol:
        words = words[2:]
    port = ""
    if words[:1] == ["-p"] and len(words) > 1:
        try:
            port = str(parse_port(words[1]))
        except ValueError:
            raise RefusedError("the port is not a number") from None
        words = words[2:]
    if len(words) != 2 or not words[0] or words[0].startswith("-"):
        raise RefusedError(
            "only the transport of git is run outside: git-upload-pack and git-receive-pack of one repository"
        )
    host, command = words
    service, _, quoted = command.partition(" ")
    path = quoted[1:-1]
    if service not in (FETCH, PUSH) or quoted != f"'{path}'" or not path or {*"'!\\\n\r\0"} & {*path}:
        raise RefusedError(f"only {FETCH} and {PUSH} with one quoted path are run on another machine")
    return TransportCall(service, host, port, path, sends_protocol)


def parse_identity(command: str, home: str, writable: Iterable[str]) -> tuple[str, ...]:
    """Return the options of the user's core.sshCommand: identities and a configuration file. Refuse anything else.

    A file that a command could write is refused: a configuration of ssh can name programs.
    """
    program, *words = command.split()
    if os.path.basename(program) != "ssh" or not all(_VALUES.issuperset(word.replace("=", "")) for word in words):
        raise RefusedError(
            f"core.sshCommand is {command!r}; corral runs ssh with the options -i, -F and -o Identity… only"
        )
    found: list[str] = []
    while words:
        option = words.pop(0)
        if option[:2] not in ("-i", "-F", "-o") or (len(option) == 2 and not words):
            raise RefusedError(
                f"core.sshCommand has the option {option!r}, and corral passes on -i, -F and -o Identity… only"
            )
        flag, value = option[:2], option[2:] or words.pop(0)
        if flag == "-o":
            name, equals, path = value.partition("=")
            if name.lower() not in _IDENTITY_OPTIONS or not equals:
                raise RefusedError(
                    f"core.sshCommand has the option {name!r}, and corral passes on -i, -F and -o Identity… only"
                )
            is_file = name.lower() == "identityfile"
            value = f"{name}={_file(path, home, writable)}" if is_file else value
        else:
            value = _file(value, home, writable)
        found += [flag, value]
    return tuple(found)


def _file(path: str, home: str, writable: Iterable[str]) -> str:
    full = f"{home}/{path[2:]}" if path.startswith("~/") else path
    if not full.startswith("/"):
        raise RefusedError(f"core.sshCommand names {path!r}, which is not an absolute path")
    real = os.path.realpath(full)
    if is_writable(real, writable):
        raise RefusedError(f"core.sshCommand names {path!r}, which commands can write")
    return real


def ssh_argv(program: str, call: TransportCall, identity: Sequence[str]) -> tuple[str, ...]:
    """Return the words for the user's ssh."""
    port = ("-p", call.port) if call.port else ()
    version = _SEND_PROTOCOL if call.sends_protocol and call.service == FETCH else ()
    return (program, *_OPTIONS, *identity, *version, *port, "--", call.host, f"{call.service} '{call.path}'")


def is_local(call: TransportCall) -> bool:
    """Return whether a call is for a repository on this machine."""
    return call.host == LOCAL_HOST and not call.port
