"""Classification of addresses: loopback, other machines, and git remotes."""

from __future__ import annotations

import pytest

from corral.guard.analysis.addresses import network_effect, remote_kind

LOCAL = [
    "localhost",
    "http://localhost:8000/x",
    "127.0.0.1:80",
    "http://127.8.9.1",
    "[::1]:80",
    "http://user@localhost/",
    "HTTP://LOCALHOST",
    "0.0.0.0:80",
]
OTHER = [
    "example.com", "http://localhost.evil.com", "http://localhost@evil.com/", "http://127.0.0.1.evil.com", "http://evil.com/localhost", "http://evil.com#localhost", "http://1270.0.0.1",
    "http://evil.com\\@localhost/", "//evil.com", "user@evil.com", "http://evil.com?@localhost",
]  # fmt: skip


@pytest.mark.parametrize("address", LOCAL)
def test_loopback_is_local(address: str) -> None:
    assert network_effect(address) == "network-local"


@pytest.mark.parametrize("address", OTHER)
def test_other_addresses_are_not_local(address: str) -> None:
    assert network_effect(address) == "network"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("origin", "name"), (".", "path"), ("../x", "path"), ("/x", "path"), ("file:///x", "path"), ("https://h/x", "url"), ("git@h:x", "url"), ("h:x", "url"),
        ("ext::sh -c id", "ext"), ("http://localhost/x", "local"), ("ssh://h/x", "url"), ("a/b", "path"),
    ],
)  # fmt: skip
def test_remote_kind(text: str, kind: str) -> None:
    assert remote_kind(text) == kind
