"""`corral eval`: runs tasks in throwaway projects in parallel, continues an interrupted run, and compares two runs."""

from __future__ import annotations

import os
import sys
from time import monotonic, time

from corral._lib.signals import raise_on_termination
from corral._lib.status_line import StatusLine
from corral._lib.terminal import message, printable, terminal_of
from corral.apps.cli.arguments import REPORT, worker_arguments
from corral.apps.cli.reports.workflow_commands import Guard, add_summary, harmless_json, is_wanted
from corral.apps.cli.reports.workflow_reports import job_summary, task_annotations
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.apps.evals.compare import compare
from corral.apps.evals.journal import NAME, Journal
from corral.apps.evals.render_report import comparison_text, outcome_text, progress_text, summary_text
from corral.apps.evals.results import forget, read, summary, write
from corral.apps.evals.run_suite import evaluate
from corral.apps.evals.task_loader import FIXTURES, TaskError, load
from corral.apps.evals.validate_tasks import POLICY_KEYS
from corral.integrations.hooks.hook_command import project_of
from corral.model.errors import CorralError
from corral.model.render_result import FAILURE_STATUS, json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from corral.apps.evals.outcome import Outcome
    from corral.apps.evals.task import Task

VERB = Verb(
    "machine",
    "Run tasks in throwaway projects and show which passed; compare two runs.",
    examples="""\
corral eval tasks/                            run every task of a directory in parallel
corral eval --fixtures --out here             run the tasks that come with corral
corral eval tasks/ --tag path --workers 4     run only tasks with this tag
corral eval tasks/ --allow timeout_seconds    let tasks have a longer time limit than your policy
corral eval --compare before after            show what changed between two runs
""",
    notes="""\
A task consists of files, calls and the expected outcome. Each runs in a throwaway project of its own. An interrupted run
continues: finished tasks are not run again. corral writes results.jsonl, junit.xml and summary.json to --out.

The tasks test sandboxes and policies: whether calls are refused, contained and reported as expected. They do not measure how well
an agent solves a problem. Evaluate agents in a framework for that, such as Inspect, SWE-agent or Harbor, with corral as its
sandbox: docs/frameworks.md.

An agent may have written a task file, so a task may only tighten your policy, as a corral.toml that is not trusted.
""",
    exit_codes="0 all tasks passed or could not be tried here, 1 a task failed or got worse, 125 a task file is wrong or corral itself failed, 130 interrupted",
    arguments=(
        argument("tasks TASKS", "Run these task files (.toml, .jsonl), or directories of them.", nargs="*"),
        argument("--fixtures", "Run the tasks that come with corral."),
        argument("--out DIR", "Write the results here (default: corral-eval).", default="corral-eval"),
        argument("--fresh", "Start again, although a run in DIR was interrupted."),
        argument("--tag TAG", "Run only tasks with this tag.", dest="tags", action="append", default=[]),
        argument(
            "--allow SETTING",
            "Let tasks loosen this setting, such as containment.network. Read the task files first.",
            action="append",
            default=[],
            choices=tuple(POLICY_KEYS),
        ),
        argument("--list", "Print the ids of the tasks and run nothing."),
        argument("--compare A B", "Show what changed between two runs."),
        REPORT,
        *worker_arguments(),
    ),
)


def check_arguments(options: Options, _: list[str]) -> None:
    """Require tasks, or two runs to compare."""
    tasks = options.tasks or options.fixtures
    if options.compare and tasks:
        raise UsageError("--compare reads two runs and runs no tasks")
    if not options.compare and not tasks:
        raise UsageError("give task files or directories of them, or --fixtures for the tasks that come with corral")


def main(options: Options) -> int:
    """Run the tasks, or compare two runs. Returns 0 if all passed, or nothing got worse."""
    if options.compare:
        return _compare(options)
    try:
        root = project_of(os.getcwd(), os.environ)
        paths = [*([FIXTURES] if options.fixtures else []), *options.tasks]
        tasks = _chosen(load(paths, allowed=options.allow, root=root), options.tags)
    except TaskError as error:
        for line in str(error).split("\n"):
            print(message(f"corral: {line}", sys.stderr, os.environ), file=sys.stderr)
        return FAILURE_STATUS
    if options.list:
        for task in tasks:
            print(json_text({"id": task.id, "tags": task.tags, "source": task.source}) if options.json else task.id)
        return 0
    return _run(tasks, options, root)


def _chosen(tasks: list[Task], tags: Sequence[str]) -> list[Task]:
    chosen = [task for task in tasks if not tags or {*tags} & {*task.tags}]
    if not chosen:
        known = ", ".join(sorted({tag for task in tasks for tag in task.tags}))
        raise CorralError(f"no task has a tag of {', '.join(tags)}; known tags: {known or 'none'}")
    return chosen


def _run(tasks: list[Task], options: Options, root: str) -> int:
    raise_on_termination()
    begun = monotonic()
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
            progress.say(
                f"corral: interrupted; {done} of {len(tasks)} tasks are done. Run the same command to continue"
            )
            raise
        outcomes = [journal.done[key] for key in keys]
        write(options.out, outcomes)
        # Last, so that a run whose results were lost to a full disk or a kill counts as interrupted.
        journal.finish(time())
    reports = is_wanted(options.report, os.environ)
    if options.json:
        text = json_text(summary(outcomes))
        print(harmless_json(text) if reports else text)
    else:
        shown = progress.shown if sys.stdout.isatty() else ()
        text = summary_text(outcomes, monotonic() - begun, terminal_of(sys.stdout, os.environ), told=shown)
        guard = Guard(sys.stdout) if reports else None  # names and outputs of tasks are in it
        print(text)
        if guard is not None:
            guard.resume()
        print(f"corral: results are in {options.out}", file=sys.stderr)
    if reports:
        for line in task_annotations(outcomes):
            print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
        add_summary(job_summary(outcomes), os.environ)
    return int(not all(outcome.is_good for outcome in outcomes))


def _compare(options: Options) -> int:
    comparison = compare(*(read(path) for path in options.compare))
    if options.json:
        print(json_text(comparison.to_dict()))
    else:
        print(comparison_text(comparison, terminal_of(sys.stdout, os.environ)))
    return int(comparison.is_worse)


class Progress:
    """Draws a progress bar below the failed tasks. Draws nothing if stderr is not a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = StatusLine()
        self._done = self._known = self._bad = 0
        self.shown: set[str] = set()  # ids of the failed tasks that stand above the bar
        self._begun = monotonic()

    def begin(self, known: Sequence[Outcome]) -> None:
        """Count the outcomes of an earlier run."""
        self._known = self._done = len(known)
        self._bad = sum(not outcome.is_good for outcome in known)
        self._draw()

    def add(self, outcome: Outcome) -> None:
        """Count one outcome. A failure is printed at once."""
        self._done += 1
        self._bad += not outcome.is_good
        if not outcome.is_good and self._line.is_drawn:
            self.shown.add(outcome.id)
            self.say(outcome_text(outcome, self._line.terminal))
        if self._line.is_due or self._done == self._total:
            self._draw()

    def say(self, text: str) -> None:
        """Print a text above the bar."""
        self._line.clear()
        print(text, file=sys.stderr)

    def _draw(self) -> None:
        seconds = monotonic() - self._begun
        terminal = self._line.terminal
        self._line.draw(progress_text(self._done, self._total, self._bad, seconds, terminal, known=self._known))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()
