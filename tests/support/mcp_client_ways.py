"""Connects the real MCP client to a real `corral mcp` process, by pipes and by HTTP, with both generations of the protocol."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

PROGRAM = [sys.executable, "-m", "corral", "mcp"]
WAYS = [(transport, mode) for transport in ("stdio", "http") for mode in ("auto", "legacy")]
# Each transport and each generation occurs once in the first two; `make test-real` adds the others.
SAMPLED_WAYS = [WAYS[0], WAYS[3], *(pytest.param(way, marks=pytest.mark.real) for way in WAYS[1:3])]
SAMPLED_IDS = ["-".join(WAYS[number]) for number in (0, 3, 1, 2)]
VERSIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}
TOKEN = re.compile(r"Bearer (\S+)")
URL = re.compile(r"http://\S+")


class Home:
    """A user's home and a project beside it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.home = top / "home"
        self.project = top / "project"
        for path in (self.home, self.project):
            path.mkdir(exist_ok=True)
        self.config = self.home / ".config" / "corral"
        self.state = self.home / ".local" / "state" / "corral"
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "PYTHONPATH": os.pathsep.join(sys.path)}

    def policy(self, text: str) -> None:
        """Write the user's policy."""
        self.config.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.config / "policy.toml").write_text(text)

    def audit(self) -> str:
        """Return the entries of the user's audit log."""
        return "".join(path.read_text() for path in sorted((self.state / "audit").glob("*.jsonl")))


class Served:
    """A running HTTP server."""

    def __init__(self, process: subprocess.Popen[str], url: str, token: str) -> None:
        self.process = process
        self.url = url
        self.token = token


@contextmanager
def served(home: Home, *options: str, token: str = "") -> Iterator[Served]:
    """Run an HTTP server on a free port."""
    words = [*PROGRAM, "--root", str(home.project), "--http", "0", *options]
    with subprocess.Popen(words, env=home.env, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            url = URL.search(first)
            assert url is not None, first + process.stderr.read()
            if not token:
                found = TOKEN.search(process.stderr.readline())
                assert found is not None
                token = found[1]
            yield Served(process, url[0], token)
        finally:
            process.terminate()
            process.communicate(timeout=60)


@asynccontextmanager
async def connected(
    home: Home,
    transport: str,
    mode: str,
    server: Served | None = None,
    *,
    options: tuple[str, ...] = (),
    **callbacks: Any,
) -> AsyncIterator[Client]:
    """Connect a client, by pipes to a new server or by HTTP to a running one."""
    async with AsyncExitStack() as stack:
        target: Any
        if transport == "stdio":
            words = [*PROGRAM[1:], "--root", str(home.project), *options]
            target = StdioServerParameters(command=PROGRAM[0], args=words, env=home.env, cwd=str(home.project))
        else:
            assert server is not None
            headers = {"Authorization": f"Bearer {server.token}"}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
            target = streamable_http_client(server.url, http_client=http)
        client = await stack.enter_async_context(Client(target, mode=mode, **callbacks))
        assert client.protocol_version == VERSIONS[mode]
        yield client


def told(result: Any) -> dict[str, Any]:
    """Return the data of a tool's result. Fail if the result is an error."""
    assert result.is_error is False, result.content
    data: dict[str, Any] = result.structured_content
    return data


def drive(body: Callable[[], Coroutine[Any, Any, None]], seconds: float = 120) -> None:
    """Run a test's coroutine with a time limit."""

    async def bounded() -> None:
        with anyio.fail_after(seconds):
            await body()

    anyio.run(bounded)


async def eventually(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition holds, without blocking the event loop."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)
