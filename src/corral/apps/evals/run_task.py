"""Runs one task in its own temporary project: writes its files, runs its calls, checks the outcome, deletes the project."""

from __future__ import annotations

import base64
import os
import stat
import tempfile
from contextlib import ExitStack
from time import perf_counter

from corral.apps.evals.expectations import differences, file_difference, replaced, rule_ids, violation_kinds
from corral.apps.evals.outcome import ERROR, FAILED, PASSED, SKIPPED, Outcome
from corral.apps.evals.task import entry_of
from corral.apps.evals.transactions import settle
from corral.apps.unguarded import state_dirs_in
from corral.containment.filesystem.process_temp_dir import ProcessTempDir
from corral.containment.filesystem.scratch import remove
from corral.model.errors import ContainmentError, CorralError
from corral.runtime.batch import CallWorker
from corral.sandbox import Sandbox
from corral.transactions.transaction import transaction_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from corral.apps.evals.task import Task
    from corral.model.result import SandboxResult
    from corral.transactions.transaction import Transaction

MAX_EXCERPT = 1000  # characters kept of the output of a call that differs from its expectations
MAX_READ = 16 * 1024 * 1024  # bytes read of a file that a command wrote
PREFIX = "corral-eval-"


class Trials:
    """Creates workers that run tasks in a directory. Pickled to another process, it creates workers with their own directory."""

    def __init__(self, place: str) -> None:
        self._place = place

    def begin(self) -> Trier:
        """Return a worker."""
        return Trier(self._place)

    def may_repeat(self, item: Task) -> bool:
        """Return True: nothing of a task outlives its project."""
        return bool(item.id)

    def lost(self, item: Task, why: str) -> Outcome:
        """Return the outcome of a task whose worker died."""
        return Outcome(item.id, item.digest, ERROR, item.tags, item.source, said=why)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _RemoteTrials, ()


class _RemoteTrials:
    """Creates workers in another process."""

    def begin(self) -> Trier:
        """Create a directory and return a worker that deletes it."""
        stack = ExitStack()
        place = stack.enter_context(ProcessTempDir(PREFIX)).path
        stack.enter_context(state_dirs_in(place))
        return Trier(place, stack)


class Trier:
    """A worker that runs tasks one after the other."""

    chunk = most = 1

    def __init__(self, place: str, stack: ExitStack | None = None) -> None:
        self._place = place
        self._stack = stack
        self._runner: CallWorker | None = None
        self._is_cancelled = False

    def do_all(self, items: list[Task]) -> list[Outcome]:
        """Run tasks and return their outcomes."""
        return [self._do(task) for task in items]

    def cancel(self) -> None:
        """Kill the running call and start no other."""
        self._is_cancelled = True
        runner = self._runner
        if runner is not None:
            runner.cancel()

    def close(self) -> None:
        """Delete the worker's own directory."""
        if self._stack is not None:
            self._stack.close()

    def ready(self) -> None:
        """Do nothing: a worker needs no preparation."""

    def _do(self, task: Task) -> Outcome:
        start = perf_counter()
        folder = tempfile.mkdtemp(dir=self._place)
        try:
            outcome = self._try(task, folder)
        except (CorralError, OSError) as error:
            said = replaced(str(error), _path_names(folder))
            is_missing_layer = isinstance(error, ContainmentError) and bool(task.needs)
            outcome = Outcome(task.id, task.digest, SKIPPED if is_missing_layer else ERROR, said=said)
        finally:
            remove(folder)
        took = round((perf_counter() - start) * 1000, 3)
        return outcome.replace(tags=task.tags, source=task.source, duration_ms=took)

    def _try(self, task: Task, folder: str) -> Outcome:
        is_root = os.geteuid() == 0
        if ("not-root" if is_root else "root") in task.needs:
            why = "root cannot run this task" if is_root else "only root can run this task"
            return Outcome(task.id, task.digest, SKIPPED, said=why)
        for name in ("files", "outside"):
            write_files(_root(folder, name), task.data.get(name, {}))
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
                    if missing := _missing_layers(task.needs, result):
                        return Outcome(task.id, task.digest, SKIPPED, said=f"this machine lacks {missing}")
                    trial.add_call(call, result, profile)
            finally:
                self._runner = None
            if tx is not None and not self._is_cancelled:
                trial.settle(tx, box)
        return trial.outcome()


