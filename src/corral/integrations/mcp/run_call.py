"""How a tool's arguments become a call that may run: in which root, under which policy, with whose word, and for how long.

A person's answer lets exactly the call run that the person was shown, once.
"""

from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import anyio.to_thread
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, ElicitationResult, ListRoots, Resolve
from mcp_types import ListRootsResult
from pydantic import BaseModel, Field

from corral._lib.terminal import clip, printable
from corral.audit.audit_log import Log as AuditLog
from corral.integrations.mcp.background_jobs import OutputBuffer
from corral.integrations.mcp.elicitation import CHANGED, NOBODY, SAID_NO, TOO_LONG
from corral.integrations.mcp.server_state import Project, ServerState, approved_call
from corral.integrations.telemetry.otel import tool_call
from corral.model.call import Call, Decision
from corral.model.errors import CorralError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from corral.model.call import Verdict
    from corral.model.result import SandboxResult
    from corral.runtime.handle import Handle
    from corral.transactions.transaction import Transaction

KEEP_ALIVE_SECONDS = 5.0  # clients give up on a call that says nothing for about a minute
LAST_LINE_COLUMNS = 200
ToolContext = Context[ServerState, Any]


class Answer(BaseModel):
    """What a person says to a question."""

    answer: Literal["once", "no"] = Field(description="once: run this command now; no: do not")


def state_of(ctx: ToolContext) -> ServerState:
    """Return what all calls share."""
    return ctx.request_context.lifespan_context


async def client_roots(ctx: ToolContext) -> ListRoots | None:
    """Ask the client for its roots, if it has any to tell."""
    capabilities = ctx.client_capabilities
    return ListRoots() if capabilities is not None and capabilities.roots is not None else None


async def place_of(
    ctx: ToolContext,
    roots: Annotated[ListRootsResult | None, Resolve(client_roots)],
    argv: list[str],
    shell: str,
    cwd: str,
) -> Project:
    """Return where a call is to run."""
    desk = state_of(ctx)
    try:
        uris = [] if roots is None else [str(root.uri) for root in roots.roots]
        return await desk.place(desk.root_for(uris, cwd))
    except CorralError as error:
        raise _failed(desk, Call((shell,) if shell else tuple(argv), bool(shell), cwd or None), error) from error


def call_of(argv: list[str], shell: str, cwd: str) -> Call:
    """Return the call that a tool's arguments name."""
    if bool(argv) == bool(shell):
        raise ToolError("give argv (a list: the program and its arguments) or shell (a bash command line), one of them")
    return Call((shell,), True, cwd or None) if shell else Call(tuple(argv), False, cwd or None)


async def permission(
    ctx: ToolContext, place: Annotated[Project, Resolve(place_of)], argv: list[str], shell: str, cwd: str
) -> Elicit[Answer] | str:
    """Ask a person where the guard says ask; else return why nobody was, or nothing where there was no need."""
    call = call_of(argv, shell, cwd)
    verdict = place.box.check(call.argv, shell=call.shell, cwd=call.cwd)
    if verdict.decision != Decision.ASK or place.is_approved(call, verdict):
        return ""
    capabilities = ctx.client_capabilities
    asking = capabilities.elicitation if capabilities is not None else None
    if asking is None or (asking.form is None and asking.url is not None):
        return NOBODY
    text = state_of(ctx).questions.text(call, verdict)
    return Elicit(text, Answer) if text else TOO_LONG


async def permission_or_trial(
    ctx: ToolContext, place: Annotated[Project, Resolve(place_of)], argv: list[str], shell: str, cwd: str
) -> Elicit[Answer] | str:
    """Ask nobody where a call is tried; else as `permission` does."""
    if place.can_be_tried(call_of(argv, shell, cwd)):
        return ""
    return await permission(ctx, place, argv, shell, cwd)


Where = Annotated[Project, Resolve(place_of)]
Said = Annotated[ElicitationResult[Answer], Resolve(permission_or_trial)]


