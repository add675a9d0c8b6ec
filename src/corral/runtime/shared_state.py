"""The state that a sandbox shares with its transactions: containment, wardens, environment and callbacks."""

from __future__ import annotations

from _weakrefset import WeakSet

from corral._lib.fork_lock import ProcessOwner
from corral.containment.layers import unmet_requirement
from corral.containment.state import ContainmentState
from corral.git.membrane import Membrane
from corral.git.ticker import watch
from corral.guard.machine import Machine
from corral.model.errors import ContainmentError
from corral.runtime import files
from corral.runtime.environment import HostEnvironment
from corral.runtime.pool import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from typing import Protocol

    from corral.containment.network.hold_answers import OnHold
    from corral.guard.machine import Shown
    from corral.model.call import Call, Verdict
    from corral.model.grant import Grant, Yes
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig
    from corral.runtime.driver import OnResult
    from corral.runtime.observers import Observer
    from corral.runtime.processes import WardenClient

    OnAsk = Callable[[Call, Verdict], bool | Yes | Awaitable[bool | Yes]]

    class Spares(Protocol):
        """The prepared and open transactions of a sandbox."""

        def is_open(self) -> bool: ...
        def stop(self) -> None: ...
        def clean(self) -> None: ...

    class Session(Protocol):
        """A shell that lasts."""

        def close(self) -> None: ...

    class Opened(Protocol):
        """The openings of one call: the config under which it runs, and the helpers that serve it."""

        config: SandboxConfig
        variables: Mapping[str, str]  # set for the call

        def close(self) -> None: ...

    OpenGrants = Callable[[SandboxConfig, tuple[Grant, ...]], Opened]


