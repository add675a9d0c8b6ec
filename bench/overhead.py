"""A contained command against bare `subprocess.run(capture_output=True)` in turns, and other sandboxes against the same."""

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, chdir
from functools import partial
from pathlib import Path
from select import POLLIN, poll

from bench._peers import PEERS, Missing, Running, canary, installed_version
from bench._place import make_project, workplace
from bench._rows import Row, Section, at_most
from bench._turns import ROUNDS, Options, Timing, compared, in_turns
from corral import Containment, ContainmentError, Sandbox, SandboxConfig

AS_USER = True
Way = Callable[[], object]
PEER_SECONDS = 4.0  # for one peer and command at 300 rounds; the slow ones get fewer turns
COMMANDS = {
    "/bin/true": ["/bin/true"],
    "git status": ["/usr/bin/git", "status", "--short"],
    "a Python script": ["/usr/bin/python3", "hello.py"],
    # By pipe: not every peer gives a directory for temporary files.
    "a C compile": ["/usr/bin/gcc", "-pipe", "-c", "hello.c", "-o", "hello.o"],
}
BACKENDS = {"corral": "auto", "corral by bubblewrap": "bubblewrap", "corral without containment": "none"}
TEXT = "echo one; echo two | cat"
BASH = ["/bin/bash", "--noprofile", "--norc", "-c", "--", TEXT]


def measure(options: Options) -> Section:
    """Return what a run costs beyond the process itself."""
    with workplace() as folder, ExitStack() as stack:
        project = make_project(folder / "project")
        notes: list[str] = []
        boxes = {name: stack.enter_context(box) for name, box in _boxes(project, notes).items()}
        # posix_spawn has no word for the directory.
        with chdir(project):
            rows = _ours(boxes, project, options.rounds)
        peers = _at_work(folder, options.peers, notes) if options.peers else {}
        for peer in peers.values():
            stack.callback(peer.close)
        for what in COMMANDS if peers else ():
            rows[what] += _theirs(what, peers, project, options.rounds)
    return Section("what a command costs", tuple(row for some in rows.values() for row in some), tuple(notes))


def _boxes(project: str, notes: list[str]) -> dict[str, Sandbox]:
    """Return a warm sandbox for each backend that is to be had; of the rest, note why not."""
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


def _ours(boxes: dict[str, Sandbox], project: str, rounds: int) -> dict[str, list[Row]]:
    rows = {}
    for what, argv in COMMANDS.items():
        ways: dict[str, Way] = {}
        for name, box in boxes.items():
            _must_end_well(box, argv)
            ways[name] = partial(box.run, argv)
        ways |= {"posix_spawn": partial(spawned, argv), "bare": partial(bare, argv, project)}
        rows[what] = _rows(what, in_turns(ways, rounds))
    what = "a pipeline in bash"
    ways = {name: partial(box.run, TEXT, shell=True) for name, box in boxes.items()}
    return rows | {what: _rows(what, in_turns(ways | {"bare": partial(bare, BASH, project)}, rounds))}


def _at_work(folder: Path, place: str, notes: list[str]) -> dict[str, Running]:
    """Return the other sandboxes that hold, by name and version; of the rest, note why they are left out."""
    running = {}
    for peer in PEERS:
        try:
            at_work = Running(peer, place, make_project(folder / peer.name))
            try:
                canary(at_work, folder / "outside")
                for argv in COMMANDS.values():
                    at_work.run(argv)
            except Missing:
                at_work.close()
                raise
        except Missing as missing:
            notes.append(f"{peer.name} is not compared: {missing}")
        else:
            running[f"{peer.name} {installed_version(peer)}"] = at_work
    if running:
        notes.append(
            "each other sandbox was held to a canary that writes outside, and is measured in turns with bare runs"
        )
    return running


def _theirs(what: str, peers: dict[str, Running], project: str, rounds: int) -> list[Row]:
    argv = COMMANDS[what]
    ways: dict[str, Way] = {name: partial(peer.run, argv) for name, peer in peers.items()}
    ways["bare"] = partial(bare, argv, project)
    return _rows(what, in_turns(ways, rounds, seconds_each=PEER_SECONDS * rounds / ROUNDS))


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
    """Run a command as everybody does."""
    subprocess.run(argv, capture_output=True, check=False, cwd=project)


def spawned(argv: list[str]) -> None:
    """Run a command with as little around it as Python allows: this is the floor."""
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