async def start(
    ctx: ToolContext,
    place: Project,
    said: ElicitationResult[Answer],
    call: Call,
    *,
    tool: str,
    limit: float | None,
    log: OutputBuffer,
) -> "tuple[Handle, str]":
    """Start a call, with a person's word where one was given; and return what is to be added to a refusal."""
    verdict, note = _settled(ctx, place, said, call)
    if verdict is not None and await state_of(ctx).place(place.root) is not place:
        verdict, note = None, CHANGED
    token = approved_call.set((call, verdict) if verdict is not None else None)
    try:
        with tool_call(name=tool):
            handle = await place.box.astart(
                call.argv,
                shell=call.shell,
                cwd=call.cwd,
                timeout_seconds=limit,
                on_output=lambda _, data: log.feed(data),
            )
    except CorralError as error:
        raise _failed(state_of(ctx), call, error, place) from error
    finally:
        approved_call.reset(token)
    return handle, note


async def start_in_transaction(
    ctx: ToolContext, place: Project, call: Call, *, tool: str, limit: float | None, log: OutputBuffer
) -> "tuple[Transaction, Handle]":
    """Begin a transaction, and start a call in it."""
    try:
        tx = await anyio.to_thread.run_sync(place.transaction)
        try:
            with tool_call(name=tool):
                handle = await tx.astart(
                    call.argv,
                    shell=call.shell,
                    cwd=call.cwd,
                    timeout_seconds=limit,
                    on_output=lambda _, data: log.feed(data),
                )
        except BaseException:
            tx.discard()
            raise
    except CorralError as error:
        raise _failed(state_of(ctx), call, error, place) from error
    return tx, handle


async def run_in_transaction(
    ctx: ToolContext, place: Project, call: Call, *, limit: float | None, log: OutputBuffer
) -> "tuple[SandboxResult, str]":
    """Run a call in a transaction, and return its result and what became of its changes."""
    tx, handle = await start_in_transaction(ctx, place, call, tool="run_command", limit=limit, log=log)
    try:
        async with tx:
            try:
                await wait_with_progress(ctx, lambda: handle, log, total=limit)
                result = await handle
            finally:
                await kill_and_wait(handle)
            said = "" if result.denied else await anyio.to_thread.run_sync(place.leave_waiting, tx)
            return result, said
    except CorralError as error:
        raise _failed(state_of(ctx), call, error, place) from error


def _settled(
    ctx: ToolContext, place: Project, said: ElicitationResult[Answer], call: Call
) -> "tuple[Verdict | None, str]":
    """Return what a person agreed to, or what to add to the refusal of a call that wanted asking."""
    verdict = place.box.check(call.argv, shell=call.shell, cwd=call.cwd)
    if verdict.decision != Decision.ASK:
        return None, ""
    if place.is_approved(call, verdict):
        return verdict, ""
    if isinstance(said, AcceptedElicitation) and not isinstance(said.data, Answer):
        return None, str(said.data)
    is_what_was_asked = state_of(ctx).questions.close(call, verdict)
    if not isinstance(said, AcceptedElicitation) or said.data.answer != "once":
        return None, SAID_NO
    return (verdict, "") if is_what_was_asked else (None, CHANGED)


def _failed(desk: ServerState, call: Call, error: CorralError, place: Project | None = None) -> ToolError:
    """Write that corral itself failed, and return what the client is told of it."""
    # Where the log is what failed, the client hears of it.
    with suppress(CorralError):
        if place is None:
            AuditLog(event="mcp", environ=desk.environ).failure(call, error)
        else:
            place.tell_failure(call, error)
    return ToolError(str(error))


async def kill_and_wait(handle: "Handle") -> None:
    """End what a call that was cancelled left running, and wait until it is gone."""
    if handle.result is None:
        handle.kill()
        # Nobody is there any more to hear that the log cannot be written; the next call is refused for it.
        with anyio.CancelScope(shield=True), suppress(CorralError):
            await handle


async def wait_with_progress(
    ctx: ToolContext,
    wait: "Callable[[], Awaitable[object]]",
    log: OutputBuffer,
    *,
    total: float | None,
    seconds: float = inf,
) -> None:
    """Wait, no longer than so long, and tell the client every few seconds that the call goes on and what was printed last."""
    began_at = monotonic()
    while True:
        with anyio.move_on_after(min(KEEP_ALIVE_SECONDS, began_at + seconds - monotonic())):
            await wait()
            return
        passed = monotonic() - began_at
        if passed >= seconds:
            return
        line = clip(printable(log.last_line().strip()), LAST_LINE_COLUMNS, "…")
        await ctx.report_progress(round(passed, 1), total, line or "running, nothing printed yet")
