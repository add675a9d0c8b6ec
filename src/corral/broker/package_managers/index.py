"""Reads one page of a package index, to learn which other hosts serve its files.

The page comes from a host that the user granted, and it may open only little more: a few named hosts with the same scheme.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import closing, suppress
from html.parser import HTMLParser
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from json import loads
from time import monotonic

from corral._lib.network.network_grants import is_address
from corral.broker.package_managers.addresses import Address, parse_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_PAGE_BYTES = 1 << 20
MAX_HOSTS = 3
_ACCEPTS = {
    "pep503": "application/vnd.pypi.simple.v1+json, text/html;q=0.5",
    "cargo": "application/json",
    "npm": "application/json",
}


def second_addresses(index: Address, kind: str, page: str, *, seconds: float) -> list[Address] | None:
    """Return the other hosts that a page of an index names, at most three. Empty if one of its addresses is not acceptable.

    None if the index did not answer, so that a later call can read it.
    """
    body = _fetch(index, page, _ACCEPTS[kind], seconds)
    if body is None:
        return None
    try:
        links = _LINKS[kind](body)
    except (ValueError, RecursionError, AssertionError):
        # HTMLParser raises AssertionError for some markup.
        return []
    return _accepted(index, links)


def _fetch(index: Address, page: str, accept: str, seconds: float) -> bytes | None:
    """Return the body of one answer, without redirects; empty if it is long or not a page. None if no answer came in time."""
    try:
        raw = socket.create_connection((index.host, index.port), seconds)
    except OSError:
        return None
    # A timeout of the socket is that of one read: a server that sends a byte a second never reaches it.
    ends_at = monotonic() + seconds
    with raw, raw.dup() as stopped:
        timer = threading.Timer(seconds, _shut_down, (stopped,))
        timer.start()
        try:
            body = _get(raw, index, page, accept)
            # What was read before the timer fired may be half of a page.
            return body if monotonic() < ends_at else None
        except (OSError, HTTPException, ValueError):
            return None
        finally:
            timer.cancel()
            timer.join()


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _get(raw: socket.socket, index: Address, page: str, accept: str) -> bytes:
    connection: HTTPConnection
    if index.scheme == "https":
        context = ssl.create_default_context()
        connection = HTTPSConnection(index.host, index.port, context=context)
        connection.sock = context.wrap_socket(raw, server_hostname=index.host)
    else:
        connection = HTTPConnection(index.host, index.port)
        connection.sock = raw
    path = "/" + (f"{index.path.rstrip('/')}/" if index.path else "") + page
    with closing(connection):
        connection.request("GET", path, headers={"Accept": accept, "Connection": "close", "User-Agent": "corral"})
        answer = connection.getresponse()
        body = answer.read(MAX_PAGE_BYTES + 1) if answer.status == 200 else b""
    return body if len(body) <= MAX_PAGE_BYTES else b""


class _Links(HTMLParser):
    """Collects the targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "base":
            raise ValueError("links of this page are relative to another address")
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _file_links(body: bytes) -> list[str]:
    """Return the links to files of a project's page: JSON by PEP 691, or HTML by PEP 503."""
    text = body.decode("utf-8", "strict")
    if text.lstrip().startswith("{"):
        files = _table(body).get("files")
        entries = files if isinstance(files, list) else []
        return [str(file["url"]) for file in entries if isinstance(file, dict) and "url" in file]
    parser = _Links()
    parser.feed(text)
    parser.close()
    return parser.found


def _crate_links(body: bytes) -> list[str]:
    """Return the download address of cargo's config.json. Its markers, such as {crate}, stand after the host."""
    address = _table(body).get("dl")
    return [address.partition("{")[0]] if isinstance(address, str) else []


def _tarball_links(body: bytes) -> list[str]:
    """Return the address of an npm package's archive, from the page of one version or of all."""
    data = _table(body)
    versions = data.get("versions")
    pages = [data, *(versions.values() if isinstance(versions, dict) else ())]
    found = (page.get("dist") for page in pages if isinstance(page, dict))
    return [str(dist["tarball"]) for dist in found if isinstance(dist, dict) and "tarball" in dist]


def _table(body: bytes) -> dict[str, Any]:
    data = loads(body.decode("utf-8", "strict"))
    if not isinstance(data, dict):
        raise ValueError("the page is not a table")
    return data


_LINKS: dict[str, Callable[[bytes], list[str]]] = {
    "pep503": _file_links,
    "cargo": _crate_links,
    "npm": _tarball_links,
}


def _accepted(index: Address, links: Iterable[str]) -> list[Address]:
    found: dict[str, Address] = {}
    for link in links:
        if "://" not in link and not link.startswith("//"):
            continue  # relative: on the index itself
        address = parse_address(f"{index.scheme}:{link}" if link.startswith("//") else link)
        if address is None or not _is_acceptable(index, address):
            return []
        if address.destination != index.destination:
            found[address.destination] = Address(address.scheme, address.host, address.port)
    return list(found.values()) if len(found) <= MAX_HOSTS else []


def _is_acceptable(index: Address, address: Address) -> bool:
    if address.destination == index.destination:
        return address.scheme == index.scheme
    is_inner = "." not in address.host
    is_index_inner = is_address(index.host) or "." not in index.host
    return (
        address.scheme == index.scheme
        and not address.has_user
        and not is_address(address.host)
        and (address.port == index.port or address.is_default_port())
        # A public index must not open a name of the user's own network.
        and (is_index_inner or not is_inner)
    )
