"""Several commands at once in an event loop, one of them read as it prints; cancelling ends everything a command started."""

import asyncio

from corral import Sandbox, SandboxConfig


async def main() -> None:
    """Run, stream, cancel."""
    with Sandbox(SandboxConfig(project_root=".", profile="workspace")) as box:
        results = await asyncio.gather(*(box.arun(["echo", str(number)]) for number in range(3)))
        print([result.stdout_text.strip() for result in results])

        handle = await box.astart("for n in 1 2 3; do echo line $n; done", shell=True)
        async for name, data in handle:
            print(name, data.decode().split("\n")[0])
            break
        print((await handle).exit_code)

        task = asyncio.create_task(box.arun(["sleep", "3600"]))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled, and nothing of it is left")


asyncio.run(main())