class SharedState:
    """Holds the shared parts of one sandbox. Any thread may use it."""

    def __init__(
        self,
        config: SandboxConfig,
        on_ask: OnAsk | None,
        on_result: OnResult | None,
        observers: Iterable[Observer],
        *,
        on_hold: OnHold | None = None,
        hold_seconds: float = 0.0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self._variables = variables or {}  # for every command, over the host's own
        self.on_ask = on_ask
        self.on_result = on_result
        self.observers = list(observers)
        self.on_hold, self.hold_seconds = on_hold, hold_seconds
        membrane = None if config.containment.backend == "none" else Membrane(config)
        self.containment = ContainmentState(config, membrane, on_hold=on_hold, hold_seconds=hold_seconds)
        self.pool = Pool(
            self.containment.plan,
            lend=self.containment.lend,
            generation=self.containment.generation,
            added_masks=self.containment.added_masks,
            probes=self.containment.known_layers,
            settle=None if membrane is None else membrane.settle,
        )
        if membrane is not None:
            watch(membrane, self.pool)
        self.spares: Spares | None = None  # created by the first transaction
        self.granted: set[GrantedSandbox] = set()  # the sandboxes of granted calls that run now
        self.sessions: WeakSet[Session] = WeakSet()  # the shells that last
        self._environment = HostEnvironment({*config.env_allowlist, *config.output.exported})
        self._seen: tuple[dict[str, str], Machine] = ({}, Machine.of(config))

    def allow_exported(self, names: Collection[str]) -> None:
        """Pass these variables to the commands that start from now on, besides those that the config allows."""
        self._environment.allow({*self.config.env_allowlist, *names})

    def look(self) -> tuple[dict[str, str], Machine]:
        """Return the environment for commands and the guard's view of the machine. Both are rebuilt when one has changed."""
        environment = self._environment.scrubbed()
        seen = self._seen
        if environment is not seen[0]:
            self._seen = seen = (environment, Machine.of(self.config, self.containment.temporary()))
        return seen

    def admit(self, warden: WardenClient, config: SandboxConfig) -> ProcessOwner:
        """Check that a warden has all layers that a config requires; ContainmentError if it has not. Returns the pool's admission."""
        status = warden.backend, warden.enforcement, warden.missing_layers
        unmet = unmet_requirement(config, *status)
        if unmet:
            warden.close()
            self.pool.retire()
            raise ContainmentError(unmet)
        if self.pool.admission is None or not self.pool.admission.is_current:
            self._environment.replace({**self.containment.variables(*status), **self._variables})
            self.pool.admission = ProcessOwner()
        return self.pool.admission

    def scratch_for(self, path: str) -> Shown:
        """Return the commands' own /tmp and home, and their places on the host. Creates them if `path` may lie in one."""
        is_admitted = self.pool.admission is not None and self.pool.admission.is_current
        if not is_admitted and files.may_be_scratch(path, self.config):
            warden = self.pool.acquire()
            self.admit(warden, self.config)
            self.pool.release(warden)
        return self.containment.shown()

    def renew(self, *, in_transaction: bool) -> str:
        """Recreate the containment if a protected path was replaced on the host. Returns why no command may start, or ""."""
        remaining = self.containment.remaining()
        if remaining:
            return remaining
        if not in_transaction:
            self.containment.synchronize(self._is_busy)
            if self.containment.is_outdated() and not self._is_busy():
                with self.containment.renewal:
                    self._renew()
        if not self.containment.replaced():
            return ""
        with self.containment.renewal:
            path = self.containment.replaced()  # again: another thread may have recreated it meanwhile
            if path == self.config.project_root:
                return self.containment.project_error() or f"{path} was replaced; try again, or make a new sandbox"
            if not path or in_transaction:  # a transaction never applies changes to protected paths
                return ""
            has_transactions = self.spares is not None and self.spares.is_open()
            if not has_transactions and self.pool.is_busy() and self.containment.repair(self.pool.remount):
                return ""
            if has_transactions or self.pool.is_busy():
                return (
                    f"{path} was replaced or removed by a process outside the sandbox, so commands could now write it; "
                    "let the running commands end, or make a new sandbox"
                )
            self._renew()
            return ""

    def _is_busy(self) -> bool:
        return self.pool.is_busy() or (self.spares is not None and self.spares.is_open())

    def _renew(self) -> None:
        if self.spares is not None:
            self.spares.stop()
        # In one step with the keeper's end: the next keeper must not get a plan that was made for this one.
        self.pool.retire(self.containment.renew)
        if self.spares is not None:
            self.spares.clean()
            self.spares = None
        self.pool.admission = None

    def close(self) -> None:
        """End all commands, wardens and the keeper, and remove their directories."""
        for each in tuple(self.granted):
            each.close()
        for session in tuple(self.sessions):
            session.close()
        was_busy = self.pool.is_busy()
        if self.spares is not None:
            self.spares.stop()
        self.pool.close()
        if self.spares is not None:
            self.spares.clean()
        self.containment.clean(was_busy=was_busy)


class GrantedSandbox:
    """The sandbox of one granted call, so that nothing else gets its openings. It ends with the call, or with `parent`."""

    def __init__(self, parent: SharedState, opened: Opened) -> None:
        self._parent = parent
        self._opened = opened
        self.config = opened.config
        try:
            self.state = SharedState(
                opened.config,
                None,
                None,
                (),
                on_hold=parent.on_hold,
                hold_seconds=parent.hold_seconds,
                variables=opened.variables,
            )
        except BaseException:
            opened.close()
            raise
        parent.granted.add(self)

    def refuse_partial(self, enforcement: str) -> None:
        """Raise where the kernel lacks a layer. A policy that accepts less accepts it without openings."""
        if enforcement != "full":
            raise ContainmentError(
                "a call with grants needs every layer of containment, and this machine lacks some; run: corral doctor"
            )

    def end(self, result: SandboxResult) -> None:
        """Close the sandbox and report the result of its call."""
        self.close()
        if self._parent.on_result is not None:
            self._parent.on_result(result)

    def close(self) -> None:
        """End everything that was started for the call. Closing twice is harmless."""
        if self not in self._parent.granted:
            return
        self._parent.granted.discard(self)
        try:
            self.state.close()
        finally:
            self._opened.close()
