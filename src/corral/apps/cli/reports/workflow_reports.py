"""Writes what GitHub Actions shows of a run and of an evaluation: annotations and a job summary."""

from __future__ import annotations

import os
import sys

from corral.apps.cli.reports.workflow_commands import add_summary, annotation, table
from corral.model.render_result import exit_status, violation_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corral.apps.cli.reports.workflow_commands import Guard
    from corral.apps.evals.outcome import Outcome
    from corral.model.result import SandboxResult

MAX_ANNOTATIONS = 10  # GitHub shows no more of each kind for a step
MAX_ROWS = 200


def report_result(result: SandboxResult, guard: Guard | None) -> None:
    """Report the result of one call. Without annotations where the runner may still read output of the command."""
    command = result.argv[-1] if result.shell and result.argv else " ".join(result.argv)
    outcome = "denied" if result.denied else "timed out" if result.timed_out else f"exit code {exit_status(result)}"
    rows = [
        ("command", command),
        ("outcome", f"{outcome}: {result.reason}" if result.denied else outcome),
        ("enforcement", ", ".join((result.enforcement, *(f"without {name}" for name in result.missing_layers)))),
        *(("stopped", violation_text(violation, 0)) for violation in result.violations),
    ]
    add_summary(table(("corral run", ""), rows) + "\n", os.environ)
    if guard is not None and not guard.resume(has_run=not result.denied):
        return
    if result.denied:
        print(annotation("error", "corral denied a command", f"{command}: {result.reason}"), file=sys.stderr)
    for violation in result.violations[:MAX_ANNOTATIONS]:
        print(annotation("warning", "corral stopped an access", violation_text(violation, 0)), file=sys.stderr)


def task_annotations(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield an annotation for each task that failed, up to the number that GitHub shows."""
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    for outcome in bad[:MAX_ANNOTATIONS]:
        yield annotation("error", f"{outcome.status}: {outcome.id}", "\n".join(outcome.words) or outcome.status)


def job_summary(outcomes: Sequence[Outcome]) -> str:
    """Return the results of an evaluation as Markdown: the numbers, the rates of the tags, the tasks that did not pass."""
    from corral.apps.evals.results import counts, rates  # noqa: PLC0415  `corral run` does without

    found = counts(outcomes)
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    parts = [table(("corral eval", *found), [(f"{len(outcomes)} tasks", *map(str, found.values()))])]
    if bad:
        rows = [(outcome.id, outcome.status, "; ".join(outcome.words)) for outcome in bad[:MAX_ROWS]]
        rows += [(f"and {len(bad) - MAX_ROWS} more", "", "")] * (len(bad) > MAX_ROWS)
        parts.append(table(("task", "status", "why"), rows))
    if tags := rates(outcomes):
        parts.append(table(("tag", "passed", "tried"), [(tag.tag, str(tag.passed), str(tag.tried)) for tag in tags]))
    return "\n".join(parts) + "\n"
