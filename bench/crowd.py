"""Measures 64 commands at a time in one sandbox, from threads and from an event loop, against bare subprocesses."""

import asyncio
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from bench._place import make_project, workplace
from bench._rows import Row, Section
from bench._turns import Options
from corral import Sandbox, SandboxConfig

AS_USER = True
AT_A_TIME = 64
COMMAND = ["/bin/true"]
BLOCKS = 3


def measure(options: Options) -> Section:
    """Return runs per second."""
    count = max(options.rounds, AT_A_TIME)
    with workplace() as folder:
        project = make_project(folder / "project")
        with Sandbox(SandboxConfig(project)) as box:
            begun = perf_counter()
            _by_threads(lambda: _well(box), AT_A_TIME)
            first = AT_A_TIME / (perf_counter() - begun)
            speeds: dict[str, float] = {}
            ways: dict[str, Callable[[], None]] = {
                "by threads": lambda: _by_threads(lambda: _well(box), count),
                "bare threads": lambda: _by_threads(
                    lambda: subprocess.run(COMMAND, capture_output=True, check=True), count
                ),
                "in an event loop": lambda: asyncio.run(_crowd(lambda: box.arun(COMMAND), count)),
                "bare event loop": lambda: asyncio.run(_crowd(_bare, count)),
            }
            for _ in range(BLOCKS):
                for name, way in ways.items():
                    begun = perf_counter()
                    way()
                    speeds[name] = max(speeds.get(name, 0.0), count / (perf_counter() - begun))
    return Section(
        f"{AT_A_TIME} at a time, {' '.join(COMMAND)}",
        (
            Row("the first 64, which make the wardens", first, "runs/s"),
            Row("by threads", speeds["by threads"], "runs/s", speeds["bare threads"]),
            Row("in an event loop", speeds["in an event loop"], "runs/s", speeds["bare event loop"]),
        ),
        (f"best of {BLOCKS} blocks of {count}; more than 1x is faster than bare",),
    )


def _well(box: Sandbox) -> None:
    result = box.run(COMMAND)
    if not result.ok:
        raise RuntimeError(f"a run in the crowd failed: {result}")


def _by_threads(run: Callable[[], object], count: int) -> None:
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for future in [pool.submit(run) for _ in range(count)]:
            future.result()


async def _bare() -> None:
    process = await asyncio.create_subprocess_exec(*COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    await process.communicate()


async def _crowd(run: Callable[[], object], count: int) -> None:
    gate = asyncio.Semaphore(AT_A_TIME)

    async def one() -> None:
        async with gate:
            await run()  # type: ignore[misc]  # both ways give something to await

    await asyncio.gather(*(one() for _ in range(count)))
