"""Measures how fast each sandbox reads 256 MB of output, and by how much the caller's memory grows.

corral keeps the head and the tail and counts the rest. The others keep all of it, as `subprocess.run(capture_output=True)` does.
"""

from collections.abc import Callable
from pathlib import Path

from bench._field import field
from bench._peers import Missing
from bench._place import make_project, workplace
from bench._rows import Row, Section
from bench._running import Running, Worker
from bench._turns import Options

AS_USER = False
BYTES = 256_000_000
ROUNDS = 3
FEW_ROUNDS = 30  # with fewer rounds, one sample is enough
PRINT = ["/bin/cat", "zero"]
Side = Callable[[], tuple[Worker, list[str]]]


def measure(options: Options) -> Section:
    """Return the best throughput and the smallest memory growth of each candidate."""
    rounds = ROUNDS if options.rounds >= FEW_ROUNDS else 1
    notes = [f"best of {rounds} in a new process each; memory is the growth of the resident set's peak"]
    with workplace() as folder:
        project = make_project(folder / "project")
        _print_much(project)
        sides: dict[str, Side] = {
            "subprocess.run": lambda: (Worker("bare", project), PRINT),
            "corral": lambda: (Worker("corral", project), PRINT),
        }
        with field(folder, options.peers, notes) as peers:
            sides |= {peer.name: _side(peer) for peer in peers}
            rows = _rows({name: _best(name, side, rounds, notes) for name, side in sides.items()})
    return Section("256 MB of output", tuple(rows), tuple(notes))


def _print_much(project: str) -> None:
    with Path(project, "zero").open("wb") as sparse:
        sparse.truncate(BYTES)


def _side(peer: Running) -> Side:
    _print_much(peer.project)
    if peer.peer.command is None:
        return lambda: (peer.worker(), PRINT)
    return lambda: (Worker("bare", peer.project, peer.env), peer.command(PRINT))


def _best(name: str, side: Side, rounds: int, notes: list[str]) -> tuple[float, float] | None:
    """Return gigabytes per second and MiB. If the sandbox fails, add a note and return None."""
    speed, grown = 0.0, 0.0
    for _ in range(rounds):
        worker, argv = side()
        try:
            if argv is PRINT:
                # A library is warm before it is measured; a program starts again for every command.
                worker.ask(["/bin/true"])
            answer = worker.ask(argv)
        except (Missing, OSError) as error:
            notes.append(f"{name} is not compared: {error}")
            return None
        finally:
            worker.close()
        if answer["printed"] != BYTES:
            notes.append(f"{name} is not compared: it gave {answer['printed']:,} bytes of {BYTES:,}")
            return None
        speed, grown = max(speed, BYTES / answer["ns"]), max(grown, answer["grown_mib"])
    return speed, grown


def _rows(found: dict[str, tuple[float, float] | None]) -> list[Row]:
    bare = found.pop("subprocess.run")
    assert bare is not None
    rows = [Row("taken in: subprocess.run", bare[0], "GB/s"), Row("memory: subprocess.run", bare[1], "MiB")]
    for name, both in found.items():
        if both is not None:
            rows += [
                Row(f"taken in: {name}", both[0], "GB/s", bare[0]),
                Row(f"memory: {name}", both[1], "MiB", bare[1]),
            ]
    return rows
