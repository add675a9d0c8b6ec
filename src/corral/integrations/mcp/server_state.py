"""The state of one server: a sandbox for each project root, and the background processes in it.

The policy is read again at each call. A change holds from the next call on, and ends the processes that run under the old policy.
"""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from time import monotonic, time
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread

from corral.audit import audit_log
from corral.guard.path_zones import inside
from corral.integrations.mcp.background_jobs import IDLE_SECONDS, JobError, Jobs
from corral.integrations.mcp.elicitation import Questions
from corral.integrations.telemetry.otel import instrument
from corral.model.errors import AuditError, CorralError, PolicyError
from corral.model.grant import FAMILY, ONCE, POLICY, PROJECT, Yes
from corral.model.render_grant import declined_text
from corral.policy import loader
from corral.policy.answers import approvals
from corral.policy.answers.family_grants import NEVER, NO, covering, find_answer, store_answer, use_family_grant
from corral.policy.answers.family_grants import POLICY as FROM_POLICY
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from anyio.abc import TaskGroup

    from corral.integrations.mcp.background_jobs import Job
    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig
    from corral.runtime.shell.session import Session
    from corral.transactions.transaction import Transaction

MAX_PROJECTS = 8  # at a time; each has a keeper process of its own
MAX_SESSIONS = 8  # shell sessions at a time in one project; each has a warden of its own
MAX_OUTPUT_BYTES = 32 * 1024  # of each stream in a result; the rest is in a file
SPILL_BYTES = 16 * 1024 * 1024  # of that file, unless the policy sets it
MAX_SECONDS = 3600.0  # of one call, unless the policy sets a time limit
SWEEP_SECONDS = 60.0
# The call that the user approved, in the task that runs it: the approval lets no other call run.
_projects_of_call: ContextVar[list[Project] | None] = ContextVar("projects_of_call", default=None)
approved_call: ContextVar[tuple[Call, Verdict, str] | None] = ContextVar("approved_call", default=None)


def _was_approved(call: Call, verdict: Verdict) -> bool | Yes:
    found = approved_call.get()
    return Yes(found[2]) if found is not None and found[:2] == (call, verdict) else False


