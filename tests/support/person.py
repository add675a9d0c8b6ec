"""Runs corral's command line as a person who sits at no terminal, and as one who answers questions at a terminal."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from screen import OrphanScreen

CORRAL = (sys.executable, "-m", "corral")
END = b"[N]o > "  # of every question
Ask = Callable[..., OrphanScreen]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run corral without a terminal."""
    return subprocess.run(
        [*CORRAL, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
        check=False,
    )


@contextmanager
def terminals(project: Path, columns: int = 300) -> Iterator[Ask]:
    """A function that runs corral on a terminal of its own."""
    made: list[OrphanScreen] = []

    def make(*command: str, **environ: str) -> OrphanScreen:
        environ = {"NO_COLOR": "1"} | environ
        made.append(OrphanScreen([*CORRAL, *command], project, columns=columns, environ=environ))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.close()
