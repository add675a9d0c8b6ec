"""The state that a sandbox shares with its transactions: containment, wardens, environment and callbacks."""

from __future__ import annotations

from corral._lib.fork_lock import ProcessOwner
from corral.containment.state import ContainmentState, unmet_requirement
from corral.guard.machine import Machine
from corral.model.errors import ContainmentError
from corral.runtime import files
from corral.runtime.environment import HostEnvironment
from corral.runtime.pool import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Protocol

    from corral.guard.machine import Shown
    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig
    from corral.runtime.driver import OnResult
    from corral.runtime.observers import Observer
    from corral.runtime.processes import WardenClient

    OnAsk = Callable[[Call, Verdict], bool | Awaitable[bool]]

    class Spares(Protocol):
        """The prepared and open transactions of a sandbox."""

        def is_open(self) -> bool: ...
        def stop(self) -> None: ...
        def clean(self) -> None: ...


class SharedState:
    """Holds the shared parts of one sandbox. Any thread may use it."""

    def __init__(
        self, config: SandboxConfig, on_ask: OnAsk | None, on_result: OnResult | None, observers: Iterable[Observer]
    ) -> None:
        self.config = config
        self.on_ask = on_ask
        self.on_result = on_result
        self.observers = list(observers)
        self.containment = ContainmentState(config)
        traffic = self.containment.traffic
        lend = None if traffic is None else traffic.lend
        self.pool = Pool(self.containment.plan, lend=lend, generation=self.containment.generation)
        self.spares: Spares | None = None  # created by the first transaction
        self._environment = HostEnvironment(config.env_allowlist)
        self._seen: tuple[dict[str, str], Machine] = ({}, Machine.of(config))
        self.admission: ProcessOwner | None = None  # set once a warden of this process was checked; reset by `renew`

    def look(self) -> tuple[dict[str, str], Machine]:
        """Return the environment for commands and the guard's view of the machine. Both are rebuilt when one has changed."""
        environment = self._environment.scrubbed()
        seen = self._seen
        if environment is not seen[0]:
            self._seen = seen = (environment, Machine.of(self.config, self.containment.temporary()))
        return seen

    def admit(self, warden: WardenClient, config: SandboxConfig) -> ProcessOwner:
        """Check that a warden has all layers that a config requires; ContainmentError if it has not. Returns `admission`."""
        status = warden.backend, warden.enforcement, warden.missing_layers
        unmet = unmet_requirement(config, *status)
        if unmet:
            warden.close()
            self.pool.retire()
            raise ContainmentError(unmet)
        if self.admission is None or not self.admission.is_current:
            self._environment.replace(self.containment.variables(*status))
            self.admission = ProcessOwner()
        return self.admission

    def scratch_for(self, path: str) -> Shown:
        """Return the commands' own /tmp and home, and their places on the host. Creates them if `path` may lie in one."""
        is_admitted = self.admission is not None and self.admission.is_current
        if not is_admitted and files.may_be_scratch(path, self.config):
            warden = self.pool.acquire()
            self.admit(warden, self.config)
            self.pool.release(warden)
        return self.containment.shown()

    def renew(self, *, in_transaction: bool) -> str:
        """Recreate the containment if a protected path was replaced on the host. Returns why that is impossible, or ""."""
        if not self.containment.replaced():
            return ""
        with self.containment.renewal:
            path = self.containment.replaced()  # again: another thread may have recreated it meanwhile
            if path == self.config.project_root:
                return self.containment.project_error() or f"{path} was replaced; try again, or make a new sandbox"
            if not path or in_transaction:  # a transaction never applies changes to protected paths
                return ""
            if self.pool.is_busy() or (self.spares is not None and self.spares.is_open()):
                return (
                    f"{path} was replaced or removed by a process outside the sandbox, so commands could now write it; "
                    "let the running commands end, or make a new sandbox"
                )
            if self.spares is not None:
                self.spares.stop()
            # In one step with the keeper's end: the next keeper must not get a plan that was made for this one.
            self.pool.retire(self.containment.renew)
            if self.spares is not None:
                self.spares.clean()
                self.spares = None
            self.admission = None
            return ""

    def close(self) -> None:
        """End all commands, wardens and the keeper, and remove their directories."""
        if self.spares is not None:
            self.spares.stop()
        self.pool.close()
        if self.spares is not None:
            self.spares.clean()
        self.containment.clean()
