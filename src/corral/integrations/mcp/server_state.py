"""The state of one server: a sandbox for each project root, and the background processes in it.

The policy is read again at each call. A change holds from the next call on, and ends the processes that run under the old policy.
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

MAX_PROJECTS = 8  # at a time; each has a keeper process of its own
MAX_OUTPUT_BYTES = 32 * 1024  # of each stream in a result; the rest is in a file
SPILL_BYTES = 16 * 1024 * 1024  # of that file, unless the policy sets it
MAX_SECONDS = 3600.0  # of one call, unless the policy sets a time limit
SWEEP_SECONDS = 60.0
# The call that the user approved, in the task that runs it: the approval lets no other call run.
approved_call: ContextVar[tuple[Call, Verdict] | None] = ContextVar("approved_call", default=None)


class Project:
    """A project root, its policy, and the sandbox in which its commands run."""

    def __init__(self, policy: loader.Policy, environ: Mapping[str, str]) -> None:
        self.policy = policy
        self.root = policy.config.project_root
        self._environ = environ
        self._log = audit_log.Log(policy.config, event="mcp", environ=environ)
        self.box = Sandbox(
            _config(policy.config),
            on_ask=lambda call, verdict: approved_call.get() == (call, verdict),
            on_result=lambda result: self._write(self._log.result, result),
        )
        # Telemetry goes to the global providers, which the program that starts the server sets.
        instrument(self.box, times_every_call=True)

    def check_log(self) -> None:
        """Raise AuditError if the log cannot be written and the policy requires it."""
        self._write(self._log.check)

    def log_verdict(self, call: Call, verdict: Verdict) -> None:
        """Log a call that was only checked."""
        self._write(self._log.verdict, call, verdict)

    def log_failure(self, call: Call, error: CorralError) -> None:
        """Log a call that did not run because corral failed."""
        self._write(self._log.failure, call, error)

    def _write(self, write: Callable[..., None], *about: object) -> None:
        try:
            write(*about)
        except AuditError as error:
            if self.policy.config.audit.required:
                raise
            print(f"corral: {error}; the policy accepts that", file=sys.stderr)

    def is_approved(self, call: Call, verdict: Verdict) -> bool:
        """Say whether the user has approved a call for this project before."""
        try:
            return approvals.find_approval(call, verdict, self.policy.config, self._environ) is not None
        except PolicyError:
            # Another user could have written the approvals, so they do not count.
            return False

    def fits_transaction(self, call: Call) -> bool:
        """Say whether a call runs in a transaction, whose changes wait for the user, instead of needing a question."""
        from corral.transactions.transaction import can_be_tried  # noqa: PLC0415  few policies use transactions

        return can_be_tried(self.box, call) and not self.is_approved(
            call, self.box.check(call.argv, shell=call.shell, cwd=call.cwd)
        )

    def transaction(self) -> Transaction:
        """Begin a transaction; raise if too many wait for the user already."""
        from corral.transactions.workspace import refuse_more  # noqa: PLC0415  as above

        refuse_more(self.box.config.project_root, os.environ)
        return self.box.transaction()

    def leave_waiting(self, tx: Transaction) -> str:
        """Keep a transaction's changes for the user's review, and return the hint for the agent."""
        from corral.transactions.transaction import keep_for_review  # noqa: PLC0415  as above

        fields, hint = keep_for_review(tx)
        log = audit_log.Log(self.policy.config, event="transaction", environ=self._environ)
        self._write(log.note, fields)
        return hint

    def time_limit(self, asked: float | None, default: float | None) -> float | None:
        """Return a command's time limit: the one asked for, but never more than the policy sets."""
        is_set = any(setting.key == "timeout_seconds" and setting.in_force for setting in self.policy.settings)
        maximum = self.policy.config.timeout_seconds if is_set else None
        wanted = asked if asked is not None else default
        return min((seconds for seconds in (wanted, maximum) if seconds is not None), default=None)


def _config(config: SandboxConfig) -> SandboxConfig:
    output = config.output
    if output.spill_bytes is None:
        output = output.replace(spill_bytes=SPILL_BYTES)
    size = min(config.max_output_bytes, MAX_OUTPUT_BYTES)
    # No time limit here: each call passes its own, and a background process has none.
    return config.replace(timeout_seconds=None, max_output_bytes=size, output=output)


class ServerState:
    """The state that all tools of a server share. The server works only in directories inside `bound`."""

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
        self._projects: dict[str, Project] = {}
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ServerState]:
        """Serve until the block ends, then end every process that was started."""
        try:
            async with anyio.create_task_group() as self._tasks:
                if self._sweeps:
                    self._tasks.start_soon(self._sweep)
                try:
                    yield self
                finally:
                    with anyio.CancelScope(shield=True):
                        await self.jobs.end()
                    self._tasks.cancel_scope.cancel()
        finally:
            for project in self._projects.values():
                project.box.close()

    def load(self, root: str) -> loader.Policy:
        """Load the policy of a root."""
        return loader.load(root, self.environ, profile=self._profile)

    async def project(self, root: str) -> Project:
        """Return the project of a root; a new one if the policy has changed."""
        policy = self.load(root)
        held = self._projects.get(policy.config.project_root)
        if held is not None and held.policy.config != policy.config:
            del self._projects[held.root]
            await self.jobs.end(project=held)
            await anyio.to_thread.run_sync(held.box.close)
            held = None
        if held is None:
            if len(self._projects) >= MAX_PROJECTS:
                raise PolicyError(f"this server works in {MAX_PROJECTS} project roots already; start another one")
            # Another call may have added it while the old one was closed.
            held = self._projects.setdefault(policy.config.project_root, Project(policy, self.environ))
        held.check_log()
        return held

    def root_for(self, uris: Sequence[str], cwd: str) -> str:
        """Return the project root of a call: the client's root that contains `cwd`, or its first one inside the bound."""
        if not uris:
            return self.bound
        roots = [path for path in map(_path_of, uris) if path and inside(path, self.bound.rstrip("/"))]
        if not roots:
            raise PolicyError(
                f"none of the client's roots ({', '.join(uris[:3])}) is a directory inside {self.bound}, the directory of this "
                "server; start it with --root and a directory that contains them"
            )
        wanted = os.path.realpath(cwd) if cwd.startswith("/") else ""
        holding = [root for root in roots if wanted and inside(wanted, root)]
        return max(holding, key=len, default=roots[0])

    def add_job(self, job: Job) -> None:
        """Add a started process, and read its output until it ends."""
        assert self._tasks is not None  # noqa: S101  a server serves only while it is open
        self.jobs.add(job)
        self._tasks.start_soon(_read_output, job)

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            await self.jobs.end(idle_seconds=IDLE_SECONDS)


async def _read_output(job: Job) -> None:
    try:
        await job.handle
    except CorralError as error:
        # The process has ended, but the log could not be written. The next call is refused for that.
        print(f"corral: {error}", file=sys.stderr)
    finally:
        job.output.wake()
    await job.settle()


def _path_of(uri: str) -> str:
    """Return the directory that a file URI names, or an empty string."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or "\0" in path:
        return ""
    real = os.path.realpath(path)
    return real if os.path.isdir(real) else ""
