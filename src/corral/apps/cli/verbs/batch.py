"""`corral batch`: a call a line on stdin, a result a line on stdout, several at a time. A line that can't be read is an error line."""

from __future__ import annotations

import os
import sys
from signal import SIGHUP, SIGTERM, default_int_handler, signal
from time import monotonic

from corral._lib.terminal import printable
from corral.apps.cli.approver import Approver
from corral.apps.cli.jsonl import KINDS, MAX_QUOTED, LineError, call_in, lines_of, read_object
from corral.apps.cli.progress import StatusLine
from corral.apps.cli.verbs.check import config_of, machine_of
from corral.apps.cli.verbs.run import Record
from corral.audit.audit_log import Log
from corral.model.render_result import json_text
from corral.policy.settings import MAX_SECONDS
from corral.runtime.batch import KEYS, BatchCall, LocalWork
from corral.runtime.executor import executor_named, stream_results
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from typing import IO, Any, Self

    from corral.model.result import SandboxResult
    from corral.runtime.executor import Work, Worker

    Item = tuple[object, BatchCall | str]

OUTCOMES = ("succeeded", "failed", "refused", "timed out", "not valid")


def main(options: argparse.Namespace) -> int:
    """Answer every line; 0 whatever the commands did, since the answers are the output."""
    for number in (SIGTERM, SIGHUP):
        # As Ctrl-C: an exception, so that what runs is ended on the way out.
        signal(number, default_int_handler)
    config = config_of(options)
    record = Record(Log(config, event="batch"), required=config.audit.required)
    record.check()
    asking = Approver(config, machine_of, may_ask=False)
    is_here = options.engine == "local"
    with Sandbox(config, on_ask=asking.answer, on_result=record.result if is_here else None) as box:
        work = Answering(LocalWork(box.config, box.start))
        workers = executor_named(options.engine).hire(work, options.workers)
        # Not sys.stdin, and never closed: whoever still waits for a line there would hold up the end of the process.
        source = open(0, "rb", closefd=False)  # noqa: SIM115
        items = _items(source, options.idempotent)
        with Progress() as progress, stream_results(work, workers, items, ordered=options.ordered) as answers:
            progress.begin()
            for place, (name, result) in answers:
                if isinstance(result, str):
                    reply: dict[str, object] = {"id": name, "error": result, "line": place + 1}
                else:
                    if not is_here:
                        record.result(result)
                    reply = {"id": name, "result": result.to_dict()}
                _put(reply)
                progress.add(result)
    return 0


class Progress:
    """Shows on a terminal how many lines are answered, and at the end what came of them. Elsewhere it is silent."""

    def __init__(self) -> None:
        self._line = StatusLine()
        self._line.is_drawn &= not sys.stdout.isatty()  # among the answers a line that is redrawn would be noise
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._begun = monotonic()

    def add(self, result: SandboxResult | str) -> None:
        """Count one answer."""
        self._counts[_outcome(result)] += 1
        self._line.count("lines answered", sum(self._counts.values()))

    def begin(self) -> None:
        """Say what is waited for."""
        if os.isatty(0):
            # Without a word, somebody who typed the command alone would wait for an answer.
            print("corral: reading calls from the terminal, one JSON object a line; Ctrl-D ends", file=sys.stderr)
        self._line.draw("corral: waiting for lines of calls")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._line.wipe()
        if sys.stderr.isatty():
            seconds = monotonic() - self._begun
            text = batch_text(self._counts, seconds, interrupted=kind is KeyboardInterrupt)
            print(text, file=sys.stderr)


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
    told = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    lines = f"{total} {'line' if total == 1 else 'lines'}{f': {told}' if told else ''}"
    return f"corral: {'interrupted after ' if interrupted else ''}{lines}; {seconds:.1f} s"


def _put(reply: dict[str, object]) -> None:
    data = memoryview(f"{json_text(reply)}\n".encode())
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _items(source: IO[bytes], idempotent: bool) -> Iterator[Item]:
    for line in lines_of(source):
        try:
            yield read_entry(line, idempotent=idempotent)
        except LineError as error:
            yield error.id, str(error)


def read_entry(line: bytes, *, idempotent: bool) -> tuple[str | int, BatchCall]:
    """Return a line's id, and its call with what it runs on; LineError also where a key is unknown."""
    name, data = read_object(line)
    for key in data:
        if key not in ("id", *KEYS):
            raise LineError(f"the key {printable(key)[:MAX_QUOTED]} is unknown; a line has id, {', '.join(KEYS)}", name)
    call = call_in(name, data)
    env, stdin, seconds = data.get("env"), data.get("stdin"), data.get("timeout_seconds")
    if env is not None and not (isinstance(env, dict) and all(isinstance(value, str) for value in env.values())):
        raise LineError("env must be an object of strings", name)
    if stdin is not None and not isinstance(stdin, str):
        raise LineError(f"stdin must be a string, not {KINDS[type(stdin)]}", name)
    if seconds is not None and (
        not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds <= MAX_SECONDS
    ):
        raise LineError("timeout_seconds must be a number above 0", name)
    repeats = data.get("idempotent", idempotent)
    if not isinstance(repeats, bool):
        raise LineError(f"idempotent must be true or false, not {KINDS[type(repeats)]}", name)
    given = None if stdin is None else stdin.encode("utf-8", "surrogatepass")
    return name, BatchCall(call.replace(env=env), given, seconds, repeats)


class Answering:
    """The work of answering lines: a call is run, an error handed on, so that all answers stand in one order."""

    def __init__(self, calls: Work) -> None:
        self._calls = calls

    def begin(self) -> Answerer:
        """Return a worker."""
        return Answerer(self._calls.begin())

    def may_repeat(self, item: Item) -> bool:
        """Say whether a line may be answered twice."""
        return isinstance(item[1], str) or self._calls.may_repeat(item[1])

    def lost(self, item: Item, why: str) -> tuple[object, object]:
        """Return the answer to a line whose worker was lost."""
        return item[0], item[1] if isinstance(item[1], str) else self._calls.lost(item[1], why)


class Answerer:
    """Answers lines one after the other."""

    def __init__(self, runner: Worker) -> None:
        self._runner = runner
        self.chunk, self.most = runner.chunk, runner.most

    def do_all(self, items: list[Item]) -> list[tuple[object, Any]]:
        """Run the calls among the items."""
        return [(name, work if isinstance(work, str) else self._runner.do_all([work])[0]) for name, work in items]

    def cancel(self) -> None:
        """End the call that runs."""
        self._runner.cancel()

    def close(self) -> None:
        """End what the worker has of its own."""
        self._runner.close()

    def ready(self) -> None:
        """Wait for what runs the calls."""
        self._runner.ready()
