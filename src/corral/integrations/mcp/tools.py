"""The tools and the resource of the MCP server: arguments in, a judged and contained call, a short text and the whole record out.

A refusal is a result like any other. What a call started ends with it, however it ends.
"""

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import Field

from corral import __version__
from corral._lib.terminal import clip, printable
from corral.integrations.mcp import schemas
from corral.integrations.mcp.background_jobs import Job, OutputBuffer
from corral.integrations.mcp.run_call import (
    Said,
    ToolContext,
    Where,
    call_of,
    kill_and_wait,
    run_in_transaction,
    start,
    start_in_transaction,
    state_of,
    wait_with_progress,
)
from corral.integrations.mcp.server_state import MAX_SECONDS, ServerState
from corral.integrations.mcp.structured_content import choose_record_form
from corral.integrations.mcp.summary import process_text, result_text, verdict_text
from corral.integrations.telemetry.otel import record_verdict
from corral.model.errors import CorralError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LAST_LINE_BYTES = 4096
MAX_WAIT_SECONDS = 50.0  # of read_output; below what clients give a call
MAX_GRACE_SECONDS = 30.0
MAX_NAMES = 5  # of unknown arguments that are repeated in an error
MAX_NAME_COLUMNS = 60
INSTRUCTIONS = (
    "Commands run inside the project, contained by the kernel; the network is off unless the owner's policy grants it, all of it or destinations by name. "
    "A refused call is a result that says why and what to do instead: do that, or ask the owner; trying the same "
    "in other words does not help. Use start_process for servers and whatever outlives one call. The text of a result is what the command "
    "printed, then lines in [corral: ...] on how it ended (a printed line that looks like one begins with a backslash); "
    "structured content, where there is any, is the whole record. "
    "A result with a transaction has changed nothing yet: its hint says what the owner can do. The policy is the resource corral://policy."
)

WOULD_BE_TRIED = (
    "run_command and start_process ask nobody: it runs in a transaction, and its changes wait for the owner."
)

Words = Annotated[
    list[str],
    Field(
        description="The program and its arguments, not passed through a shell. Give argv or shell.", max_length=4096
    ),
]
Text = Annotated[str, Field(description="A bash command line, instead of argv.", max_length=256 * 1024)]
Directory = Annotated[
    str, Field(description="Where it starts: relative to the project's root, or absolute in it.", max_length=4096)
]
Seconds = Annotated[
    float | None,
    Field(description="Wall-clock limit; the owner's policy may set a lower one.", gt=0, le=MAX_SECONDS),
]
NO_WORDS: list[str] = []
ProcessId = Annotated[str, Field(description="What start_process gave.", max_length=64)]


async def run_command(
    ctx: ToolContext,
    *,
    place: Where,
    said: Said,
    argv: Words = NO_WORDS,
    shell: Text = "",
    cwd: Directory = "",
    timeout_seconds: Seconds = None,
) -> CallToolResult:
    """Run a command to its end, contained in the project, and return its result.

    A refused command is a result with denied=true, the reason and what to do instead.
    """
    log = OutputBuffer(LAST_LINE_BYTES)
    limit = place.seconds(timeout_seconds, place.policy.config.timeout_seconds)
    call = call_of(argv, shell, cwd)
    if place.can_be_tried(call):
        result, told = await run_in_transaction(ctx, place, call, limit=limit, log=log)
        data = schemas.result_data(result)
        return _ran(data | {"hint": f"{told} {data['hint']}".strip()})
    handle, note = await start(ctx, place, said, call, tool="run_command", limit=limit, log=log)
    try:
        # Its own time limit ends it; ours would lose the result.
        await wait_with_progress(ctx, lambda: handle, log, total=limit)
        result = await handle
    except CorralError as error:
        raise ToolError(str(error)) from error
    finally:
        await kill_and_wait(handle)
    return _ran(schemas.result_data(result, note))


async def check_command(
    *, place: Where, argv: Words = NO_WORDS, shell: Text = "", cwd: Directory = ""
) -> CallToolResult:
    """Say whether a command would be allowed, and why not; nothing runs."""
    call = call_of(argv, shell, cwd)
    verdict = place.box.check(call.argv, shell=call.shell, cwd=call.cwd)
    record_verdict(verdict)
    told = WOULD_BE_TRIED if place.can_be_tried(call) else ""
    try:
        place.tell_verdict(call, verdict)
    except CorralError as error:
        raise ToolError(str(error)) from error
    data = schemas.verdict_data(verdict, told)
    return schemas.tool_result(data, verdict_text(data))


