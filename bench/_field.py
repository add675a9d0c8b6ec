"""Starts the other sandboxes that work on this machine, and notes why the rest are not compared."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from bench._peers import PEERS, Missing
from bench._place import make_project
from bench._running import Running, canary

HELD = "each other sandbox kept a canary from writing outside its project first"


@contextmanager
def field(folder: Path, place: str, notes: list[str], trial: list[list[str]] | None = None) -> Iterator[list[Running]]:
    """Yield the sandboxes that stop the canary and run every trial command. Yield none if `place` is empty."""
    with ExitStack() as stack:
        running = []
        for peer in PEERS if place else ():
            try:
                at_work = Running(peer, place, make_project(folder / peer.name))
                stack.callback(at_work.close)
                canary(at_work, folder / "outside")
                for argv in trial or ():
                    at_work.run(argv)
            except (Missing, OSError) as missing:
                notes.append(f"{peer.name} is not compared: {missing}")
            else:
                running.append(at_work)
        if running:
            notes.append(HELD)
        yield running


class Runs(Protocol):
    """An object that runs a command and waits for its end."""

    def run(self, argv: list[str]) -> int | None:
        """Run a command. Return its nanoseconds if the sandbox measures them. Raise Missing when the command fails."""


class Trying:
    """Runs one command in a sandbox on every call. After the first failure `why` holds the reason, and later calls do nothing."""

    def __init__(self, running: Runs, argv: list[str]) -> None:
        self.why = ""
        self._running = running
        self._argv = argv

    def __call__(self) -> int | None:
        if self.why:
            return 0
        try:
            return self._running.run(self._argv)
        except (Missing, OSError) as error:
            self.why = str(error)
            return 0
