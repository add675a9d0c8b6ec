"""Measures the cold start of corral and other sandboxes, compared with a bare interpreter, `python -I -S -c pass`.

"From nothing" means: a new process starts, loads the sandbox, runs /bin/true in it, and exits.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns

from bench._field import Trying, field
from bench._place import make_project, workplace
from bench._rows import Row, Section, at_most
from bench._running import Running
from bench._turns import Options, Timing, compared, in_turns, timing
from bench.startup import HEAD, RUN, started
from corral import Sandbox, SandboxConfig

AS_USER = True
TRUE = ["/bin/true"]
PEER_SECONDS = 3.0  # for each other sandbox
Way = Callable[[], object]


def measure(options: Options) -> Section:
    """Return the time to start a sandbox, to close it, and to start one more warden."""
    rounds = max(options.rounds // 6, 5)
    endings: list[int] = []
    with workplace() as folder:
        project = make_project(folder / "project")

        def cold() -> int:
            begun = perf_counter_ns()
            with Sandbox(SandboxConfig(project)) as box:
                if not box.run(["/bin/true"]).ok:
                    raise RuntimeError("/bin/true failed in a new sandbox")
                ended = perf_counter_ns()
            endings.append(perf_counter_ns() - ended)
            return ended - begun

        ways: dict[str, Way] = {
            "cold": cold,
            "nothing": partial(started, HEAD + RUN, project),
            "bare": partial(started, "pass", project),
        }
        times = in_turns(ways, rounds)
        further = _further_warden(project, rounds)
        notes: list[str] = []
        with field(folder, options.peers, notes) as peers:
            others = _from_nothing(peers, project, rounds, notes)
    bare = times["bare"]
    rows = (
        compared("Sandbox() to its first result", times["cold"], bare, at_most(6)),
        compared("its end", timing(endings), bare),
        compared("one more warden", further, bare),
        compared("from nothing to the end of /bin/true: corral", times["nothing"], bare),
    )
    return Section("the cold start of a sandbox, against python -I -S -c pass", (*rows, *others), tuple(notes))


def _from_nothing(peers: list[Running], project: str, rounds: int, notes: list[str]) -> list[Row]:
    if not peers:
        return []
    ways = {peer.name: Trying(Fresh(peer) if peer.peer.command is None else peer, TRUE) for peer in peers}
    unit: dict[str, Way] = {"bare": partial(started, "pass", project)}
    times = in_turns(ways | unit, rounds, seconds_each=PEER_SECONDS)
    bare = times.pop("bare")
    notes += [f"{name} is not compared: {way.why}" for name, way in ways.items() if way.why]
    return [
        compared(f"from nothing to the end of /bin/true: {name}", time, bare)
        for name, time in times.items()
        if not ways[name].why
    ]


class Fresh:
    """A library that is loaded again for every command."""

    def __init__(self, peer: Running) -> None:
        self._peer = peer

    def run(self, argv: list[str]) -> None:
        """Run one command in a new process."""
        worker = self._peer.worker()
        try:
            worker.ask(argv)
        finally:
            worker.close()


def _further_warden(project: str, rounds: int) -> Timing:
    samples = []
    with Sandbox(SandboxConfig(project)) as box:
        box.run(["/bin/true"])
        for _ in range(rounds):
            begun = perf_counter_ns()
            warden = box._pool._make()
            samples.append(perf_counter_ns() - begun)
            warden.close()
    return timing(samples)
