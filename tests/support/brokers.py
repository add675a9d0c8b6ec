"""Starts a sandbox whose programs of some names are run by a broker outside."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from corral import Sandbox, SandboxConfig
from corral.broker.server import BrokerServer
from corral.guard.rules.loader import effects, group_names, parse_profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corral.broker.server import Service

# As after a yes: the guard lets everything run, confined.
UNJUDGED = parse_profile(
    "unjudged",
    {
        "effects": dict.fromkeys(effects(), "allow"),
        "groups": dict.fromkeys(group_names(), "allow"),
        "needs_containment": True,
    },
)


@contextmanager
def brokered(
    config: SandboxConfig, services: Mapping[str, Service], files: Mapping[str, str] | None = None
) -> Iterator[tuple[Sandbox, BrokerServer]]:
    """Serve these programs to a sandbox with this config, and end both."""
    server = BrokerServer(config, services, files)
    try:
        shown = config.replace(containment=config.containment.replace(broker=server.directory))
        with Sandbox(shown) as box:
            yield box, server
    finally:
        server.close()
