"""Turns a tool's arguments into a running command: finds the project, asks the user if needed, and starts the command.

An answer of the user lets exactly the call run that the question showed, once.
"""

from asyncio import CancelledError, ensure_future, shield
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import anyio.to_thread
from mcp.server.elicitation import AcceptedElicitation, CancelledElicitation
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, ElicitationResult, ListRoots, Resolve
from mcp_types import ListRootsResult
from pydantic import BaseModel, Field

from corral._lib.terminal import clip, printable
from corral.audit.audit_log import Log
from corral.integrations.mcp.background_jobs import OutputBuffer
from corral.integrations.mcp.elicitation import CHANGED, NOBODY, SAID_NO, TOO_LONG
from corral.integrations.mcp.server_state import Project, ServerState, approved_call
from corral.integrations.telemetry.otel import tool_call
from corral.model.call import Call, Decision
from corral.model.errors import CorralError
from corral.model.grant import CLIENT
from corral.model.render_grant import allow_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from corral.model.call import Verdict
    from corral.model.result import SandboxResult
    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox
    from corral.transactions.transaction import Transaction

KEEP_ALIVE_SECONDS = 5.0  # clients give up on a call without a message after about a minute
LAST_LINE_COLUMNS = 200
ToolContext = Context[ServerState, Any]


class Answer(BaseModel):
    """A person's answer to a question."""

    answer: Literal["once", "no"] = Field(description="once: run this command now; no: do not run it")


def state_of(ctx: ToolContext) -> ServerState:
    """Return the server's state."""
    return ctx.request_context.lifespan_context


def session_of(ctx: ToolContext) -> str:
    """Return the id of the client's session, or an empty string. A client over pipes, and protocol 2026-07-28, has none."""
    return (ctx.headers or {}).get("mcp-session-id", "")


@contextmanager
def tool_errors(
    state: ServerState | None = None, call: Call | None = None, project: Project | None = None
) -> "Iterator[None]":
    """Raise ToolError instead of CorralError, which the client would not see. If a call is given, log its failure."""
    try:
        yield
    except CorralError as error:
        # If the log itself failed, the client learns that from the error.
        with suppress(CorralError):
            if project is not None and call is not None:
                project.log_failure(call, error)
            elif state is not None and call is not None:
                Log(event="mcp", environ=state.environ).failure(call, error)
        raise ToolError(str(error)) from error


async def client_roots(ctx: ToolContext) -> ListRoots | None:
    """Ask the client for its roots, if it has any."""
    capabilities = ctx.client_capabilities
    return ListRoots() if capabilities is not None and capabilities.roots is not None else None


async def project_of(
    ctx: ToolContext,
    roots: Annotated[ListRootsResult | None, Resolve(client_roots)],
    argv: list[str],
    shell: str,
    cwd: str,
) -> Project:
    """Return the project in which a call runs."""
    state = state_of(ctx)
    with tool_errors(state, Call((shell,) if shell else tuple(argv), bool(shell), cwd or None)):
        uris = [] if roots is None else [str(root.uri) for root in roots.roots]
        return await state.project(state.root_for(uris, cwd))


def call_of(argv: list[str], shell: str, cwd: str) -> Call:
    """Return the call that a tool's arguments describe."""
    if bool(argv) == bool(shell):
        raise ToolError("give either argv (a list: the program and its arguments) or shell (a bash command line)")
    return Call((shell,), True, cwd or None) if shell else Call(tuple(argv), False, cwd or None)


async def ask_permission(
    ctx: ToolContext, project: Annotated[Project, Resolve(project_of)], argv: list[str], shell: str, cwd: str
) -> Elicit[Answer] | str:
    """Ask the user about a call that needs approval. Otherwise return why not; empty if no question is needed."""
    call = call_of(argv, shell, cwd)
    if project.fits_transaction(call):
        return ""
    verdict = project.box.check(call.argv, shell=call.shell, cwd=call.cwd)
    if verdict.decision != Decision.ASK or project.is_approved(call, verdict):
        return ""
    if said := project.declined_text(call, verdict):
        return said
    capabilities = ctx.client_capabilities
    asking = capabilities.elicitation if capabilities is not None else None
    if asking is None or (asking.form is None and asking.url is not None):
        return _nobody(project, call, verdict)
    text = state_of(ctx).questions.text((project.root, session_of(ctx), call, verdict))
    return Elicit(text, Answer) if text else TOO_LONG


def _nobody(project: Project, call: Call, verdict: "Verdict") -> str:
    id_ = project.save_refusal(call, verdict)
    return f"{NOBODY} {allow_line(id_)}" if id_ else NOBODY


async def project_of_text(
    ctx: ToolContext, roots: Annotated[ListRootsResult | None, Resolve(client_roots)], shell: str
) -> Project:
    """Return the project in whose session a text runs."""
    return await project_of(ctx, roots, [], shell, "")


InProject = Annotated[Project, Resolve(project_of)]
InProjectOfText = Annotated[Project, Resolve(project_of_text)]
Permission = Annotated[ElicitationResult[Answer], Resolve(ask_permission)]