class Project:
    """A project root, its policy, and the sandbox in which its commands run."""

    def __init__(self, policy: loader.Policy, environ: Mapping[str, str]) -> None:
        self.policy = policy
        self.root = policy.config.project_root
        self.calls = 0  # tool calls that use it now
        self.used_at = monotonic()
        self._environ = environ
        self._sessions: dict[str, tuple[Session, float]] = {}  # by client, with the time of its last use
        self._log = audit_log.Log(policy.config, event="mcp", environ=environ)
        self.box = Sandbox(
            _config(policy.config),
            on_ask=_was_approved,
            on_result=lambda result: self._write(self._log.result, result),
        )
        # Telemetry goes to the global providers, which the program that starts the server sets.
        instrument(self.box, times_every_call=True)

    def session(self, client: str) -> Session:
        """Return the shell session of a client; raise if too many clients have one."""
        found = self._sessions.get(client)
        if found is None:
            if len(self._sessions) >= MAX_SESSIONS:
                raise JobError(
                    f"{MAX_SESSIONS} clients have a session in this project already; wait until one has ended"
                )
            found = self.box.session(), 0.0
        self._sessions[client] = found[0], monotonic()
        return found[0]

    def end_sessions(self, idle_seconds: float = 0.0, client: str | None = None) -> None:
        """End the shell sessions of a client, or of all, that no call has used for some time."""
        used_before = monotonic() - idle_seconds
        for owner, (session, used_at) in list(self._sessions.items()):
            if used_at <= used_before and client in (None, owner):
                del self._sessions[owner]
                session.close()

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
        """Say whether the user has approved a call for this project before, or its kind of command."""
        try:
            if approvals.find_approval(call, verdict, self.policy.config, self._environ) is not None:
                return True
            return bool(verdict.grants) and covering(verdict, self.policy.config, self._environ) is not None
        except PolicyError:
            # Another user could have written the approvals, so they do not count.
            return False

    def take_approval(self, call: Call, verdict: Verdict) -> str:
        """Return for how long the user has approved a call that runs now, or "". Counts the use: a yes for one run is used up."""
        try:
            found = approvals.take_approval(call, verdict, self.policy.config, self._environ)
            if found is not None:
                return PROJECT if found.uses is None else ONCE
            given = covering(verdict, self.policy.config, self._environ) if verdict.grants else None
            if given is None:
                return ""
            use_family_grant(given, self.policy.config, self._environ)
        except PolicyError:
            return ""
        return POLICY if given.channel == FROM_POLICY else FAMILY

    def declined_text(self, call: Call, verdict: Verdict) -> str:
        """Return the user's stored no to this question, or "" if the user may be asked."""
        try:
            no = find_answer(call, verdict, self.policy.config, self._environ)
        except PolicyError:
            return ""
        return declined_text(no.answered_at, time(), never=no.answer == NEVER) if no is not None else ""

    def remember_no(self, call: Call, verdict: Verdict) -> None:
        """Remember the user's no, so that an agent that repeats the call does not repeat the question."""
        if not verdict.grants:
            return
        try:
            store_answer(NO, call, verdict, self.policy.config, self._environ)
        except (PolicyError, OSError) as error:
            print(f"corral: the answer could not be stored: {error}", file=sys.stderr)

    def save_refusal(self, call: Call, verdict: Verdict) -> str:
        """Save a call that nobody could be asked about, and return its id for `corral allow`; "" where that is not possible."""
        from corral.policy.answers.refusals import save_refusal  # noqa: PLC0415  most clients can ask

        try:
            return save_refusal(call, verdict, self.root, self._environ, host="mcp")
        except (PolicyError, OSError):
            # The call is refused in any case; only the line for the user is missing.
            return ""

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
            # In a loop: while one is closed, other calls may add others.
            while len(self._projects) >= MAX_PROJECTS and policy.config.project_root not in self._projects:
                await self._let_go()
            held = self._projects.get(policy.config.project_root)
            if held is None:
                held = self._projects[policy.config.project_root] = Project(policy, self.environ)
        self._use(held)
        held.check_log()
        return held

    @contextmanager
    def call(self) -> Iterator[None]:
        """Keep the projects that a tool call uses open until the block ends."""
        used: list[Project] = []
        token = _projects_of_call.set(used)
        try:
            yield
        finally:
            _projects_of_call.reset(token)
            for project in used:
                project.calls -= 1
                project.used_at = monotonic()

    def _use(self, project: Project) -> None:
        used = _projects_of_call.get()
        if used is not None and project not in used:
            used.append(project)
            project.calls += 1

    async def _let_go(self) -> None:
        """Close the project that was not used for the longest time."""
        idle = [each for each in self._projects.values() if not each.calls and not self.jobs.is_used(each)]
        if not idle:
            raise PolicyError(
                f"commands run in {MAX_PROJECTS} project roots of this server already; wait until those of one root have ended"
            )
        oldest = min(idle, key=lambda project: project.used_at)
        del self._projects[oldest.root]
        await anyio.to_thread.run_sync(oldest.box.close)

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

    async def end_session(self, client: str) -> None:
        """End everything that a client has left running."""
        await self.jobs.end(session=client)
        for project in tuple(self._projects.values()):
            await anyio.to_thread.run_sync(project.end_sessions, 0.0, client)

    def add_job(self, job: Job) -> None:
        """Add a started process, and read its output until it ends."""
        assert self._tasks is not None  # noqa: S101  a server serves only while it is open
        self.jobs.add(job)
        self._tasks.start_soon(_read_output, job)

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            await self.jobs.end(idle_seconds=IDLE_SECONDS)
            for project in tuple(self._projects.values()):
                await anyio.to_thread.run_sync(project.end_sessions, IDLE_SECONDS)


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
