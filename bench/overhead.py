"""Measures commands in corral and other sandboxes against bare `subprocess.run(capture_output=True)`, in turns."""

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, chdir
from functools import partial
from select import POLLIN, poll

from bench._container import NAME, ContainerSandbox
from bench._field import Trying, field
from bench._floor import Floor
from bench._place import make_project, workplace
from bench._rows import Row, Section, at_most
from bench._running import Running
from bench._turns import ROUNDS, Options, Timing, compared, in_turns
from corral import Containment, ContainmentError, Sandbox, SandboxConfig

AS_USER = True
Way = Callable[[], object]
PEER_SECONDS = 4.0  # for one peer and command at 300 rounds; slow peers get fewer turns
COMMANDS = {
    "/bin/true": ["/bin/true"],
    "git status": ["/usr/bin/git", "status", "--short"],
    "a Python script": ["/usr/bin/python3", "hello.py"],
    # -pipe: not every peer provides a directory for temporary files.
    "a C compile": ["/usr/bin/gcc", "-pipe", "-c", "hello.c", "-o", "hello.o"],
}
BACKENDS = {"corral": "auto", "corral by bubblewrap": "bubblewrap", "corral without containment": "none"}
FLOOR = "a process that only spawns"
TEXT = "echo one; echo two | cat"
BASH = ["/bin/bash", "--noprofile", "--norc", "-c", "--", TEXT]


def measure(options: Options) -> Section:
    """Return the time of each command in each candidate."""
    with workplace() as folder, ExitStack() as stack:
        project = make_project(folder / "project")
        notes: list[str] = []
        floor = Floor(project)
        stack.callback(floor.close)
        boxes = {name: stack.enter_context(box) for name, box in _boxes(project, notes).items()}
        container = ContainerSandbox(project)
        stack.callback(container.close)
        notes.append(f"{NAME}: enforcement is {container.enforcement}")
        # posix_spawn cannot set the working directory.
        with chdir(project):
            rows = _ours(boxes, container, floor, project, options.rounds)
        peers = stack.enter_context(field(folder, options.peers, notes, list(COMMANDS.values())))
        for what in COMMANDS if peers else ():
            rows[what] += _theirs(what, peers, project, options.rounds, notes)
    return Section("what a command costs", tuple(row for some in rows.values() for row in some), tuple(notes))


def _boxes(project: str, notes: list[str]) -> dict[str, Sandbox]:
    """Return a warm sandbox for each backend that is available, and note why the others are not."""
    boxes = {}
    for name, backend in BACKENDS.items():
        box = Sandbox(SandboxConfig(project, containment=Containment(backend=backend)))
        try:
            enforcement = box.run(["/bin/true"]).enforcement
        except ContainmentError as error:
            notes.append(f"{name} is not measured: {error}")
            box.close()
        else:
            notes.append(f"{name}: enforcement is {enforcement}")
            boxes[name] = box
    return boxes


def _ours(
    boxes: dict[str, Sandbox], container: ContainerSandbox, floor: Floor, project: str, rounds: int
) -> dict[str, list[Row]]:
    rows = {}
    for what, argv in COMMANDS.items():
        ways: dict[str, Way] = {}
        for name, box in boxes.items():
            _must_end_well(box, argv)
            ways[name] = partial(box.run, argv)
        ways[NAME] = partial(container.run, argv)
        ways |= {FLOOR: _untimed(partial(floor.run, argv)), "posix_spawn": partial(spawned, argv)}
        rows[what] = _rows(what, in_turns(ways | {"bare": partial(bare, argv, project)}, rounds))
    what = "a pipeline in bash"
    ways = {name: partial(box.run, TEXT, shell=True) for name, box in boxes.items()}
    ways[NAME] = partial(container.run, TEXT, shell=True)
    ways[FLOOR] = _untimed(partial(floor.run, BASH))
    return rows | {what: _rows(what, in_turns(ways | {"bare": partial(bare, BASH, project)}, rounds))}


def _untimed(run: Callable[[], int]) -> Way:
    """Return a function that runs the command and returns nothing: `timed` would take a returned status for nanoseconds."""

    def way() -> None:
        if run():
            raise RuntimeError("a command failed in the process that only spawns")

    return way


def _theirs(what: str, peers: list[Running], project: str, rounds: int, notes: list[str]) -> list[Row]:
    argv = COMMANDS[what]
    ways = {peer.name: Trying(peer, argv) for peer in peers}
    unit: dict[str, Way] = {"bare": partial(bare, argv, project)}
    times = in_turns(ways | unit, rounds, seconds_each=PEER_SECONDS * rounds / ROUNDS)
    for name in [name for name, way in ways.items() if way.why]:
        notes.append(f"{name} is not compared for {what}: {ways[name].why}")
        del times[name]
    return _rows(what, times)


def _must_end_well(box: Sandbox, argv: list[str]) -> None:
    result = box.run(argv)
    if not result.ok:
        raise RuntimeError(f"{argv} ended with {result.exit_code}: {result.reason or result.stderr_text}")


def _rows(what: str, times: dict[str, Timing]) -> list[Row]:
    unit = times.pop("bare")
    return [
        compared(f"{what}: {name}", time, unit, at_most(1.10) if name == "corral" else None)
        for name, time in times.items()
    ]


def bare(argv: list[str], project: str) -> None:
    """Run a command with `subprocess.run`."""
    subprocess.run(argv, capture_output=True, check=False, cwd=project)


def spawned(argv: list[str]) -> None:
    """Run a command with `posix_spawn`, the cheapest way in Python."""
    pipes = os.pipe(), os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, pipes[0][1], 1), (os.POSIX_SPAWN_DUP2, pipes[1][1], 2)]
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
    poller = poll()
    reading = set()
    for ours, theirs in pipes:
        os.close(theirs)
        poller.register(ours, POLLIN)
        reading.add(ours)
    while reading:
        for descriptor, _ in poller.poll():
            if not os.read(descriptor, 1 << 16):
                poller.unregister(descriptor)
                reading.discard(descriptor)
                os.close(descriptor)
    os.waitpid(pid, 0)
