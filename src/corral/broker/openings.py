"""Opens the grants of one call: returns the config of its sandbox, and starts what serves the call while it runs."""

from __future__ import annotations

import os

from corral.model.errors import PolicyError
from corral.model.grant import BROKER, CREATE, LIST, LIST_ALL, NETWORK, READ, REGISTRY, TRANSPORT, WRITE, unique_grants

SENT_BYTES = 8 << 20  # of a call with a package index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.broker.listings import Listings
    from corral.broker.server import BrokerServer
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig


class Opened:
    """The openings of one call: the config of its sandbox, its variables, and the broker that serves it, if it needs one."""

    def __init__(
        self,
        config: SandboxConfig,
        server: BrokerServer | None = None,
        variables: Mapping[str, str] | None = None,
        listings: Listings | None = None,
    ) -> None:
        self.config = config
        self.variables = variables or {}
        self._server = server
        self._listings = listings

    def close(self) -> None:
        """End what serves the call."""
        if self._server is not None:
            self._server.close()
        if self._listings is not None:
            self._listings.close()


def open_grants(config: SandboxConfig, grants: tuple[Grant, ...]) -> Opened:
    """Open the grants of one call. Raise PolicyError for a grant that cannot be given, before anything is open."""
    for grant in grants:
        if grant.kind == WRITE:
            _make_directory(grant.target)
        path = grant.target.removesuffix(LIST_ALL) if grant.kind == LIST else grant.target
        if grant.kind in (READ, WRITE, CREATE, LIST) and os.path.realpath(path) != path:
            raise PolicyError(f"{path} leads elsewhere now, to {os.path.realpath(path)}")
        if grant.kind == CREATE:
            _make_file(path)
    hosts = [host for grant in grants if grant.kind == REGISTRY for host in _registry_hosts(grant.target, config)]
    opened = config.with_grants(unique_grants((*grants, *hosts)))
    if hosts and not config.containment.destinations and all(grant.kind != NETWORK for grant in grants):
        # Requests for packages are small. Without a bound, the code that an install runs could send the project to the index.
        opened = opened.replace(containment=opened.containment.replace(sent_bytes=SENT_BYTES))
    variables = _registry_variables(grants, config)
    listings = _listings(opened, grants)
    if listings is not None:
        opened = opened.replace(containment=opened.containment.replace(listings=listings.directory))
    if not any(grant.kind in (TRANSPORT, BROKER) for grant in grants):
        return Opened(opened, None, variables, listings)
    try:
        return _served(opened, grants, variables, listings)
    except BaseException:
        if listings is not None:
            listings.close()
        raise


def _make_directory(path: str) -> None:
    """Make the new directory that a write grant names, as the command would."""
    if os.path.lexists(path):
        return
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise PolicyError(f"{path} cannot be made: {error.strerror}") from None


def _make_file(path: str) -> None:
    """Make the new file that a grant names. A file that appeared since the question is not touched."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise PolicyError(f"{path} cannot be made: {error.strerror}") from None


def _listings(config: SandboxConfig, grants: tuple[Grant, ...]) -> Listings | None:
    targets = [grant.target for grant in grants if grant.kind == LIST]
    if not targets:
        return None
    from corral.broker.listings import Listings  # noqa: PLC0415  few calls list a directory outside

    return Listings(config, targets, os.environ)


def _registry_hosts(tool: str, config: SandboxConfig) -> tuple[Grant, ...]:
    """Return the hosts that a package manager is configured for. Hosts that only a file of the project names are not opened."""
    from corral.broker.package_managers import registries  # noqa: PLC0415  few calls install packages

    found = [host for host in registries.resolve(tool, "", os.environ, config=config) if host.certain]
    if not found:
        raise PolicyError(f"corral cannot find out which hosts {tool} is configured for")
    return (*found, *registries.second_hosts(tool, "", os.environ, found, config=config))


def _registry_variables(grants: tuple[Grant, ...], config: SandboxConfig) -> dict[str, str]:
    """Return the variables that name the configured registries. The tool inside does not see the user's configuration files."""
    tools = [grant.target for grant in grants if grant.kind == REGISTRY]
    if not tools:
        return {}
    from corral.broker.package_managers import registries  # noqa: PLC0415  few calls install packages

    found: dict[str, str] = {}
    for tool in tools:
        found |= registries.registry_variables(tool, os.environ, config=config)
    return found


def _served(
    config: SandboxConfig, grants: tuple[Grant, ...], variables: Mapping[str, str], listings: Listings | None
) -> Opened:
    from corral.broker.broker_openings import open_broker  # noqa: PLC0415  few calls need the broker
    from corral.broker.streams import RefusedError  # noqa: PLC0415

    try:
        return Opened(*open_broker(config, grants, os.environ), variables, listings)
    except RefusedError as error:
        raise PolicyError(str(error)) from None
