"""Finds the opening of a command that connects to a named host itself, without the proxy: bash's /dev/tcp, nc, `openssl s_client`. Pure.

Inside, a granted name has an address of its own, so such a connection works. Whatever comes back must not be run. So every command of
the call is one that prints or copies bytes, and no variable can hold them: bash runs what is in a variable in many ways.
"""

from __future__ import annotations

from corral._lib.network.network_grants import format_destination, is_address
from corral.guard.analysis.addresses import destination
from corral.guard.analysis.command import REDIRECT
from corral.model.grant import NETWORK, Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corral.guard.analysis.command import Command
    from corral.guard.shell.expansion import Word

DIRECT = "in the call, without the proxy"  # the source of such a grant
_TCP = "tcp://"
_INERT = frozenset([
    ":", "base64", "cat", "cut", "date", "echo", "exec", "false", "fold", "grep", "head", "hexdump", "ls", "nl", "od", "printf", "rev", "sleep", "sort", "tail",
    "tee", "timeout", "tr", "true", "uniq", "wait", "wc", "which", "xxd",
])  # fmt: skip
_SHELLS = frozenset({"bash", "sh"})
# Options that neither listen nor run a program, and those with a value. Without -z: a name's own address always accepts.
_NETCAT = (frozenset({"-v", "-N", "-4", "-C"}), frozenset({"-w", "-q", "-i"}))
_NETCATS = frozenset({"nc", "netcat", "ncat", "nc.openbsd", "nc.traditional"})
_OPENSSL = (
    frozenset({"-showcerts", "-brief", "-quiet", "-no_ign_eof", "-status", "-tls1_2", "-tls1_3", "-4", "-verify_return_error", "-crlf", "-state"}),
    frozenset({"-connect", "-servername", "-alpn", "-verify_hostname", "-starttls", "-ciphersuites", "-cipher"}),
)  # fmt: skip


def direct_grants(command: Command, words: Sequence[Word]) -> tuple[Grant, ...]:
    """Return the grants of a command's own connections; none if it has others, or if a host or port is not in the call."""
    if all(word.text.startswith(_TCP) for word in words):
        # Only the shell connects here, for a command that runs nothing.
        is_plain = command.name in _INERT and (command.name != "exec" or len(command.words) == 1)
        places = [word.text[len(_TCP) :] for word in words] if is_plain else []
    elif any(detail == REDIRECT and key == "network" for key, _, detail in command.effects):
        places = []
    else:
        places = [_place(command)]
    grants = tuple(_grant(place) for place in places)
    return tuple(grant for grant in grants if grant is not None) if None not in grants else ()


def are_alone(grants: Iterable[Grant], commands: Iterable[Command]) -> bool:
    """Say whether nothing in a call could run what a connection without the proxy brings."""
    return all(grant.source != DIRECT for grant in grants) or all(map(_is_inert, commands))


def _is_inert(command: Command) -> bool:
    """Say whether a command only prints or copies bytes, by words that are known, and sets no variable."""
    text = command.words[0].text
    if not command.name:
        # A loop over words. An assignment could hold what the connection brings.
        return not command.effects and text.startswith("for ") and not any(sign in text for sign in ("$(", "`", "<("))
    if not all(word.proven for word in command.words) or any(
        key in ("runs", "shadow") for key, _, _ in command.effects
    ):
        return False
    words = [word.text for word in command.words]
    if command.name in _SHELLS:
        # The commands of the text are judged as well. With -i or -l, the shell would also run start-up files.
        return [key for key, _, _ in command.effects] == ["code"] and words[1] == "-c" and len(words) == len("-ct")
    is_known = command.name in _INERT and words[1:2] != ["-v"]  # printf -v
    return (is_known or _place(command) != "") and not any(key.startswith("code") for key, _, _ in command.effects)


def _place(command: Command) -> str:
    """Return host:port of nc or `openssl s_client`, or nothing."""
    if not all(word.proven for word in command.words) or "/" in command.name:
        return ""
    words = [word.text for word in command.words[1:]]
    if command.real in _NETCATS:
        operands = _operands(words, *_NETCAT)
        return ":".join(operands) if operands is not None and len(operands) == 2 else ""
    if command.real == "openssl" and words[:1] == ["s_client"] and words.count("-connect") == 1:
        return (
            words[words.index("-connect") + 1]
            if _operands(words[1:], *_OPENSSL) == [] and words[-1] != "-connect"
            else ""
        )
    return ""


def _operands(words: Sequence[str], flags: frozenset[str], with_value: frozenset[str]) -> list[str] | None:
    """Return the words that are no options, or None for an option that is not listed."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word[:1] != "-":
            found.append(word)
        elif word in with_value:
            next(rest, "")
        elif word not in flags:
            return None
    return found


def _grant(place: str) -> Grant | None:
    try:
        found = destination(place) if place.count(":") == 1 and "@" not in place else None
    except ValueError:
        return None
    if found is None or not found[1] or is_address(found[0]):
        return None  # only a name gets an address inside
    return Grant(NETWORK, format_destination(found[0], found[1]), DIRECT)
