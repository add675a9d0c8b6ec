"""The tools and the resource of the MCP server. Each tool returns a short text and the whole record of a checked, confined call.

A refusal is a normal result. A process that a call started ends with the call, unless start_process started it.
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
from corral.integrations.mcp import run_call, schemas
from corral.integrations.mcp.background_jobs import Job, OutputBuffer
from corral.integrations.mcp.run_call import (
    InProject,
    InProjectOfText,
    Permission,
    ToolContext,
    call_of,
    session_of,
    state_of,
    tool_errors,
)
from corral.integrations.mcp.server_state import MAX_SECONDS, ServerState
from corral.integrations.mcp.structured_content import choose_record_form
from corral.integrations.mcp.summary import process_text, result_text, verdict_text
from corral.integrations.telemetry.otel import record_verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LAST_LINE_BYTES = 4096
MAX_WAIT_SECONDS = 50.0  # of read_output; clients time out after about a minute
MAX_GRACE_SECONDS = 30.0
MAX_NAMES = 5  # of unknown arguments that an error repeats
MAX_NAME_COLUMNS = 60
INSTRUCTIONS = (
    "Commands run in a sandbox inside the project. The network is off unless the user's policy grants it, in full or for named destinations. "
    "A refused call is a result that says why and what to do instead: do that, or ask the user. Rephrasing the same command "
    "does not help. Use run_in_session where the directory, variables or functions must last, "
    "and start_process for servers and other processes that outlive one call. The text of a result is the command's "
    "output, followed by lines in [corral: ...] that say how it ended (corral puts a backslash before a printed line that looks like one). "
    "The structured content, if there is any, is the whole record. "
    "A result with a transaction has changed nothing yet: its hint names the user's options. The resource corral://policy is the policy."
)

WOULD_RUN_IN_TRANSACTION = "run_command and start_process need no approval for it: it runs in a transaction, and its changes wait for the user."

Words = Annotated[
    list[str],
    Field(description="The program and its arguments; no shell reads them. Give argv or shell.", max_length=4096),
]
Text = Annotated[str, Field(description="A bash command line, instead of argv.", max_length=256 * 1024)]
Directory = Annotated[
    str,
    Field(
        description="The working directory: relative to the project root, or absolute and inside it.", max_length=4096
    ),
]
Seconds = Annotated[
    float | None,
    Field(description="Time limit in seconds; the user's policy may set a lower one.", gt=0, le=MAX_SECONDS),
]
NO_WORDS: list[str] = []
ProcessId = Annotated[str, Field(description="The process_id that start_process returned.", max_length=64)]


async def run_command(
    ctx: ToolContext,
    *,
    project: InProject,
    permission: Permission,
    argv: Words = NO_WORDS,
    shell: Text = "",
    cwd: Directory = "",
    timeout_seconds: Seconds = None,
) -> CallToolResult:
    """Run a command in the project's sandbox until it ends, and return its result.

    A refused command is a result with denied=true, the reason and what to do instead.
    """
    output = OutputBuffer(LAST_LINE_BYTES)
    limit = project.time_limit(timeout_seconds, project.policy.config.timeout_seconds)
    call = call_of(argv, shell, cwd)
    with tool_errors(), state_of(ctx).jobs.place():
        if project.fits_transaction(call):
            result, hint = await run_call.run_in_transaction(ctx, project, call, limit=limit, output=output)
            data = schemas.result_data(result)
            data["hint"] = f"{hint} {data['hint']}".strip()
        else:
            handle, note = await run_call.start(
                ctx, project, permission, call, tool="run_command", limit=limit, output=output
            )
            result = await run_call.finish(ctx, handle, output, limit=limit)
            data = schemas.result_data(result, note)
    return schemas.tool_result(data, result_text(data))


async def run_in_session(
    ctx: ToolContext,
    *,
    project: InProjectOfText,
    shell: Annotated[str, Field(description="A bash command line.", max_length=256 * 1024)],
    timeout_seconds: Seconds = None,
    restart: Annotated[bool, Field(description="End the session first, and start with a new one.")] = False,
) -> CallToolResult:
    """Run a bash command line in your session of the project: one bash that keeps its directory, variables, functions and jobs.

    Nobody is asked about a call in a session: use run_command for a call that needs the user's approval.
    """
    output = OutputBuffer(LAST_LINE_BYTES)
    limit = project.time_limit(timeout_seconds, project.policy.config.timeout_seconds)
    if not shell.strip():
        raise ToolError("shell is empty; give a bash command line")
    with tool_errors(), state_of(ctx).jobs.place():
        result = await run_call.run_in_session(ctx, project, shell, limit=limit, restart=restart, output=output)
    data = schemas.result_data(result)
    return schemas.tool_result(data, result_text(data))


async def check_command(
    *, project: InProject, argv: Words = NO_WORDS, shell: Text = "", cwd: Directory = ""
) -> CallToolResult:
    """Say whether a command would be allowed, and why not. Nothing runs."""
    call = call_of(argv, shell, cwd)
    verdict = project.box.check(call.argv, shell=call.shell, cwd=call.cwd)
    record_verdict(verdict)
    with tool_errors():
        project.log_verdict(call, verdict)
    data = schemas.verdict_data(verdict, WOULD_RUN_IN_TRANSACTION if project.fits_transaction(call) else "")
    return schemas.tool_result(data, verdict_text(data))


async def start_process(
    ctx: ToolContext,
    *,
    project: InProject,
    permission: Permission,
    argv: Words = NO_WORDS,
    shell: Text = "",
    cwd: Directory = "",
    timeout_seconds: Seconds = None,
) -> CallToolResult:
    """Start a command that keeps running in the background, and return its process_id.

    It ends by itself, by stop_process, at its time limit, or with the session.
    """
    call = call_of(argv, shell, cwd)
    output = OutputBuffer()
    limit = project.time_limit(timeout_seconds, None)
    tx, note = None, ""
    with tool_errors(), state_of(ctx).jobs.place():
        if project.fits_transaction(call):
            tx, handle = await run_call.start_in_transaction(
                ctx, project, call, tool="start_process", limit=limit, output=output
            )
        else:
            handle, note = await run_call.start(
                ctx, project, permission, call, tool="start_process", limit=limit, output=output
            )
        if handle.result is not None:
            if tx is not None:
                tx.discard()
            return _process(schemas.unstarted_data(handle.result, note))
        job = Job(handle, output, project, session_of(ctx), tx)
        state_of(ctx).add_job(job)
    return _process(schemas.process_data(job, 0))


async def read_output(
    ctx: ToolContext,
    process_id: ProcessId,
    since: Annotated[int, Field(description="The next_offset of the previous answer; 0 for everything.", ge=0)] = 0,
    wait_seconds: Annotated[
        float, Field(description="How long to wait if there is no new output yet.", ge=0, le=MAX_WAIT_SECONDS)
    ] = 0,
) -> CallToolResult:
    """Return the output of a background process since an offset, and how it ended if it has."""
    with tool_errors():
        job = state_of(ctx).jobs.find(process_id, session_of(ctx))
    await run_call.wait_with_progress(
        ctx, lambda: job.more_than(since), job.output, total=wait_seconds, seconds=wait_seconds
    )
    await job.settle()
    return _process(schemas.process_data(job, min(since, job.output.total)))


async def stop_process(
    ctx: ToolContext,
    process_id: ProcessId,
    grace_seconds: Annotated[
        float,
        Field(description="The time between SIGTERM and killing everything it started.", ge=0, le=MAX_GRACE_SECONDS),
    ] = 2,
) -> CallToolResult:
    """End a background process with everything it started, and return how it ended and its last output."""
    with tool_errors():
        job = state_of(ctx).jobs.find(process_id, session_of(ctx))
        await state_of(ctx).jobs.stop(job, grace_seconds)
    return _process(schemas.process_data(job, max(job.output.total - LAST_LINE_BYTES, 0)))


def _process(data: dict[str, Any]) -> CallToolResult:
    return schemas.tool_result(data, process_text(data))


class StrictTool(Tool):
    """A tool that refuses unknown arguments. The SDK ignores them, so a misspelt time limit would have no effect."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Run the tool, unless an argument is unknown."""
        known = self.parameters["properties"]
        unknown = [name for name in arguments if name not in known]
        if unknown:
            names = ", ".join(f"'{clip(printable(name), MAX_NAME_COLUMNS, '…')}'" for name in unknown[:MAX_NAMES])
            more = f" and {len(unknown) - MAX_NAMES} more" if len(unknown) > MAX_NAMES else ""
            noun = "argument" if len(unknown) == 1 else "arguments"
            raise ToolError(f"{self.name} has no {noun} {names}{more}; its arguments are {', '.join(known)}")
        with state_of(context).call():
            return await super().run(arguments, context, convert_result)


