"""`corral batch`: runs one call per line of stdin in parallel, and prints one result per line."""

from __future__ import annotations

import os
import sys
from time import monotonic

from corral._lib.signals import raise_on_termination
from corral._lib.status_line import StatusLine
from corral._lib.terminal import printable
from corral.apps.cli.arguments import ROOT, TIMEOUT, profile, worker_arguments
from corral.apps.cli.call import config_of, machine_of
from corral.apps.cli.jsonl import MAX_QUOTED, TYPE_NAMES, LineError, call_in, lines_of, read_object
from corral.apps.cli.questions.approver import Approver
from corral.apps.cli.run_log import RunLog
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.audit.audit_log import Log
from corral.model.render_result import json_text
from corral.policy.settings import MAX_SECONDS
from corral.runtime.batch import KEYS, BatchCall, LocalWork
from corral.runtime.executor import executor_named, stream_results
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO, Any, Self

    from corral.model.result import SandboxResult
    from corral.runtime.executor import Work, Worker

    Item = tuple[object, BatchCall | str]

OUTCOMES = ("succeeded", "failed", "refused", "timed out", "not valid")
VERB = Verb(
    "run",
    "Run many commands in parallel: JSON lines in, JSON lines out.",
    examples="""\
corral batch < calls.jsonl > results.jsonl
corral batch --workers 4 --unordered < calls.jsonl | jq -c '[.id, .result.exit_code]'
""",
    notes="""\
Each line of stdin is {"id": "1", "argv": ["ls"]} or {"id": "1", "shell": "ls | wc -l"}, with optional "cwd", "env",
"stdin", "timeout_seconds" and "idempotent". corral answers each with one line {"id", "result"} and flushes it at once.
The result is what `corral run --json` prints. A line that corral cannot read gets {"id", "error", "line"}.

corral refuses what it would ask about, unless you approved it before. See `corral grants`. An agent may have written the
lines, so "timeout_seconds" can only lower the time limit of --timeout or of your policy.
""",
    exit_codes="0 whatever the commands returned, 125 corral itself failed, 130 interrupted; running commands are killed",
    has_json=False,
    arguments=(
        profile(),
        ROOT,
        TIMEOUT,
        *worker_arguments(),
        argument(
            "--unordered",
            "Print answers as commands end (default: in the order of the lines).",
            dest="ordered",
            action="store_false",
        ),
        argument(
            "--idempotent",
            'Run a command again if its worker process was lost. A line\'s own "idempotent" overrides this.',
        ),
    ),
)


def check_arguments(_: Options, extra: list[str]) -> None:
    """Explain that calls come from stdin."""
    if extra:
        raise UsageError(f"pass the calls on stdin: corral batch < {printable(extra[0])}")


def main(options: Options) -> int:
    """Answer every line. Returns 0 whatever the commands returned, because the answers are the output."""
    raise_on_termination()
    config = config_of(options)
    log = RunLog(Log(config, event="batch"), required=config.audit.required)
    approver = Approver(config, machine_of, may_ask=False)
    is_local = options.engine == "local"
    with Sandbox(config, on_ask=approver.answer, on_result=log.result if is_local else None) as box:
        work = LineWork(LocalWork(box.config, box.start))
        workers = executor_named(options.engine).hire(work, options.workers)
        # Not sys.stdin, and never closed: a thread that still waits for a line would block the end of the process.
        source = open(0, "rb", closefd=False)  # noqa: SIM115
        items = _items(source, options.idempotent, config.timeout_seconds)
        with Progress() as progress, stream_results(work, workers, items, ordered=options.ordered) as answers:
            progress.begin()
            for place, (name, result) in answers:
                if isinstance(result, str):
                    reply: dict[str, object] = {"id": name, "error": result, "line": place + 1}
                else:
                    if not is_local:
                        log.result(result)
                    reply = {"id": name, "result": result.to_dict()}
                _write(reply)
                progress.add(result)
    return 0


