"""Runs the tasks that a journal does not have yet, several at a time, and records each outcome in the journal."""

from __future__ import annotations

from time import time

from corral import __version__
from corral.apps.evals.run_task import PREFIX, Trials
from corral.apps.unguarded import state_dirs_in
from corral.containment.filesystem.process_temp_dir import ProcessTempDir
from corral.model.errors import CorralError
from corral.runtime.executor import executor_named, stream_results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corral.apps.evals.journal import Journal
    from corral.apps.evals.outcome import Outcome
    from corral.apps.evals.task import Task
    from corral.runtime.executor import Executor


def evaluate(
    tasks: Sequence[Task], journal: Journal, *, workers: int | None = None, engine: str | Executor = "local"
) -> Iterator[Outcome]:
    """Run the missing tasks and yield each outcome as it arrives. Closing the iterator kills running calls.

    The caller calls `journal.finish` after it has written the results.
    """
    if journal.done and journal.version != __version__:
        raise CorralError(
            f"{journal.path} belongs to a run of corral {journal.version}, and this is {__version__}; use --fresh to start again"
        )
    rest = [task for task in tasks if (task.id, task.digest) not in journal.done]
    with ProcessTempDir(PREFIX) as place, state_dirs_in(place.path):
        journal.start(len(tasks), time())
        work = Trials(place.path)
        hired = executor_named(engine).hire(work, workers and min(workers, len(rest) or 1))
        with stream_results(work, hired, rest, ordered=False) as outcomes:
            for _, outcome in outcomes:
                journal.add(outcome)
                yield outcome
