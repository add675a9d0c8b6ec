"""What one server works with: a sandbox for each project root, made under the owner's policy, and the processes that run on in it.

The policy is read again at each call: what the owner changes holds from the next one, and ends what runs under the old.
"""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from contextvars import ContextVar
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread

from corral.audit import audit_log
from corral.guard.path_zones import inside
from corral.integrations.mcp.background_jobs import IDLE_SECONDS, Jobs
from corral.integrations.mcp.elicitation import Questions
from corral.integrations.telemetry.otel import instrument
from corral.model.errors import AuditError, CorralError, PolicyError
from corral.policy import approvals, loader
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from corral.integrations.mcp.background_jobs import Job
    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig
    from corral.transactions.transaction import Transaction

MAX_PLACES = 8  # project roots at a time; each has a keeper of its own
MAX_OUTPUT_BYTES = 32 * 1024  # of each stream in a result; what is more is in a file
SPILL_BYTES = 16 * 1024 * 1024  # of an output that is cut, where the policy says nothing
MAX_SECONDS = 3600.0  # for one call, where the policy sets no time
SWEEP_SECONDS = 60.0
# The call that a person has agreed to, in the task that runs it: nothing else is let through by that answer.
approved_call: ContextVar[tuple[Call, Verdict] | None] = ContextVar("agreed", default=None)


class Project:
    """A project root, the policy that holds there, and the sandbox in which its commands run."""

    def __init__(self, found: loader.Policy, environ: Mapping[str, str]) -> None:
        self.policy = found
        self.root = found.config.project_root
        self._environ = environ
        self._log = audit_log.Log(found.config, event="mcp", environ=environ)
        self.box = Sandbox(
            _config(found), on_ask=_is_agreed, on_result=lambda result: self._tell(self._log.result, result)
        )
        # By the global providers: who starts the server sets them. The SDK makes a span of each call, and counts no time.
        instrument(self.box, times_every_call=True)

    def check_log(self) -> None:
        """Raise where what happens could not be told to the owner, and the owner does not accept that."""
        self._tell(self._log.check)

    def tell_verdict(self, call: Call, verdict: Verdict) -> None:
        """Write what was said of a call that was only judged."""
        self._tell(self._log.verdict, call, verdict)

    def tell_failure(self, call: Call, error: CorralError) -> None:
        """Write that a call was not run because corral itself failed."""
        self._tell(self._log.failure, call, error)

    def _tell(self, write: Callable[..., None], *about: object) -> None:
        try:
            write(*about)
        except AuditError as error:
            if self.policy.config.audit.required:
                raise
            print(f"corral: {error}; the policy accepts that", file=sys.stderr)

    def is_approved(self, call: Call, verdict: Verdict) -> bool:
        """Say whether the owner has approved a call for this project before."""
        try:
            return approvals.find_approval(call, verdict, self.policy.config, self._environ) is not None
        except PolicyError:
            # Approvals that somebody else could have written are none.
            return False

    def can_be_tried(self, call: Call) -> bool:
        """Say whether a call runs in a transaction, whose changes wait for the owner, instead of being asked about."""
        from corral.transactions.transaction import can_be_tried  # noqa: PLC0415  most owners want to be asked

        return can_be_tried(self.box, call) and not self.is_approved(
            call, self.box.check(call.argv, shell=call.shell, cwd=call.cwd)
        )

    def transaction(self) -> Transaction:
        """Begin a transaction whose changes will wait for the owner, unless too many do."""
        from corral.transactions.workspace import refuse_more  # noqa: PLC0415  as above

        refuse_more(self.box.config.project_root, os.environ)
        return self.box.transaction()

    def leave_waiting(self, tx: Transaction) -> str:
        """Keep what a transaction changed for the owner, and return what the agent is told."""
        from corral.transactions.transaction import keep_for_review  # noqa: PLC0415  as above

        fields, said = keep_for_review(tx)
        log = audit_log.Log(self.policy.config, event="transaction", environ=self._environ)
        self._tell(log.note, fields)
        return said

    def seconds(self, asked: float | None, otherwise: float | None) -> float | None:
        """Return the time a command has: what was asked for, but never more than the owner's policy says."""
        named = any(setting.key == "timeout_seconds" and setting.in_force for setting in self.policy.settings)
        owners = self.policy.config.timeout_seconds if named else None
        wanted = asked if asked is not None else otherwise
        return min((seconds for seconds in (wanted, owners) if seconds is not None), default=None)


