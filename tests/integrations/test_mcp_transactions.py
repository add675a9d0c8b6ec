"""Over MCP, what cannot be taken back runs in a transaction where the owner says so."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp_client_ways import Home, connected, drive, told

TRY = '[containment]\ndestructive = "try"\n'
RESET = {"argv": ["git", "reset", "--hard"]}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An owner's home beside a repository in which there is work that is not committed."""
    home = Home(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(home.project)]
    (home.project / "notes.txt").write_text("committed\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (home.project / "notes.txt").write_text("not committed\n")
    return home


async def nobody(*_: object) -> Any:
    raise AssertionError("somebody was asked")


def test_it_runs_and_its_changes_wait_and_nobody_is_asked(home: Home) -> None:
    home.policy(TRY)

    async def body() -> None:
        async with connected(home, "stdio", "auto", elicitation_callback=nobody) as client:
            data = told(await client.call_tool("run_command", RESET))
            assert (data["exit_code"], data["denied"]) == (0, False), data["reason"]
            assert data["transaction"]
            assert "corral apply" in data["hint"]
            # What can be taken back is done to the project itself.
            plain = told(await client.call_tool("run_command", {"argv": ["touch", "made"]}))
            assert (plain["transaction"], plain["hint"]) == (None, "")

    drive(body)
    assert (home.project / "notes.txt").read_text() == "not committed\n"
    assert (home.project / "made").exists()
    assert '"event": "transaction"' in home.audit()


def test_without_the_owners_word_it_is_refused_where_nobody_can_be_asked(home: Home) -> None:
    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            assert told(await client.call_tool("run_command", RESET))["denied"]

    drive(body)