async def start_process(
    ctx: ToolContext,
    *,
    place: Where,
    said: Said,
    argv: Words = NO_WORDS,
    shell: Text = "",
    cwd: Directory = "",
    timeout_seconds: Seconds = None,
) -> CallToolResult:
    """Start a command that runs on in the background, and return its process_id.

    It ends by itself, by stop_process, by its time limit, or with the session.
    """
    desk = state_of(ctx)
    call = call_of(argv, shell, cwd)
    try:
        desk.jobs.make_room()
    except CorralError as error:
        raise ToolError(str(error)) from error
    log = OutputBuffer()
    limit = place.seconds(timeout_seconds, None)
    tx, note = None, ""
    if place.can_be_tried(call):
        tx, handle = await start_in_transaction(ctx, place, call, tool="start_process", limit=limit, log=log)
    else:
        handle, note = await start(ctx, place, said, call, tool="start_process", limit=limit, log=log)
    if handle.result is not None:
        if tx is not None:
            tx.discard()
        return _process(schemas.unstarted_data(handle.result, note))
    job = Job(handle, log, place, (ctx.headers or {}).get("mcp-session-id", ""), tx)
    desk.keep(job)
    return _process(schemas.process_data(job, 0))


async def read_output(
    ctx: ToolContext,
    process_id: ProcessId,
    since: Annotated[int, Field(description="next_offset of the answer before; 0 for all.", ge=0)] = 0,
    wait_seconds: Annotated[
        float, Field(description="How long to wait where nothing new is there yet.", ge=0, le=MAX_WAIT_SECONDS)
    ] = 0,
) -> CallToolResult:
    """Return what a background process printed since an offset, and how it ended if it has."""
    job = _job(ctx, process_id)
    await wait_with_progress(ctx, lambda: job.news(since), job.log, total=wait_seconds, seconds=wait_seconds)
    await job.settle()
    return _process(schemas.process_data(job, min(since, job.log.total)))


async def stop_process(
    ctx: ToolContext,
    process_id: ProcessId,
    grace_seconds: Annotated[
        float,
        Field(
            description="How long it has after SIGTERM, before all it started is killed.", ge=0, le=MAX_GRACE_SECONDS
        ),
    ] = 2,
) -> CallToolResult:
    """End a background process with everything it started, and return how it ended and the last it printed."""
    job = _job(ctx, process_id)
    try:
        await state_of(ctx).jobs.stop(job, grace_seconds)
    except CorralError as error:
        raise ToolError(str(error)) from error
    return _process(schemas.process_data(job, max(job.log.total - LAST_LINE_BYTES, 0)))


def _ran(data: dict[str, Any]) -> CallToolResult:
    return schemas.tool_result(data, result_text(data))


def _process(data: dict[str, Any]) -> CallToolResult:
    return schemas.tool_result(data, process_text(data))


class StrictTool(Tool):
    """A tool that refuses arguments it does not have: the SDK ignores them, and a misspelt limit would be none."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Run the tool, unless an argument is unknown."""
        known = self.parameters["properties"]
        unknown = [name for name in arguments if name not in known]
        if unknown:
            names = ", ".join(f"'{clip(printable(name), MAX_NAME_COLUMNS, '…')}'" for name in unknown[:MAX_NAMES])
            more = f" and {len(unknown) - MAX_NAMES} more" if len(unknown) > MAX_NAMES else ""
            noun = "argument" if len(unknown) == 1 else "arguments"
            raise ToolError(f"{self.name} has no {noun} {names}{more}; its arguments are {', '.join(known)}")
        return await super().run(arguments, context, convert_result)


def make_server(desk: ServerState) -> MCPServer[ServerState]:
    """Return a server that works with a desk."""
    runs = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
    looks = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    stops = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    table = (
        (run_command, "Run a command in the sandbox", runs, schemas.RESULT_SCHEMA),
        (check_command, "Check a command without running it", looks, schemas.VERDICT_SCHEMA),
        (start_process, "Start a background process in the sandbox", runs, schemas.PROCESS_SCHEMA),
        (read_output, "Read what a background process printed", looks, schemas.PROCESS_SCHEMA),
        (stop_process, "Stop a background process", stops, schemas.PROCESS_SCHEMA),
    )
    tools = []
    for function, title, annotations, schema in table:
        tool = StrictTool.from_function(function, title=title, annotations=annotations, structured_output=False)
        # The published schema itself, not one that a model would repeat.
        tool.fn_metadata.output_schema = schema
        tool.parameters["additionalProperties"] = False
        tools.append(tool)

    @asynccontextmanager
    async def life(_: MCPServer[ServerState]) -> "AsyncIterator[ServerState]":
        async with desk.open():
            yield desk

    server = MCPServer(
        "corral",
        title="corral",
        version=__version__,
        instructions=INSTRUCTIONS,
        tools=tools,
        lifespan=life,
        middleware=[choose_record_form],
        log_level="ERROR",
    )
    about = "What the guard decides and what the kernel holds here, as JSON: the owner's to change, not an agent's."

    @server.resource("corral://policy", title="The policy in force", description=about, mime_type="application/json")
    def read_policy() -> str:
        return json.dumps(schemas.policy_data(desk.load(desk.bound)), ensure_ascii=False, indent=1)

    return server


def _job(ctx: ToolContext, process_id: str) -> Job:
    try:
        return state_of(ctx).jobs.find(process_id)
    except CorralError as error:
        raise ToolError(str(error)) from error
