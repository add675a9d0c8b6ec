"""Finds the hosts that a brokered program connects to, and further files it reads, from the user's configuration of the program."""

from __future__ import annotations

import os

from corral._lib.lazy_regex import pattern
from corral._lib.network.network_grants import is_address, parse_authority, parse_grant
from corral._lib.records import Record, frozen

MAX_CONFIG_BYTES = 4 << 20
_GH_HOST = pattern(r"(?m)^[\"']?([A-Za-z0-9.-]+)[\"']?:[ \t]*\r?$")
_FORGE = "github.com"  # the one host whose programming interface has another name
_SERVER = pattern(r"""(?m)(?:^|[\s{,"'-])server["']?\s*:\s*["']?(https?)://([^\s"'/,}]+)""")
_KUBE_FILE = pattern(
    r"""(?m)(?:certificate-authority|client-certificate|client-key|tokenFile)["']?\s*:\s*["']?([^\s"',}]+)"""
)
_LOOPBACK = ("127.", "[::1]", "localhost")


@frozen
class Reach(Record):
    """The destinations of a program, and the files that its configuration names."""

    network: str | tuple[str, ...]
    files: tuple[str, ...] = ()
    missing: str = ""  # what the user can do where there is no destination


def find_reach(kind: str, configs: tuple[str, ...], forge: str) -> Reach:
    """Return the reach of a program. `configs` are its credential files that exist, `forge` is the host of the project's remote."""
    text = "\n".join(_text(path) for path in configs if os.path.isfile(path))
    if kind == "gh":
        return _gh(text, forge)
    if kind == "kubectl":
        return _kubectl(text, configs)
    if kind == "aws":
        return Reach(("*.amazonaws.com:443", "*.api.aws:443")) if configs else Reach("off", (), "type: aws configure")
    return Reach("off")


def _gh(text: str, forge: str) -> Reach:
    hosts = {found[1].lower() for found in _GH_HOST.finditer(text)}
    if forge.lower() not in hosts:
        return Reach(
            "off", (), f"you are not logged in to {forge}. In your own terminal, type: gh auth login --hostname {forge}"
        )
    names = (f"api.{_FORGE}", _FORGE, f"uploads.{_FORGE}") if forge == _FORGE else (forge,)
    return Reach(tuple(f"{name}:443" for name in names))


def _kubectl(text: str, configs: tuple[str, ...]) -> Reach:
    found: list[str] = []
    is_local = False
    for server in _SERVER.finditer(text):
        scheme, authority = server[1], server[2]
        is_local = is_local or authority.startswith(_LOOPBACK)
        try:
            host, port = parse_authority(authority, 443 if scheme == "https" else 80)
            found.append(parse_grant(f"[{host}]:{port}" if ":" in host and is_address(host) else f"{host}:{port}"))
        except ValueError:
            continue
    if not found:
        return Reach("off", (), "~/.kube/config names no cluster")
    folder = os.path.dirname(configs[0])
    named = [os.path.join(folder, each[1]) for each in _KUBE_FILE.finditer(text)]
    files = tuple(dict.fromkeys(os.path.normpath(path) for path in named if os.path.isfile(path)))
    # A cluster on this machine: programs do not use a proxy for loopback addresses, so only the host's network leads there.
    return Reach("on" if is_local else tuple(dict.fromkeys(found)), files)


def _text(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(MAX_CONFIG_BYTES).decode("utf-8", "replace")
