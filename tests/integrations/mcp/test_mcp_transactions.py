"""Over MCP, a command that cannot be undone runs in a transaction if the policy says so."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_client_ways import Home, connected, drive, told

from corral.integrations.mcp.background_jobs import RUNS_IN_TRANSACTION
from corral.integrations.mcp.tools import WOULD_RUN_IN_TRANSACTION

TRY = '[containment]\ndestructive = "try"\n'
RESET = {"argv": ["git", "reset", "--hard"]}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A user's home directory beside a repository with uncommitted changes."""
    home = Home(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(home.project)]
    (home.project / "notes.txt").write_text("committed\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (home.project / "notes.txt").write_text("not committed\n")
    return home


async def nobody(*_: object) -> Any:
    raise AssertionError("somebody was asked")


def test_try_policy_runs_it_without_a_question(home: Home) -> None:
    home.policy(TRY)

    async def body() -> None:
        async with connected(home, "stdio", "auto", elicitation_callback=nobody) as client:
            data = told(await client.call_tool("run_command", RESET))
            assert (data["exit_code"], data["denied"]) == (0, False), data["reason"]
            assert data["transaction"]
            assert "corral apply" in data["hint"]
            # A command that can be undone changes the project itself.
            plain = told(await client.call_tool("run_command", {"argv": ["touch", "made"]}))
            assert (plain["transaction"], plain["hint"]) == (None, "")

    drive(body)
    assert (home.project / "notes.txt").read_text() == "not committed\n"
    assert (home.project / "made").exists()
    assert '"event": "transaction"' in home.audit()


def waiting(home: Home) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-m", "corral", "history", "--json", "--root", str(home.project)],
        env=home.env,
        capture_output=True,
        check=True,
    )
    return [entry["state"] for entry in json.loads(found.stdout)]


def test_background_process_runs_in_a_transaction(home: Home) -> None:
    home.policy(TRY)

    async def body() -> None:
        async with connected(home, "stdio", "auto", elicitation_callback=nobody) as client:
            begun = told(await client.call_tool("start_process", RESET))
            assert begun["process_id"], begun["reason"]
            assert begun["hint"] == RUNS_IN_TRANSACTION
            about = {"process_id": begun["process_id"], "wait_seconds": 30}
            data = told(await client.call_tool("read_output", about))
            while data["running"]:
                data = told(await client.call_tool("read_output", about | {"since": data["next_offset"]}))
            assert (data["exit_code"], bool(data["transaction"])) == (0, True)
            assert f"corral apply --root {home.project} {data['transaction']}" in data["hint"]
            plain = told(await client.call_tool("start_process", {"argv": ["touch", "made"]}))
            assert plain.get("hint", "") == ""

    drive(body)
    assert (home.project / "notes.txt").read_text() == "not committed\n"
    assert waiting(home) == ["waits"]
    assert '"reason": "kept"' in home.audit()


@pytest.mark.parametrize("ends", ["stop_process", "the session"])
def test_changes_wait_however_the_process_ends(home: Home, ends: str) -> None:
    home.policy(TRY)
    shell = "git reset -q --hard; echo done; sleep 300"

    async def body() -> None:
        async with connected(home, "stdio", "auto", elicitation_callback=nobody) as client:
            begun = told(await client.call_tool("start_process", {"shell": shell}))
            about = {"process_id": begun["process_id"]}
            data = told(await client.call_tool("read_output", about | {"wait_seconds": 30}))
            assert (data["output"], data["running"]) == ("done\n", True)
            if ends == "stop_process":
                data = told(await client.call_tool("stop_process", about | {"grace_seconds": 0}))
                assert "corral apply" in data["hint"]

    drive(body)
    assert (home.project / "notes.txt").read_text() == "not committed\n"
    assert waiting(home) == ["waits"]


def test_check_reports_that_it_would_run_in_a_transaction(home: Home) -> None:
    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            assert WOULD_RUN_IN_TRANSACTION not in told(await client.call_tool("check_command", RESET))["reason"]
            home.policy(TRY)
            data = told(await client.call_tool("check_command", RESET))
            assert (data["decision"], WOULD_RUN_IN_TRANSACTION in data["reason"]) == ("ask", True)

    drive(body)


def test_default_policy_refuses_without_elicitation(home: Home) -> None:
    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            assert told(await client.call_tool("run_command", RESET))["denied"]

    drive(body)
