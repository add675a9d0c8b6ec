"""Network grants over MCP: a granted destination is reached, another is refused before the command runs, with the grant to add."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import answering
from mcp_client_ways import Home, connected, drive, told


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server on loopback."""
    with answering() as port:
        yield port


@pytest.fixture
def home(tmp_path: Path, port: int) -> Home:
    """A user whose policy grants that server by name."""
    home = Home(tmp_path)
    home.policy(f'[containment]\nnetwork = ["own.example:{port}"]\nhosts = ["own.example=127.0.0.1"]\n')
    return home


def test_granted_destination_is_reached_and_reported(home: Home, port: int) -> None:
    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            data = told(await client.call_tool("run_command", {"argv": ["curl", "-sS", f"http://own.example:{port}/"]}))
            assert (data["stdout"], data["denied"]) == ("answered", False), data["stderr"]
            (reached,) = data["connections"]
            assert (reached["target"], reached["outcome"]) == (f"own.example:{port}", "allowed")

    drive(body)
    assert '"connections"' in home.audit()


def test_other_destination_is_refused_with_its_grant(home: Home) -> None:
    call = {"argv": ["curl", "https://other.example/"]}
    grant = "other.example:443"

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            for tool in ("run_command", "start_process", "check_command"):
                data = told(await client.call_tool(tool, call))
                assert (grant in data["instead"], data.get("denied", data.get("decision"))) == (
                    True,
                    "ask" if tool == "check_command" else True,
                )

    drive(body)


def test_connection_at_run_time_is_a_violation_with_its_grant(home: Home) -> None:
    (home.project / "ask.py").write_text(
        "import socket\nwith socket.create_connection(('127.0.0.1', 61080)) as proxy:\n"
        "    proxy.sendall(b'CONNECT other.example:443 HTTP/1.1\\r\\nHost: other.example:443\\r\\n\\r\\n')\n"
        "    print(proxy.makefile('rb').readline().split()[1].decode())\n"
    )

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            data = told(await client.call_tool("run_command", {"argv": ["python3", "ask.py"]}))
            assert data["stdout"] == "403\n", data
            (violation,) = data["violations"]
            assert violation["grant"] == 'containment.network = ["other.example:443"]'

    drive(body)