def _config(found: loader.Policy) -> SandboxConfig:
    config = found.config
    output = config.output
    if output.spill_bytes is None:
        output = output.replace(spill_bytes=SPILL_BYTES)
    kept = min(config.max_output_bytes, MAX_OUTPUT_BYTES)
    # Each call names its time; a server that runs in the background has none.
    return config.replace(timeout_seconds=None, max_output_bytes=kept, output=output)


def _is_agreed(call: Call, verdict: Verdict) -> bool:
    return approved_call.get() == (call, verdict)


class ServerState:
    """All that the tools share."""

    def __init__(
        self, bound: str, environ: Mapping[str, str], *, profile: str | None = None, sweeps: bool = False
    ) -> None:
        self.bound = os.path.realpath(bound)
        if not os.path.isdir(self.bound):
            raise PolicyError(f"--root {bound} is not an existing directory; create it first or name another")
        self.jobs = Jobs()
        self.questions = Questions()
        self.environ = environ
        self._profile = profile
        self._sweeps = sweeps
        self._places: dict[str, Project] = {}
        self._drivers: TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ServerState]:
        """Be there for a server's life; whatever was started is gone afterwards."""
        try:
            async with anyio.create_task_group() as self._drivers:
                if self._sweeps:
                    self._drivers.start_soon(self._sweep)
                try:
                    yield self
                finally:
                    with anyio.CancelScope(shield=True):
                        await self.jobs.end()
                    self._drivers.cancel_scope.cancel()
        finally:
            for place in self._places.values():
                place.box.close()

    def load(self, root: str) -> loader.Policy:
        """Return the policy of a root."""
        return loader.load(root, self.environ, profile=self._profile)

    async def place(self, root: str) -> Project:
        """Return the place of a root, made anew where the owner's policy has changed."""
        found = self.load(root)
        held = self._places.get(found.config.project_root)
        if held is not None and held.policy.config != found.config:
            del self._places[held.root]
            await self.jobs.end(place=held)
            await anyio.to_thread.run_sync(held.box.close)
            held = None
        if held is None:
            if len(self._places) >= MAX_PLACES:
                raise PolicyError(f"this server works in {MAX_PLACES} project roots already; start another one")
            # Another call may have made it while the old one was closed.
            held = self._places.setdefault(found.config.project_root, Project(found, self.environ))
        held.check_log()
        return held

    def root_for(self, uris: Sequence[str], cwd: str) -> str:
        """Return the project root of a call: that of the client's which holds `cwd`, or its first; never one outside the bound."""
        if not uris:
            return self.bound
        roots = [path for path in map(_path, uris) if path and inside(path, self.bound.rstrip("/"))]
        if not roots:
            raise PolicyError(
                f"none of the client's roots ({', '.join(uris[:3])}) is a directory inside {self.bound}, which this server is "
                "bound to; start it with --root naming a directory that holds them"
            )
        wanted = os.path.realpath(cwd) if cwd.startswith("/") else ""
        holding = [root for root in roots if wanted and inside(wanted, root)]
        return max(holding, key=len, default=roots[0])

    def keep(self, job: Job) -> None:
        """Take a process that was started, and read what it prints until it ends."""
        assert self._drivers is not None  # noqa: S101  a server serves while it is open
        self.jobs.add(job)
        self._drivers.start_soon(_drive, job)

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            await self.jobs.end(idle_seconds=IDLE_SECONDS)


async def _drive(job: Job) -> None:
    try:
        await job.handle
    except CorralError as error:
        # It has ended; that could not be written to the owner's log, and the next call is refused for it.
        print(f"corral: {error}", file=sys.stderr)
    finally:
        job.log.ring()
    await job.settle()


def _path(uri: str) -> str:
    """Return the directory that a root names, or nothing."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or "\0" in path:
        return ""
    real = os.path.realpath(path)
    return real if os.path.isdir(real) else ""
