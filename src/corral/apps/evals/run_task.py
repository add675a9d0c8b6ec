"""One task in a throwaway project of its own: set up, run, judged, and gone without a trace, however it ends."""

from __future__ import annotations

import base64
import os
import stat
import tempfile
from contextlib import ExitStack
from time import perf_counter

from corral.apps.evals.expectations import differences, file_difference, replaced
from corral.apps.evals.outcome import ERROR, FAILED, PASSED, SKIPPED, Outcome
from corral.apps.evals.task import entry_of
from corral.apps.evals.transactions import settle
from corral.containment.filesystem.scratch import remove
from corral.model.errors import ContainmentError, CorralError
from corral.runtime.batch import CallWorker
from corral.runtime.tempdirs import ProcessTempDir
from corral.runtime.unguarded import state_dirs_in
from corral.sandbox import Sandbox
from corral.transactions.transaction import transaction_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from corral.apps.evals.task import Task
    from corral.model.result import SandboxResult
    from corral.transactions.transaction import Transaction

MAX_EXCERPT = 1000  # characters of what a call printed, kept where it is not as expected
MAX_READ = 16 * 1024 * 1024  # bytes of a file that is looked at afterwards
PREFIX = "corral-eval-"
_UNFIT = {"root": "only root can try it", "not-root": "root cannot try it"}


class Trials:
    """The work of running tasks here. Pickled, it is the same elsewhere, in a place of its own."""

    def __init__(self, place: str) -> None:
        self._place = place

    def begin(self) -> Trier:
        """Return a worker."""
        return Trier(self._place)

    def may_repeat(self, item: Task) -> bool:
        """Any task may run again: nothing of it outlives its project."""
        return bool(item.id)

    def lost(self, item: Task, why: str) -> Outcome:
        """Return the outcome of a task that never came to its end."""
        return Outcome(item.id, item.digest, ERROR, item.tags, item.source, said=why)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Away, ()


class Away:
    """The work of running tasks in another process, which is this work's alone."""

    def begin(self) -> Trier:
        """Make a place, and return a worker that removes it."""
        stack = ExitStack()
        place = stack.enter_context(ProcessTempDir(PREFIX)).path
        stack.enter_context(state_dirs_in(place))
        return Trier(place, stack)


class Trier:
    """Runs tasks one after the other."""

    chunk = most = 1

    def __init__(self, place: str, stack: ExitStack | None = None) -> None:
        self._place = place
        self._stack = stack
        self._runner: CallWorker | None = None
        self._is_cancelled = False

    def do_all(self, items: list[Task]) -> list[Outcome]:
        """Run tasks to their ends."""
        return [self._do(task) for task in items]

    def cancel(self) -> None:
        """End the call that runs, and begin no other."""
        self._is_cancelled = True
        runner = self._runner
        if runner is not None:
            runner.cancel()

    def close(self) -> None:
        """Remove what is this worker's own."""
        if self._stack is not None:
            self._stack.close()

    def ready(self) -> None:
        """Do nothing: here a worker can always work."""

    def _do(self, task: Task) -> Outcome:
        begun = perf_counter()
        folder = tempfile.mkdtemp(dir=self._place)
        try:
            outcome = self._tried(task, folder)
        except (CorralError, OSError) as error:
            said = replaced(str(error), _shown(folder))
            is_lacking = isinstance(error, ContainmentError) and bool(task.needs)
            outcome = Outcome(task.id, task.digest, SKIPPED if is_lacking else ERROR, said=said)
        finally:
            remove(folder)
        took = round((perf_counter() - begun) * 1000, 3)
        return outcome.replace(tags=task.tags, source=task.source, duration_ms=took)

    def _tried(self, task: Task, folder: str) -> Outcome:
        unfit = "not-root" if os.geteuid() == 0 else "root"
        if unfit in task.needs:
            return Outcome(task.id, task.digest, SKIPPED, said=_UNFIT[unfit])
        for name in ("files", "outside"):
            _set_up(_root(folder, name), task.data.get(name, {}))
        trial = _Trial(task, folder)
        with ExitStack() as stack:
            box = stack.enter_context(Sandbox(task.config(_root(folder, "files"))))
            tx = stack.enter_context(box.transaction()) if task.transaction else None
            profile = (transaction_config(box.config) if tx else box.config).rules.name
            self._runner = runner = CallWorker((tx or box).start)
            try:
                for call in task.calls:
                    if self._is_cancelled:
                        break
                    (result,) = runner.do_all([entry_of(call)])
                    if lacking := trial.lacking(result):
                        return Outcome(task.id, task.digest, SKIPPED, said=f"this machine lacks {lacking}")
                    trial.judge(call, result, profile)
            finally:
                self._runner = None
            if tx is not None and not self._is_cancelled:
                trial.settle(tx, box)
        return trial.outcome()


