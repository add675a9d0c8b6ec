"""Compares git directories now and then while commands run for long, in one thread for all sandboxes of a process."""

from __future__ import annotations

import os
from _thread import start_new_thread
from _weakref import ref
from time import sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from corral.git.membrane import Membrane

    class Busy(Protocol):
        """The pool of a sandbox."""

        def is_busy(self) -> bool: ...


TICK_SECONDS = 1.0
_watched: list[tuple[ref[Membrane], ref[Busy]]] = []
_runs_in = [0]  # the process whose thread runs


def watch(membrane: Membrane, pool: Busy) -> None:
    """Compare the git directories of a sandbox once a second while its pool is busy. Both are held weakly."""
    if _runs_in[0] != os.getpid():
        _watched.clear()
        try:
            start_new_thread(_run, (os.getpid(),))
        except RuntimeError:
            # The process has no more threads. The comparison after each command remains.
            return
        _runs_in[0] = os.getpid()
    _watched.append((ref(membrane), ref(pool)))


def _run(process: int) -> None:
    while _runs_in[0] in (0, process):
        sleep(TICK_SECONDS)
        for pair in _watched[:]:
            membrane, pool = pair[0](), pair[1]()
            if membrane is None or pool is None:
                _watched.remove(pair)
            elif pool.is_busy():
                membrane.compare_meanwhile(pool.is_busy)
            del membrane, pool
