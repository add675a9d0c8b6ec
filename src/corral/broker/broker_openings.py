"""Opens the broker of a call: the transports of git, the commands that run outside, and signing, as its grants say."""

from __future__ import annotations

from corral.broker.commands.command_service import command_services
from corral.broker.signing import signing_services
from corral.broker.transport_openings import open_transports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.broker.server import BrokerServer, Service
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig


def open_broker(
    config: SandboxConfig, grants: Sequence[Grant], environ: Mapping[str, str]
) -> tuple[SandboxConfig, BrokerServer | None]:
    """Return the config of the call's own sandbox, and the broker to close after it. Raise RefusedError if one cannot be opened."""
    services: dict[str, Service] = {**command_services(config, grants, environ)}
    files: dict[str, str] = {}
    for name, signer in signing_services(config, grants, environ).items():
        services[name] = signer
        files |= signer.git_files()
    return open_transports(config, grants, environ, services, files)