def make_server(state: ServerState) -> MCPServer[ServerState]:
    """Return a server with these tools."""
    runs = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    stops = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    table = (
        (run_command, "Run a command in the sandbox", runs, schemas.RESULT_SCHEMA),
        (run_in_session, "Run a command in a shell that keeps its state", runs, schemas.RESULT_SCHEMA),
        (check_command, "Check a command without running it", reads, schemas.VERDICT_SCHEMA),
        (start_process, "Start a background process in the sandbox", runs, schemas.PROCESS_SCHEMA),
        (read_output, "Read the output of a background process", reads, schemas.PROCESS_SCHEMA),
        (stop_process, "Stop a background process", stops, schemas.PROCESS_SCHEMA),
    )
    tools = []
    for function, title, annotations, schema in table:
        tool = StrictTool.from_function(function, title=title, annotations=annotations, structured_output=False)
        # The published schema itself; pydantic would derive another.
        tool.fn_metadata.output_schema = schema
        tool.parameters["additionalProperties"] = False
        tools.append(tool)

    @asynccontextmanager
    async def lifespan(_: MCPServer[ServerState]) -> "AsyncIterator[ServerState]":
        async with state.open():
            yield state

    server = MCPServer(
        "corral",
        title="corral",
        version=__version__,
        instructions=INSTRUCTIONS,
        tools=tools,
        lifespan=lifespan,
        middleware=[choose_record_form],
        log_level="ERROR",
    )
    about = "The guard's rules and the sandbox's limits in this project, as JSON. Only the user can change them."

    @server.resource("corral://policy", title="The policy in force", description=about, mime_type="application/json")
    def read_policy() -> str:
        return json.dumps(schemas.policy_data(state.load(state.bound)), ensure_ascii=False, indent=1)

    return server
