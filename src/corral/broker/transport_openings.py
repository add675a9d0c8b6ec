"""Opens the git transports of a call: the requests of https remotes in its config, and a broker for the others."""

from __future__ import annotations

from corral.broker.git_transport import GIT_CONFIG, config_for, git_config_for, services_for, transport_grants
from corral.broker.server import BrokerServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.broker.server import Service
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig


def open_transports(
    config: SandboxConfig,
    grants: Sequence[Grant],
    environ: Mapping[str, str],
    services: Mapping[str, Service] | None = None,
    files: Mapping[str, str] | None = None,
) -> tuple[SandboxConfig, BrokerServer | None]:
    """Return the config of the call's own sandbox, and the broker to close after it. `services` are those of other programs,
    and `files` those that they need in the broker's directory.

    Raise RefusedError for a transport that corral cannot serve. Without transports and services, nothing is started.
    """
    others = dict(services or {})
    if not others and not transport_grants(grants):
        return config, None
    opened = config_for(config, grants, environ)
    own = services_for(opened, grants, environ, others.pop("ssh", None))
    shown = dict(files or {})
    shown[GIT_CONFIG] = git_config_for(opened, grants) + shown.get(GIT_CONFIG, "")
    server = BrokerServer(opened, others | own, shown)
    return opened.replace(containment=opened.containment.replace(broker=server.directory)), server
