"""Parses grants of single HTTP requests, such as `forge.example:443 GET /team/app.git/info/refs?service=git-upload-pack`. Pure.

A target is compared as text. One that ends in `*` is a prefix: what follows it must be so plain that no server reads another path in it.
"""

from __future__ import annotations

from corral._lib.network.network_grants import is_target, parse_grant
from corral._lib.network.push_refs import PushGrant, is_plain_ref, parse_push_grant
from corral._lib.records import Record, frozen

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_TARGET = frozenset(map(chr, range(33, 127))) - frozenset('*#\\"')
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./")


@frozen
class RequestGrant(Record):
    """A request that the proxy lets through, over TLS. Of a push, its refs too."""

    place: str  # host:port
    method: str
    target: str
    push: PushGrant | None = None


def parse_request_grant(text: object) -> RequestGrant:
    """Return the grant of `host:port METHOD TARGET [push DEFAULT REF ...]`. Raise ValueError for anything else."""
    words = text.split(" ") if isinstance(text, str) else []
    if len(words) < 3 or words[1] not in METHODS:
        raise ValueError(f"{text!r} is not of the form 'name:port METHOD /path'")
    place, method, target, *more = words
    where = parse_grant(place)
    if where.startswith("*."):
        raise ValueError(f"{where} matches many hosts")
    if not is_target(target):
        raise ValueError(f"{target[:80]!r} is not the path of a request")
    if not more:
        return RequestGrant(where, method, target)
    if more[0] != "push" or len(more) < 2 or not (more[1] == "-" or is_plain_ref(more[1])):
        raise ValueError(f"{text!r} does not say which refs may be pushed")
    default = "" if more[1] == "-" else more[1]
    return RequestGrant(where, method, target, parse_push_grant(more[2:]).replace(default=default))


def request_grant(text: object) -> str:
    """Return the canonical form of a grant, which is the text itself. Raise ValueError for anything else."""
    parse_request_grant(text)
    return str(text)


def matches(pattern: str, target: str) -> bool:
    """Return whether a request's target is the granted one, or lies below it."""
    if not pattern.endswith("*"):
        return target == pattern
    prefix = pattern[:-1]
    rest, _, query = target.removeprefix(prefix).partition("?")
    if not target.startswith(prefix) or not _PLAIN.issuperset(rest) or not _TARGET.issuperset(query):
        return False
    # A server could read `..`, an empty part or `..;` as a step up.
    return all(part and not part.startswith(".") for part in rest.split("/"))
