"""Which addresses a granted name may lead to: those of the public internet. Pure; by the registries of special addresses."""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

_RESERVED4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "a provider's own network",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a cloud's metadata",
    "169.254.0.0/16": "link-local, and clouds' metadata",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "reserved",
    "192.52.193.0/24": "reserved",
    "192.88.99.0/24": "a relay for 6to4",
    "192.168.0.0/16": "a private network",
    "192.175.48.0/24": "reserved",
    "198.18.0.0/15": "benchmarks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
# Of IPv6 only 2000::/3 is in use; of it not these.
_RESERVED6 = {
    "2001::/23": "reserved, or a tunnel",
    "2001:db8::/32": "documentation",
    "2002::/16": "a tunnel to an IPv4 address",
    "3fff::/20": "documentation",
    "3ffe::/16": "reserved",
}
_GLOBAL6 = "2000::/3"
_NAMED6 = {
    "::/128": "no address",
    "::1/128": "loopback",
    "::ffff:0:0/96": "an IPv4 address in IPv6 form",
    "64:ff9b::/96": "a tunnel to an IPv4 address",
    "64:ff9b:1::/48": "a tunnel to an IPv4 address",
    "fc00::/7": "a private network",
    "fe80::/10": "link-local",
    "fec0::/10": "a private network",
    "ff00::/8": "multicast",
}


def packed(address: str) -> bytes:
    """Return the bytes of an address."""
    return inet_pton(AF_INET6 if ":" in address else AF_INET, address)


def canonical(address: str) -> str:
    """Return an address in its usual form, without a zone."""
    plain = address.partition("%")[0]
    return inet_ntop(AF_INET6 if ":" in plain else AF_INET, packed(plain))


def special_purpose(address: str) -> str:
    """Return what an address is for, where it is not of the public internet; else nothing."""
    number = packed(address)
    if len(number) == 4:
        return next((what for block, what in _BLOCKS4 if _inside(number, block)), "")
    if _inside(number, _block(_GLOBAL6)):
        return next((what for block, what in _BLOCKS6 if _inside(number, block)), "")
    return next((what for block, what in _NAMES6 if _inside(number, block)), "reserved")


_Block = tuple[int, int]  # the first bits as a number, and how many follow


def _block(text: str) -> _Block:
    address, _, bits = text.partition("/")
    number = packed(address)
    rest = len(number) * 8 - int(bits)
    return int.from_bytes(number, "big") >> rest, rest


def _inside(number: bytes, block: _Block) -> bool:
    return int.from_bytes(number, "big") >> block[1] == block[0]


_BLOCKS4 = [(_block(text), what) for text, what in _RESERVED4.items()]
_BLOCKS6 = [(_block(text), what) for text, what in _RESERVED6.items()]
_NAMES6 = [(_block(text), what) for text, what in _NAMED6.items()]
