"""`corral eval`: tasks in throwaway projects, several at a time, resumed where a run was broken off; or two runs compared."""

from __future__ import annotations

import os
import sys
from signal import SIGHUP, SIGTERM, default_int_handler, signal
from time import monotonic, time

from corral._lib.terminal import message, printable, terminal_of
from corral.apps.cli.progress import StatusLine
from corral.apps.evals.compare import compare
from corral.apps.evals.journal import NAME, Journal
from corral.apps.evals.render_report import comparison_text, outcome_text, progress_text, summary_text
from corral.apps.evals.results import forget, read, summary, write
from corral.apps.evals.run_suite import evaluate
from corral.apps.evals.task_loader import FIXTURES, TaskError, load
from corral.integrations.hooks.hook_command import project_of
from corral.model.errors import CorralError
from corral.model.render_result import FAILURE_STATUS, json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Self

    from corral.apps.evals.outcome import Outcome
    from corral.apps.evals.task import Task


def main(options: argparse.Namespace) -> int:
    """Run the tasks, or compare two runs; 0 only if nothing speaks against it."""
    if options.compare:
        return _compare(options)
    try:
        tasks = _chosen(load([*([FIXTURES] if options.fixtures else []), *options.tasks]), options.tags)
    except TaskError as error:
        for line in str(error).split("\n"):
            print(message(f"corral: {line}", sys.stderr, os.environ), file=sys.stderr)
        return FAILURE_STATUS
    if options.list:
        for task in tasks:
            print(json_text({"id": task.id, "tags": task.tags, "source": task.source}) if options.json else task.id)
        return 0
    return _run(tasks, options)


def _chosen(tasks: list[Task], tags: Sequence[str]) -> list[Task]:
    chosen = [task for task in tasks if not tags or {*tags} & {*task.tags}]
    if not chosen:
        known = ", ".join(sorted({tag for task in tasks for tag in task.tags}))
        raise CorralError(f"no task has a tag of {', '.join(tags)}; known: {known}")
    return chosen


def _run(tasks: list[Task], options: argparse.Namespace) -> int:
    for number in (SIGTERM, SIGHUP):
        # As Ctrl-C: an exception, so that what runs is ended on the way out.
        signal(number, default_int_handler)
    begun = monotonic()
    root = project_of(os.getcwd(), os.environ)
    with Journal(options.out, fresh=options.fresh, root=root) as journal, Progress(len(tasks)) as progress:
        forget(options.out)
        if os.path.lexists(old := os.path.join(options.out, NAME)):
            progress.say(
                f"corral: {printable(old)} is ignored, because a command could have written it. "
                "corral keeps its journals in ~/.local/state/corral now. Remove the file."
            )
        keys = [(task.id, task.digest) for task in tasks]
        known = [journal.done[key] for key in keys if key in journal.done]
        if known:
            progress.say(
                f"corral: continuing the run in {printable(options.out)}: {len(known)} of {len(tasks)} tasks are done"
            )
        progress.begin(known)
        try:
            for outcome in evaluate(tasks, journal, workers=options.workers, engine=options.engine):
                progress.add(outcome)
        except KeyboardInterrupt:
            done = sum(key in journal.done for key in keys)
            progress.say(f"corral: interrupted; {done} of {len(tasks)} tasks are done, and the same command goes on")
            raise
        outcomes = [journal.done[key] for key in keys]
        write(options.out, outcomes)
        # Last: a run whose results were lost, to a full disk or a kill, is not at its end.
        journal.finish(time())
    if options.json:
        print(json_text(summary(outcomes)))
    else:
        told = progress.told if sys.stdout.isatty() else ()
        print(summary_text(outcomes, monotonic() - begun, terminal_of(sys.stdout, os.environ), told=told))
        print(f"corral: results are in {options.out}", file=sys.stderr)
    return int(not all(outcome.is_good for outcome in outcomes))


def _compare(options: argparse.Namespace) -> int:
    comparison = compare(*(read(path) for path in options.compare))
    if options.json:
        print(json_text(comparison.to_dict()))
    else:
        print(comparison_text(comparison, terminal_of(sys.stdout, os.environ)))
    return int(comparison.is_worse)


class Progress:
    """A bar on the terminal, below what did not pass. Where stderr is none, nothing is drawn."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = StatusLine()
        self._done = self._known = self._bad = 0
        self.told: set[str] = set()  # ids of the tasks whose failure stands above the bar
        self._begun = monotonic()

    def begin(self, known: Sequence[Outcome]) -> None:
        """Count what an earlier run has done."""
        self._known = self._done = len(known)
        self._bad = sum(not outcome.is_good for outcome in known)
        self._draw()

    def add(self, outcome: Outcome) -> None:
        """Count one more; one that did not pass is shown at once."""
        self._done += 1
        self._bad += not outcome.is_good
        if not outcome.is_good and self._line.is_drawn:
            self.told.add(outcome.id)
            self.say(outcome_text(outcome, self._line.terminal))
        if self._line.is_due or self._done == self._total:
            self._draw()

    def say(self, text: str) -> None:
        """Print words above the bar."""
        self._line.wipe()
        print(text, file=sys.stderr)

    def _draw(self) -> None:
        seconds = monotonic() - self._begun
        terminal = self._line.terminal
        self._line.draw(progress_text(self._done, self._total, self._bad, seconds, terminal, known=self._known))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.wipe()
