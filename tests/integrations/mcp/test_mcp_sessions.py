"""The tool run_in_session: one bash for each client and project, judged call by call."""

from pathlib import Path

import anyio
from mcp_client_ways import Home, connected, drive, eventually, told
from observe import alive, unique_seconds


def test_session_keeps_its_state(tmp_path: Path) -> None:
    home, seconds = Home(tmp_path), unique_seconds()

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:

            async def run(text: str, **options: object) -> dict[str, object]:
                return told(await client.call_tool("run_in_session", {"shell": text, **options}))

            assert (await run("mkdir sub && cd sub; x=5; ls() { cat $1; }"))["ok"]
            assert (await run("pwd; echo $x; ls /etc/shadow"))["denied"]
            assert (await run("pwd; echo $x"))["stdout"] == f"{home.project}/sub\n5\n"
            late = await run(f"while true; do sleep {seconds}; done", timeout_seconds=1)
            assert (late["timed_out"], alive(seconds)) == (True, [])
            assert (await run("git reset --hard"))["denied"]  # nobody is asked
            assert (await run("echo $x"))["stdout"] == "5\n"
            assert (await run("echo ${x-none}; pwd", restart=True))["stdout"] == f"none\n{home.project}\n"

    drive(body)
    assert home.audit().count('"event": "mcp"') == 7


def test_cancelled_call_leaves_the_session(tmp_path: Path) -> None:
    home, seconds = Home(tmp_path), unique_seconds()

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            await client.call_tool("run_in_session", {"shell": f"x=5; sleep {seconds}7 &"})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "run_in_session", {"shell": f"sleep {seconds}; touch never"})
                await eventually(lambda: alive(seconds))
                tasks.cancel_scope.cancel()
            await eventually(lambda: not alive(seconds))
            after = told(await client.call_tool("run_in_session", {"shell": "echo $x; jobs"}))
            assert str(after["stdout"]).startswith("5\n[1]")
            assert not (home.project / "never").exists()

    drive(body)
    # It ends with the client.
    assert alive(f"{seconds}7") == []
