"""Parses the URL of a git remote in a grant. Pure. A URL that git could read in another way is refused.

Each transport is compared as a whole: kind, user and host, port, path.
"""

from __future__ import annotations

import os

from corral._lib.network.network_grants import format_destination, parse_authority, parse_port
from corral._lib.records import Record, frozen
from corral.broker.streams import RefusedError

HTTPS_PORT = 443
LOCAL_HOST = "corral.local"  # inside, the host of remotes that are paths
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
# In quotes for a remote shell, and in a git configuration.
_PATH = _NAME | frozenset("/~+@,= ")
_WEB_PATH = _NAME | frozenset("/~+@")


@frozen
class Remote(Record):
    """The repository of a transport. `path` is as git sends it to the program at the other end."""

    kind: str  # ssh, https or path
    host: str  # with the user, if one is named
    port: str
    path: str
    url: str


def parse_remote(url: str) -> Remote:
    """Return the repository of a URL. Raise RefusedError if corral has no transport for it."""
    scheme, has_scheme, rest = url.partition("://")
    if has_scheme and scheme in ("ssh", "git+ssh", "ssh+git"):
        return _ssh_url(url, rest)
    if has_scheme and scheme == "https":
        return _https(url, rest)
    if (has_scheme and scheme == "file" and rest.startswith("/")) or url.startswith("/"):
        path = rest if has_scheme else url
        if path != os.path.normpath(path) or not _PATH.issuperset(path) or path.startswith("//"):
            raise RefusedError(f"{url!r} is not a plain path")
        return Remote("path", LOCAL_HOST, "", path, url)
    host, colon, path = url.partition(":")
    # As git does: a colon after a slash belongs to a path. Two colons name a helper program.
    if not has_scheme and colon and "/" not in host and not path.startswith(":"):
        return Remote("ssh", _host(url, host), "", _path(url, path), url)
    raise RefusedError(f"corral has no transport for {url!r}: it knows ssh, https, and repositories on this machine")


def _ssh_url(url: str, rest: str) -> Remote:
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    name, colon, port = host.partition(":")
    try:
        number = str(parse_port(port)) if colon else ""
    except ValueError:
        raise RefusedError(f"{url!r} has no valid port") from None
    # Git removes the slash before a home directory.
    sent = path if path.startswith("~") else slash + path
    return Remote("ssh", _host(url, user + at + name), number, _path(url, sent), url)


def _https(url: str, rest: str) -> Remote:
    place, slash, path = rest.partition("/")
    try:
        # A user in a URL selects a credential. It stays outside.
        host, port = parse_authority(place.rpartition("@")[2], HTTPS_PORT)
    except ValueError as error:
        raise RefusedError(f"{url!r}: {error}") from None
    parts = path.removesuffix("/").split("/")
    if not _WEB_PATH.issuperset(path) or any(part in ("", ".", "..") for part in parts):
        raise RefusedError(f"{url!r} does not name a repository by a plain path")
    return Remote("https", host, str(port), slash + "/".join(parts), url)


def _host(url: str, text: str) -> str:
    user, at, name = text.rpartition("@")
    is_plain = _NAME.issuperset(user + name) and name and (user or not at)
    if not is_plain or text.startswith("-") or name.startswith("-") or name.lower() == LOCAL_HOST:
        raise RefusedError(f"{url!r} does not name a host by a plain name")
    return text


def _path(url: str, text: str) -> str:
    if not text or text.startswith("-") or not _PATH.issuperset(text) or text != text.strip():
        raise RefusedError(f"{url!r} does not name a repository by a plain path")
    return text


def destination(remote: Remote) -> str:
    """Return host and port of an https remote, as the proxy knows them."""
    return format_destination(remote.host, int(remote.port))


@frozen
class TransportGrant(Record):
    """A transport grant: fetch from a repository, or push to it."""

    remote: Remote
    is_push: bool
    refs: tuple[str, ...] = ()


def parse_transport(target: str) -> TransportGrant:
    """Return the grant of the text `fetch URL` or `push URL REF ...`. Raise RefusedError for anything else."""
    verb, *words = target.split(" ")
    if verb not in ("fetch", "push") or not words or (verb == "fetch" and len(words) > 1):
        raise RefusedError(f"{target!r} is not a transport")
    return TransportGrant(parse_remote(words[0]), verb == "push", tuple(words[1:]))
