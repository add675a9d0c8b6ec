"""The MCP server bounds what clients take: commands, roots, connections. A session reaches only its own processes."""

import json
import socket
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp_client_ways import PROGRAM, Home, Served, connected, drive, eventually, served, told
from mcp_types import ListRootsResult, Root
from observe import alive, unique_seconds

from corral.integrations.mcp.background_jobs import MAX_RUNNING
from corral.integrations.mcp.server_state import MAX_PROJECTS

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A user's home directory beside a project."""
    return Home(tmp_path)


@pytest.mark.parametrize(
    "tools",
    [
        ("start_process", "run_command"),
        pytest.param(("start_process",), marks=pytest.mark.real),
        pytest.param(("run_command",), marks=pytest.mark.real),
    ],
)
def test_calls_at_once_share_one_bound(home: Home, tools: tuple[str, ...]) -> None:
    async def body() -> None:
        seconds, refused, most = unique_seconds(), [], 0

        async def call(client: Any, tool: str) -> None:
            arguments = {"argv": ["sleep", seconds], "timeout_seconds": 600}
            result = await client.call_tool(tool, arguments)
            if result.is_error:
                refused.append(result.content[0].text)

        async with connected(home, "stdio", "auto") as client, anyio.create_task_group() as tasks:
            for number in range(3 * MAX_RUNNING):
                tasks.start_soon(call, client, tools[number % len(tools)])
            await eventually(lambda: len(refused) == 2 * MAX_RUNNING and len(alive(seconds)) >= MAX_RUNNING)
            for _ in range(20):
                most = max(most, len(alive(seconds)))
                await anyio.sleep(0.01)
            assert most == MAX_RUNNING
            assert all("stop_process" in text for text in refused)
            tasks.cancel_scope.cancel()
        await eventually(lambda: alive(seconds) == [])

    drive(body)


def test_place_of_an_ended_command_is_free_again(home: Home) -> None:
    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            for _ in range(2 * MAX_RUNNING):
                assert told(await client.call_tool("run_command", {"argv": ["true"]}))["ok"]
                assert (await client.call_tool("run_command", {"argv": ["true"], "nonsense": 1})).is_error
                assert told(await client.call_tool("start_process", {"argv": ["true"]}))["process_id"]

    drive(body)


def delete(server: Served, **headers: str) -> int:
    given = {"Authorization": f"Bearer {server.token}", "Mcp-Protocol-Version": "2025-11-25", **headers}
    return httpx2.request("DELETE", server.url, headers=given).status_code


REFUSED = ({}, {"Mcp-Session-Id": ""}, {"Mcp-Session-Id": "0" * 32}, {"Authorization": "Bearer wrong"})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_refused_delete_ends_nothing(home: Home, mode: str) -> None:
    async def body() -> None:
        seconds = unique_seconds()
        with served(home) as server:
            async with connected(home, "http", mode, server) as client:
                started = told(await client.call_tool("start_process", {"argv": ["sleep", seconds]}))
                await eventually(lambda: len(alive(seconds)) == 1)
                for headers in REFUSED:
                    assert delete(server, **headers) >= 400, headers
                    assert len(alive(seconds)) == 1, headers
                read = told(await client.call_tool("read_output", {"process_id": started["process_id"]}))
                assert read["running"]

    drive(body)


def test_session_reaches_only_its_own_processes(home: Home) -> None:
    async def body() -> None:
        seconds = unique_seconds()
        with served(home) as server:
            async with (
                connected(home, "http", "legacy", server) as one,
                connected(home, "http", "legacy", server) as other,
                connected(home, "http", "auto", server) as without,
            ):
                started = told(await one.call_tool("start_process", {"argv": ["sleep", seconds]}))
                given = {"process_id": started["process_id"]}
                for client in (other, without):
                    for tool in ("read_output", "stop_process"):
                        result = await client.call_tool(tool, given)
                        assert result.is_error
                        assert "no such process" in result.content[0].text
                assert len(alive(seconds)) == 1
                assert told(await one.call_tool("read_output", given))["running"]
                assert not told(await one.call_tool("stop_process", given))["running"]

    drive(body)