class _Trial:
    """Collects the differences and facts of one task while it runs."""

    def __init__(self, task: Task, folder: str) -> None:
        self._task = task
        self._folder = folder
        self._path_names = _path_names(folder)
        self._expect: Mapping[str, Any] = task.data.get("expect", {})
        self._differences: list[str] = []
        self._facts: list[dict[str, Any]] = []
        self._settled: dict[str, Any] | None = None

    def add_call(self, call: Mapping[str, Any], result: SandboxResult, profile: str) -> None:
        """Check the result of a call."""
        found = list(differences(call.get("expect", {}), result, self._path_names))
        number = len(self._facts) + 1
        self._differences += [f"call {number}: {said}" if len(self._task.calls) > 1 else said for said in found]
        facts = {name: call[name] for name in ("argv", "shell") if name in call} | {
            "profile": profile,
            "exit_code": result.exit_code,
            "decision": str(result.verdict.decision),
            "rules": rule_ids(result),
            "denied": result.denied,
            "timed_out": result.timed_out,
            "truncated": result.truncated,
            "violations": violation_kinds(result),
            "enforcement": result.enforcement,
            "duration_ms": round(result.duration_ms, 3),
        }
        if found:
            for name in ("stdout", "stderr"):
                facts[name] = replaced(getattr(result, f"{name}_text"), self._path_names)[-MAX_EXCERPT:]
        self._facts.append(facts)

    def settle(self, tx: Transaction, box: Sandbox) -> None:
        """End the transaction and check its outcome."""
        project, edits = _root(self._folder, "files"), self._task.data.get("meanwhile", {})
        settled = settle(tx, box, self._task.transaction, lambda: write_files(project, edits, replaces=True))
        self._differences += settled.differences(self._expect)
        self._settled = settled.to_dict()

    def outcome(self) -> Outcome:
        """Check the files and return the outcome."""
        found = (*self._differences, *_file_differences(self._expect, self._folder))
        task, status = self._task, FAILED if found else PASSED
        facts = tuple(self._facts)
        return Outcome(task.id, task.digest, status, differences=found, calls=facts, transaction=self._settled)


def _missing_layers(needs: tuple[str, ...], result: SandboxResult) -> str:
    is_bare = needs and result.enforcement == "none" and not result.denied
    missing = ", ".join(need for need in needs if need in result.missing_layers)
    return missing or ("any containment" if is_bare else "")


def _root(folder: str, name: str) -> str:
    return os.path.join(folder, "project" if name == "files" else "outside")


def _path_names(folder: str) -> dict[str, str]:
    return {_root(folder, "files"): "{project}", _root(folder, "outside"): "{outside}", folder: "{place}"}


def write_files(root: str, files: Mapping[str, Any], *, replaces: bool = False) -> None:
    """Create the files of a task below a directory: each is its text, or a table with its content and mode."""
    os.makedirs(root, exist_ok=True)
    for name, given in files.items():
        about = {"text": given} if isinstance(given, str) else given
        path = os.path.join(root, name)
        above = os.path.dirname(path)
        # A task may have links that lead out of the project, but we never write through them.
        if _is_behind_link(above, root):
            raise CorralError(f"{name} is behind a symbolic link; write the file at the link's target")
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


def _file_differences(expect: Mapping[str, Any], folder: str) -> Iterator[str]:
    for where in ("files", "outside"):
        root = _root(folder, where)
        for name, wanted in expect.get(where, {}).items():
            shown = name if where == "files" else f"outside/{name}"
            content = _content(os.path.join(root, name), root)
            if content is not None and len(content) > MAX_READ and not isinstance(wanted, str):
                # The first bytes cannot prove that the file lacks something.
                yield f"{shown}: not checked, because it is longer than {MAX_READ >> 20} MiB"
                continue
            text = None if content is None else replaced(content.decode("utf-8", "replace"), _path_names(folder))
            yield from (f"{shown}: {said}" for said in file_difference(wanted, text))


def _is_behind_link(path: str, root: str) -> bool:
    return os.path.realpath(path) != os.path.realpath(root) + path[len(root) :]


def _content(path: str, root: str) -> bytes | None:
    """Return up to MAX_READ + 1 bytes of a file, None if it is missing. Never opens a file that is not regular."""
    if _is_behind_link(os.path.dirname(path), root):
        # A command made this link. Its target is not a file of the project.
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