async def start(
    ctx: ToolContext,
    project: Project,
    permission: ElicitationResult[Answer],
    call: Call,
    *,
    tool: str,
    limit: float | None,
    output: OutputBuffer,
) -> "tuple[Handle, str]":
    """Start a call, with the user's approval if there is one. Return the handle and a note for a refusal."""
    verdict, note, by = _approved_verdict(ctx, project, permission, call)
    if verdict is not None and await state_of(ctx).project(project.root) is not project:
        verdict, note = None, CHANGED
    token = approved_call.set((call, verdict, by) if verdict is not None else None)
    try:
        with tool_errors(state_of(ctx), call, project):
            return await _start(project.box, call, tool=tool, limit=limit, output=output), note
    finally:
        approved_call.reset(token)


async def _start(
    box: "Sandbox | Transaction", call: Call, *, tool: str, limit: float | None, output: OutputBuffer
) -> "Handle":
    with tool_call(name=tool):
        return await box.astart(
            call.argv,
            shell=call.shell,
            cwd=call.cwd,
            timeout_seconds=limit,
            on_output=lambda _, data: output.feed(data),
        )


async def start_in_transaction(
    ctx: ToolContext, project: Project, call: Call, *, tool: str, limit: float | None, output: OutputBuffer
) -> "tuple[Transaction, Handle]":
    """Begin a transaction, and start a call in it."""
    with tool_errors(state_of(ctx), call, project):
        tx = await anyio.to_thread.run_sync(project.transaction)
        try:
            return tx, await _start(tx, call, tool=tool, limit=limit, output=output)
        except BaseException:
            tx.discard()
            raise


async def run_in_transaction(
    ctx: ToolContext, project: Project, call: Call, *, limit: float | None, output: OutputBuffer
) -> "tuple[SandboxResult, str]":
    """Run a call in a transaction. Return its result, and a hint that says where its changes are."""
    tx, handle = await start_in_transaction(ctx, project, call, tool="run_command", limit=limit, output=output)
    with tool_errors(state_of(ctx), call, project):
        async with tx:
            result = await finish(ctx, handle, output, limit=limit)
            return result, "" if result.denied else await anyio.to_thread.run_sync(project.leave_waiting, tx)


async def run_in_session(
    ctx: ToolContext, project: Project, text: str, *, limit: float | None, restart: bool, output: OutputBuffer
) -> "SandboxResult":
    """Run text in the client's shell session of a project. If the call is cancelled, interrupt it."""
    session = project.session(session_of(ctx))
    with tool_errors(state_of(ctx), Call((text,), True, None), project):
        if restart:
            await anyio.to_thread.run_sync(session.restart)
        with tool_call(name="run_in_session"):
            running = ensure_future(
                session.arun(text, timeout_seconds=limit, on_output=lambda _, data: output.feed(data))
            )
        try:
            await wait_with_progress(ctx, lambda: shield(running), output, total=limit)
            return await running
        finally:
            if not running.done():
                running.cancel()
                with anyio.CancelScope(shield=True), suppress(CorralError, CancelledError):
                    await running


def _approved_verdict(
    ctx: ToolContext, project: Project, permission: ElicitationResult[Answer], call: Call
) -> "tuple[Verdict | None, str, str]":
    """Return the verdict that the user approved, a note for the refusal of a call that needed approval, and where the yes came from."""
    verdict = project.box.check(call.argv, shell=call.shell, cwd=call.cwd)
    if verdict.decision != Decision.ASK:
        return None, "", ""
    if by := project.take_approval(call, verdict):
        return verdict, "", by
    if isinstance(permission, AcceptedElicitation) and not isinstance(permission.data, Answer):
        return None, str(permission.data), ""
    was_asked = state_of(ctx).questions.close((project.root, session_of(ctx), call, verdict))
    if not isinstance(permission, AcceptedElicitation) or permission.data.answer != "once":
        if was_asked and not isinstance(permission, CancelledElicitation):
            project.remember_no(call, verdict)
        return None, SAID_NO, ""
    return (verdict, "", CLIENT) if was_asked else (None, CHANGED, "")


async def finish(ctx: ToolContext, handle: "Handle", output: OutputBuffer, *, limit: float | None) -> "SandboxResult":
    """Wait for a command and return its result. If the call is cancelled, kill the command and wait until it is gone."""
    try:
        # The command's own time limit ends it; a limit here would lose the result.
        await wait_with_progress(ctx, lambda: handle, output, total=limit)
        return await handle
    finally:
        if handle.result is None:
            handle.kill()
            # The client is gone, so an error of the log cannot be reported now. The next call is refused for it.
            with anyio.CancelScope(shield=True), suppress(CorralError):
                await handle


async def wait_with_progress(
    ctx: ToolContext,
    wait: "Callable[[], Awaitable[object]]",
    output: OutputBuffer,
    *,
    total: float | None,
    seconds: float = inf,
) -> None:
    """Wait at most `seconds`, and report every few seconds that the call goes on, with the last line printed."""
    began_at = monotonic()
    while True:
        with anyio.move_on_after(min(KEEP_ALIVE_SECONDS, began_at + seconds - monotonic())):
            await wait()
            return
        passed = monotonic() - began_at
        if passed >= seconds:
            return
        line = clip(printable(output.last_line().strip()), LAST_LINE_COLUMNS, "…")
        await ctx.report_progress(round(passed, 1), total, line or "running, nothing printed yet")