class Progress:
    """Shows on a terminal how many lines are answered, and a summary at the end. Silent elsewhere."""

    def __init__(self) -> None:
        self._line = StatusLine()
        self._line.is_drawn &= not sys.stdout.isatty()  # redrawing would disturb the answers
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._begun = monotonic()

    def add(self, result: SandboxResult | str) -> None:
        """Count one answer."""
        self._counts[_outcome(result)] += 1
        self._line.count("lines answered", sum(self._counts.values()))

    def begin(self) -> None:
        """Say that corral waits for lines, in case the user typed only `corral batch`."""
        if os.isatty(0):
            print("corral: reading calls from the terminal, one JSON object per line; Ctrl-D ends", file=sys.stderr)
        self._line.draw("corral: waiting for calls")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._line.clear()
        if sys.stderr.isatty():
            seconds = monotonic() - self._begun
            print(batch_text(self._counts, seconds, interrupted=kind is KeyboardInterrupt), file=sys.stderr)


def _outcome(result: SandboxResult | str) -> str:
    if isinstance(result, str):
        return "not valid"
    if result.denied:
        return "refused"
    if result.timed_out:
        return "timed out"
    return "succeeded" if result.exit_code == 0 else "failed"


def batch_text(counts: Mapping[str, int], seconds: float, *, interrupted: bool) -> str:
    """Return the outcomes of a batch in one line."""
    total = sum(counts.values())
    outcomes = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    lines = f"{total} {'line' if total == 1 else 'lines'}{f': {outcomes}' if outcomes else ''}"
    return f"corral: {'interrupted after ' if interrupted else ''}{lines}; {seconds:.1f} s"


def _write(reply: dict[str, object]) -> None:
    data = memoryview(f"{json_text(reply)}\n".encode())
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _items(source: IO[bytes], idempotent: bool, limit: float | None) -> Iterator[Item]:
    for line in lines_of(source):
        try:
            yield read_entry(line, idempotent=idempotent, limit=limit)
        except LineError as error:
            yield error.id, str(error)


def read_entry(line: bytes, *, idempotent: bool, limit: float | None = None) -> tuple[str | int, BatchCall]:
    """Return the id and the call of a line, with its environment and limits. Raises LineError for an unknown key too.

    `limit` is the time limit of the policy or of the command line. An agent may have written the line, so it may only tighten it.
    """
    name, data = read_object(line)
    for key in data:
        if key not in ("id", *KEYS):
            shown = printable(key)[:MAX_QUOTED]
            raise LineError(f"unknown key {shown}; a line has id, {', '.join(KEYS)}", name)
    call = call_in(name, data)
    env, stdin, seconds = data.get("env"), data.get("stdin"), data.get("timeout_seconds")
    if env is not None and not (isinstance(env, dict) and all(isinstance(value, str) for value in env.values())):
        raise LineError("env must be an object of strings", name)
    if stdin is not None and not isinstance(stdin, str):
        raise LineError(f"stdin must be a string, not {TYPE_NAMES[type(stdin)]}", name)
    if seconds is not None and (
        not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds <= MAX_SECONDS
    ):
        raise LineError("timeout_seconds must be a number above 0", name)
    if seconds is not None and limit is not None and seconds > limit:
        raise LineError(
            f"timeout_seconds is above the limit of {limit:g}; to raise the limit, run: corral batch --timeout {seconds:g}",
            name,
        )
    repeats = data.get("idempotent", idempotent)
    if not isinstance(repeats, bool):
        raise LineError(f"idempotent must be true or false, not {TYPE_NAMES[type(repeats)]}", name)
    given = None if stdin is None else stdin.encode("utf-8", "surrogatepass")
    return name, BatchCall(call.replace(env=env), given, seconds, repeats)


class LineWork:
    """The work of answering lines. A call is run and an error passed on, so that all answers come in one order."""

    def __init__(self, calls: Work) -> None:
        self._calls = calls

    def begin(self) -> LineWorker:
        """Return a worker."""
        return LineWorker(self._calls.begin())

    def may_repeat(self, item: Item) -> bool:
        """Return whether a line may be answered twice."""
        return isinstance(item[1], str) or self._calls.may_repeat(item[1])

    def lost(self, item: Item, why: str) -> tuple[object, object]:
        """Return the answer to a line whose worker was lost."""
        return item[0], item[1] if isinstance(item[1], str) else self._calls.lost(item[1], why)


class LineWorker:
    """Answers lines one after the other."""

    def __init__(self, runner: Worker) -> None:
        self._runner = runner
        self.chunk, self.most = runner.chunk, runner.most
        self.cancel, self.close, self.ready = runner.cancel, runner.close, runner.ready

    def do_all(self, items: list[Item]) -> list[tuple[object, Any]]:
        """Run the calls among the items."""
        return [(name, work if isinstance(work, str) else self._runner.do_all([work])[0]) for name, work in items]