def test_root_that_is_not_used_makes_room_for_another(home: Home) -> None:
    folders = [home.project / str(number) for number in range(2 * MAX_PROJECTS)]
    for folder in folders:
        folder.mkdir()

    async def roots(_: object) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=f"file://{folder}") for folder in folders])  # type: ignore[arg-type]

    async def body() -> None:
        seconds = unique_seconds()
        async with connected(home, "stdio", "auto", list_roots_callback=roots) as client:
            first = {"argv": ["sleep", seconds], "cwd": str(folders[0])}
            started = told(await client.call_tool("start_process", first))
            for folder in folders[1:]:
                done = told(await client.call_tool("run_command", {"argv": ["pwd"], "cwd": str(folder)}))
                assert done["stdout"] == f"{folder}\n"
            # The root with a running process was kept.
            given = {"process_id": started["process_id"]}
            assert told(await client.call_tool("read_output", given))["running"]
            for folder in folders[-MAX_PROJECTS + 1 :]:
                told(await client.call_tool("start_process", {"argv": ["sleep", seconds], "cwd": str(folder)}))
            refused = await client.call_tool("run_command", {"argv": ["pwd"], "cwd": str(folders[1])})
            assert refused.is_error
            assert f"{MAX_PROJECTS} project roots" in refused.content[0].text
            await client.call_tool("stop_process", given)
            assert told(await client.call_tool("run_command", {"argv": ["pwd"], "cwd": str(folders[1])}))["ok"]
        await eventually(lambda: alive(seconds) == [])

    drive(body)


HALVES = (
    {"argv": ["echo", "\ud800"]},
    {"shell": "echo \udcff"},
    {"argv": ["pwd"], "cwd": "\udfff"},
    {"argv": ["pwd"], "\ud800": 1},
)


def test_half_a_surrogate_pair_gets_an_answer(home: Home) -> None:
    call = {"jsonrpc": "2.0", "method": "tools/call"}
    calls = [
        call | {"id": number, "params": {"name": "run_command", "arguments": arguments}}
        for number, arguments in enumerate(HALVES, 7)
    ]
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    unnamed = {"jsonrpc": "2.0", "id": "\ud800", "method": "ping"}
    text = "".join(json.dumps(message) + "\n" for message in (HELLO, ready, *calls, unnamed))
    done = subprocess.run(
        PROGRAM, env=home.env, cwd=home.project, input=text.encode(), capture_output=True, timeout=60, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    errors = {answer["id"]: answer["error"]["code"] for answer in answers if answer["id"] in range(7, 11)}
    assert errors == dict.fromkeys(range(7, 11), -32700)
    assert [answer["error"]["code"] for answer in answers if answer["id"] is None] == [-32700]


def test_connection_without_a_request_is_closed(home: Home) -> None:
    beginnings = (b"", b"POST /mcp HTTP/1.1\r\nHost: ", b"POST /x HTTP/1.1\r\nHost: x\r\n\r\nGET ")
    with served(home) as server, ExitStack() as stack:
        address = (urlsplit(server.url).hostname, urlsplit(server.url).port)
        clients = [stack.enter_context(closing(socket.create_connection(address))) for _ in beginnings]  # type: ignore[arg-type]
        for client, sent in zip(clients, beginnings, strict=True):
            client.settimeout(60)
            client.sendall(sent)
        for client in clients:
            while client.recv(4096):
                pass


@pytest.mark.parametrize("way", ["shell", "argv"])
def test_text_of_hostile_size_is_refused_by_the_guard(home: Home, way: str) -> None:
    text = "x='" + "a[" * (128 * 1024 - 2) + "'"
    call = {"shell": text} if way == "shell" else {"argv": ["bash", "-c", text]}

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            for tool in ("run_command", "start_process"):
                data = told(await client.call_tool(tool, call))
                assert data["denied"], data
                assert "structure-limit" in {finding["rule"] for finding in data["verdict"]["findings"]}
            # The server still answers.
            assert told(await client.call_tool("run_command", {"argv": ["true"]}))["ok"]

    drive(body)