class _Trial:
    """One task while it runs: what is known of it so far."""

    def __init__(self, task: Task, folder: str) -> None:
        self._task = task
        self._folder = folder
        self._shown = _shown(folder)
        self._wrong: list[str] = []
        self._facts: list[dict[str, Any]] = []
        self._settled: dict[str, Any] | None = None

    def lacking(self, result: SandboxResult) -> str:
        """Return what this machine has not that the task needs."""
        needs = self._task.needs
        lacking = [need for need in needs if need in result.missing_layers]
        is_bare = needs and result.enforcement == "none" and not result.denied
        return ", ".join(lacking) or ("any containment" if is_bare else "")

    def judge(self, call: Mapping[str, Any], result: SandboxResult, profile: str) -> None:
        """Take in what came of a call."""
        wrong = list(differences(call.get("expect", {}), result, self._shown))
        number = len(self._facts) + 1
        self._wrong += [f"call {number}: {said}" if len(self._task.calls) > 1 else said for said in wrong]
        about = {name: call[name] for name in ("argv", "shell") if name in call}
        about |= {"profile": profile} | _facts(result)
        self._facts.append(about | (_excerpts(result, self._shown) if wrong else {}))

    def settle(self, tx: Transaction, box: Sandbox) -> None:
        """Take in what becomes of its transaction."""
        project, edits = _root(self._folder, "files"), self._task.data.get("meanwhile", {})
        settled = settle(tx, box, self._task.transaction, lambda: _set_up(project, edits, replaces=True))
        self._wrong += settled.differences(self._expect)
        self._settled = settled.to_dict()

    def outcome(self) -> Outcome:
        """Return what came of it all."""
        wrong = (*self._wrong, *_after(self._expect, self._folder))
        task, status = self._task, FAILED if wrong else PASSED
        facts = tuple(self._facts)
        return Outcome(task.id, task.digest, status, differences=wrong, calls=facts, transaction=self._settled)

    @property
    def _expect(self) -> Mapping[str, Any]:
        expect: Mapping[str, Any] = self._task.data.get("expect", {})
        return expect


def _root(folder: str, name: str) -> str:
    return os.path.join(folder, "project" if name == "files" else "outside")


def _shown(folder: str) -> dict[str, str]:
    return {_root(folder, "files"): "{project}", _root(folder, "outside"): "{outside}", folder: "{place}"}


def _facts(result: SandboxResult) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "decision": str(result.verdict.decision),
        "rules": sorted({finding.rule for finding in result.verdict.findings}),
        "denied": result.denied,
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "violations": sorted({violation.kind for violation in result.violations}),
        "enforcement": result.enforcement,
        "duration_ms": round(result.duration_ms, 3),
    }


def _excerpts(result: SandboxResult, shown: Mapping[str, str]) -> dict[str, Any]:
    return {name: replaced(getattr(result, f"{name}_text"), shown)[-MAX_EXCERPT:] for name in ("stdout", "stderr")}


def _set_up(root: str, files: Mapping[str, Any], *, replaces: bool = False) -> None:
    os.makedirs(root, exist_ok=True)
    for name, given in files.items():
        about = {"text": given} if isinstance(given, str) else given
        path = os.path.join(root, name)
        above = os.path.dirname(path)
        # A link of the task's own may lead out of the project, but nothing is written through it.
        if _is_behind_link(above, root):
            raise CorralError(f"{name} lies behind a link; write the file where the link leads")
        os.makedirs(above, exist_ok=True)
        if replaces and os.path.lexists(path) and "directory" not in about:
            os.unlink(path)
        if "link" in about:
            os.symlink(about["link"], path)
            continue
        if "directory" in about:
            os.makedirs(path, exist_ok=True)
        else:
            data = base64.b64decode(about["base64"]) if "base64" in about else about["text"].encode()
            with open(path, "xb") as file:
                file.write(data)
        if "mode" in about:
            os.chmod(path, int(about["mode"], 8))


def _after(expect: Mapping[str, Any], folder: str) -> Iterator[str]:
    for where in ("files", "outside"):
        for name, wanted in expect.get(where, {}).items():
            shown = name if where == "files" else f"outside/{name}"
            content = _content(os.path.join(_root(folder, where), name), _root(folder, where))
            if content is not None and len(content) > MAX_READ and not isinstance(wanted, str):
                # Its beginning says nothing about what it lacks.
                yield f"{shown}: longer than {MAX_READ >> 20} MiB, so it is not looked at"
                continue
            text = None if content is None else replaced(content.decode("utf-8", "replace"), _shown(folder))
            yield from (f"{shown}: {said}" for said in file_difference(wanted, text))


def _is_behind_link(path: str, root: str) -> bool:
    return os.path.realpath(path) != os.path.realpath(root) + path[len(root) :]


def _content(path: str, root: str) -> bytes | None:
    """Return what a file holds, or its beginning; nothing of what is there and is no regular file, which nobody opens."""
    if _is_behind_link(os.path.dirname(path), root):
        # What a command's own link leads to is no file of the project.
        return None
    try:
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            return os.fsencode(os.readlink(path))
        if not stat.S_ISREG(about.st_mode):
            return b""
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read(MAX_READ + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
