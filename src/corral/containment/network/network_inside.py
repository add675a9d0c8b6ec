"""Describes the network that commands see: the files with its names, and the places at which the proxy listens for them."""

from __future__ import annotations

import os

from corral._lib.network.certificates import certificates
from corral._lib.network.name_addresses import RESOLV_CONF, NameAddresses
from corral._lib.records import Record, frozen
from corral.containment.filesystem.view import CERTIFICATES, HOSTS, RESOLVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.config import Containment

_HOSTS = "/etc/hosts"
_MAX_HOSTS_BYTES = 16 * 1024 * 1024


@frozen
class NetworkInside(Record):
    """The files that commands see in place of the host's, and the addresses and ports of listening sockets."""

    names: Mapping[str, str] = {}  # of the files in scratch, by their placeholders in the view
    files: Mapping[str, bytes] = {}  # their contents, by their names
    listeners: tuple[tuple[str, int], ...] = ()

    def placed(self, scratch: str) -> dict[str, str]:
        """Return the paths of the files in scratch, by their placeholders."""
        return {placeholder: f"{scratch}/{name}" for placeholder, name in self.names.items()}


def network_inside(containment: Containment, environ: Mapping[str, str]) -> NetworkInside:
    """Return the network that commands see. With the network on, they see this machine's files."""
    if containment.network == "on":
        return NetworkInside()
    names = NameAddresses(containment.destinations)
    hosts = names.hosts_file(_original(), (os.uname().nodename,)).encode("utf-8", "surrogateescape")
    shown = {
        HOSTS: hosts,
        RESOLVER: RESOLV_CONF.encode("ascii"),
        CERTIFICATES: certificates(environ) if containment.destinations else b"",
    }
    named = {placeholder: f"{placeholder[1:]}-{_content_name(data)}" for placeholder, data in shown.items() if data}
    local = [(host, port) for port in containment.local_ports for host in ("127.0.0.1", "::1")]
    files = {name: shown[placeholder] for placeholder, name in named.items()}
    return NetworkInside(named, files, (*names.listeners(), *local))


def _original() -> str:
    try:
        with open(_HOSTS, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_MAX_HOSTS_BYTES)
    except OSError:
        return ""


def _content_name(data: bytes) -> str:
    """Return a name for a content. Sandboxes of one project share a directory, and can have other names."""
    from _blake2 import blake2b  # noqa: PLC0415  hashlib takes longer to load

    return blake2b(data, digest_size=8).hexdigest()
