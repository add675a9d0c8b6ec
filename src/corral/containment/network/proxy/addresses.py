"""Tells special-purpose IP addresses from those of the public internet, by the IANA registries, and this machine's from others."""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, SOCK_DGRAM, inet_ntop, inet_pton
from socket import socket

# Outside 2000::/3, every IPv6 address without an entry is reserved.
_PUBLIC_IPV6 = "2000::/3"
_PURPOSES = {
    "this network": ("0.0.0.0/8",),
    "a private network": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
    "a provider's shared network": ("100.64.0.0/10",),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "a cloud's metadata": ("168.63.129.16/32",),
    "link-local, and clouds' metadata": ("169.254.0.0/16",),
    "link-local": ("fe80::/10",),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "benchmarks": ("198.18.0.0/15",),
    "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
    "a relay for 6to4": ("192.88.99.0/24",),
    "a tunnel to an IPv4 address": ("2002::/16", "64:ff9b::/96", "64:ff9b:1::/48"),
    "an IPv4 address in IPv6 form": ("::ffff:0:0/96",),
    "no address": ("::/128",),
    "reserved, or a tunnel": ("2001::/23",),
    "reserved": (
        *("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "240.0.0.0/4"),
        "3ffe::/16",
    ),
}


def _packed(address: str) -> bytes:
    return inet_pton(AF_INET6 if ":" in address else AF_INET, address)


def canonical(address: str) -> str:
    """Return an address in its usual form, without a zone."""
    plain = address.partition("%")[0]
    return inet_ntop(AF_INET6 if ":" in plain else AF_INET, _packed(plain))


class _Block:
    def __init__(self, text: str) -> None:
        address, _, bits = text.partition("/")
        first = _packed(address)
        self._length = len(first)
        self._host_bits = len(first) * 8 - int(bits)
        self._network = int.from_bytes(first, "big") >> self._host_bits

    def __contains__(self, packed: bytes) -> bool:
        return len(packed) == self._length and int.from_bytes(packed, "big") >> self._host_bits == self._network


_BLOCKS = [(_Block(text), purpose) for purpose, texts in _PURPOSES.items() for text in texts]
_PUBLIC = _Block(_PUBLIC_IPV6)


def special_purpose(address: str) -> str:
    """Return the purpose of an address that is not of the public internet, or ""."""
    packed = _packed(address)
    default = "" if len(packed) == 4 or packed in _PUBLIC else "reserved"
    return next((purpose for block, purpose in _BLOCKS if packed in block), default)


def is_this_machine(address: str) -> bool:
    """Return whether an address leads to this machine: its own, loopback, or the one that means every address."""
    if special_purpose(address) in ("loopback", "this network", "no address"):
        return True
    try:
        with socket(AF_INET6 if ":" in address else AF_INET, SOCK_DGRAM) as sock:
            # The kernel binds a socket to the machine's own addresses only.
            sock.bind((address, 0))
    except OSError:
        return False
    return True
