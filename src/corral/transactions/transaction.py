"""Calls that run against the project without changing it, until somebody has looked and says that they may.

Nothing of a transaction reaches the project but by `apply`; left in any other way, it was never there.
"""

from __future__ import annotations

import os

from corral._lib.dirfd_tree import disk_usage
from corral._lib.quoting import shell_quote
from corral.guard.evaluate import vet
from corral.guard.rules.loader import Profile, profile_named
from corral.model.call import Decision, Violation
from corral.model.errors import TransactionError
from corral.runtime.run_options import run_options
from corral.runtime.runner import CommandRunner
from corral.transactions.apply import MAX_NOTED_CHANGES, Applied, Look, apply
from corral.transactions.changes import summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Self

    from corral.guard.cache import VerdictCache
    from corral.model.call import Call, Verdict
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig
    from corral.runtime.batch import Batch
    from corral.runtime.handle import Handle
    from corral.runtime.run_options import Inspect
    from corral.sandbox import Sandbox
    from corral.transactions.changes import Change
    from corral.transactions.spares import Workshop

# What is asked about because it cannot be taken back: here it can.
_TAKEN_BACK = ("history", "discard", "delete-root", "delete-inside")


MAX_COMMANDS = 20  # of which the history keeps the words
MAX_COMMAND_CHARACTERS = 500
MAX_NOTED = 20  # changes, conflicts and refusals each that the log keeps
MAX_NOTED_CHARACTERS = 160  # of each path, so that a line stays a line whatever a command calls its files


def transaction_config(config: SandboxConfig) -> SandboxConfig:
    """Return the config that a transaction's calls are judged by: `workspace`, with what can be taken back allowed."""
    base = profile_named("workspace") if config.profile == "strict" else config.rules
    asked = {name: Decision.ALLOW for name in _TAKEN_BACK if base.effects[name] == Decision.ASK}
    # What the owner's policy denies stays denied.
    profile = Profile(base.name, {**base.effects, **asked}, base.groups, base.needs_containment)
    return config.replace(profile=profile)


def can_be_tried(box: Sandbox, call: Call) -> bool:
    """Say whether a call is asked about only because it cannot be taken back, and the owner lets such calls be tried."""
    if box.config.containment.destructive != "try":
        return False
    machine = box._state.look()[1]
    asked = vet(call, box.config, machine).decision == Decision.ASK
    return asked and vet(call, transaction_config(box.config), machine).allowed


def keep_for_review(tx: Transaction) -> tuple[dict[str, object], str]:
    """Keep a transaction's changes for the owner; return what the log says of it, and what the agent is told whose command it was."""
    changes = tx.changes()
    if not changes:
        return log_fields(tx.id, "nothing"), "It ran in a transaction, and nothing was changed."
    tx.keep()
    look, apply, discard = (
        f"corral {verb} --root {shell_quote(tx.root)} {tx.id}" for verb in ("history", "apply", "discard")
    )
    waits = f"They wait for the owner, who can look ({look}) and answer: {apply}, or {discard}"
    said = f"It ran in a transaction, and the project is as it was. {summary(changes)}. {waits}"
    return log_fields(tx.id, "kept", changes), said


def log_fields(
    id_: str, became: str, changes: Sequence[Change] = (), applied: Applied | None = None, *, in_part: bool = False
) -> dict[str, object]:
    """Return what the owner's log says of what became of a transaction."""
    told: dict[str, object] = {
        "changes": [_told(change) for change in changes[:MAX_NOTED]],
        "changed": len(changes),
        "in_part": in_part,
    }
    if applied is not None:
        both = (("conflicts", applied.conflicts), ("refused", applied.refused))
        told |= {name: [{"path": _cut(each.path), "why": each.why} for each in some[:MAX_NOTED]] for name, some in both}
    fields = {"transaction": id_, "decision": "allow", "reason": became}
    return fields | {name: value for name, value in told.items() if value}


def _told(change: Change) -> dict[str, str]:
    old_path = {"old_path": _cut(change.old_path)} if change.old_path else {}
    return {"kind": change.kind, "path": _cut(change.path), **old_path}


def _cut(path: str) -> str:
    return path if len(path) <= MAX_NOTED_CHARACTERS else f"{path[:MAX_NOTED_CHARACTERS]}…"


def with_notice(inspect: Inspect, project_root: str, why_copied: str) -> Inspect:
    """Return an inspector that reports with the first result that the transaction works on a copy of the project."""
    detail = f"the transaction works on a copy of the project, because no overlay can be mounted: {why_copied}"
    notices = [Violation("copied", project_root, detail)]

    def inspected(*facts: Any, **more: Any) -> tuple[Violation, ...]:
        found = inspect(*facts, **more)
        try:
            return (notices.pop(), *found)
        except IndexError:
            return found

    return inspected


class Transaction:
    """Runs calls as a sandbox does, against an overlay of the project. Use it in a `with`, and `apply` what is to stay."""

    def __init__(
        self, sandbox: CommandRunner, workshop: Workshop, config: SandboxConfig, verdicts: VerdictCache
    ) -> None:
        pool, why_copied = workshop.take()
        containment = sandbox.state.containment
        inspect: Inspect = containment.denials
        if why_copied:
            inspect = with_notice(inspect, config.project_root, why_copied)
        context = sandbox.context.replace(config=config, inspect=inspect, transaction=pool.place.id)
        self._runner = CommandRunner(sandbox.state, context, pool, verdicts)
        self._pool = pool
        self._workshop = workshop
        self._containment = containment
        self._place = pool.place
        self._commands: list[str] = []
        self._takes_calls = True
        self._has_ended = False

    @property
    def id(self) -> str:
        """The name by which results, log and history know it."""
        return self._place.id

    @property
    def root(self) -> str:
        """The project."""
        return self._runner.context.config.project_root

    @property
    def how(self) -> str:
        """What stands for the project: an `overlay`, or a `reflink` or plain `copy` of it where the kernel gives none."""
        return self._place.how

    def check(self, argv: Sequence[object] | str, **options: Any) -> Verdict:
        """Judge a call as `Sandbox.check` does; deleting and rewriting are allowed here."""
        return self._runner.check(run_options(argv, **options).call)

    def run(self, argv: Sequence[object] | str, **options: Any) -> SandboxResult:
        """Run a call to its end, as `Sandbox.run` does."""
        return self._runner_for(argv).run(run_options(argv, **options))

    async def arun(self, argv: Sequence[object] | str, **options: Any) -> SandboxResult:
        """Run a call to its end in the running event loop, as `Sandbox.arun` does."""
        return await self._runner_for(argv).arun(run_options(argv, **options))

    def start(self, argv: Sequence[object] | str, **options: Any) -> Handle:
        """Start a call, as `Sandbox.start` does."""
        return self._runner_for(argv).start(run_options(argv, **options))

    async def astart(self, argv: Sequence[object] | str, **options: Any) -> Handle:
        """Start a call in the running event loop, as `Sandbox.astart` does."""
        return await self._runner_for(argv).astart(run_options(argv, **options))

    def map(self, calls: Iterable[object], **options: Any) -> Batch:
        """Run many calls, as `Sandbox.map` does, all against the same overlay."""
        from corral.runtime.batch import Batch, LocalWork  # noqa: PLC0415  it loads threading

        runner = self._runner_for("…")
        work = LocalWork(runner.context.config, lambda argv, **given: runner.start(run_options(argv, **given)))
        return Batch(work, calls, on_result=runner.state.on_result, **options)

    def changes(self) -> tuple[Change, ...]:
        """Return what the calls have changed so far: added, changed, deleted, renamed, and other modes, links and times."""
        with self._look() as look:
            return look.changes()

    def diff(self) -> str:
        """Return the changes as a unified diff, in git's form; binary and huge files are told of in a line."""
        with self._look() as look:
            return look.diff()

    def apply(self, paths: Iterable[str | os.PathLike[str]] | None = None) -> Applied:
        """Write the changes to the project, all or nothing; with `paths`, those at or below them.

        A file that was changed in the project since the transaction began is a conflict: then nothing is written, and the
        conflicts are returned. What is protected is left out. No more calls run in the transaction afterwards.
        """
        chosen = None if paths is None else [os.fspath(path) for path in paths]
        self._check()
        self._takes_calls = False
        # Nobody may write any more when the changes are looked at.
        self._pool.end()
        with self._look() as look:
            return apply(look, os.environ, chosen, self._commands)

    def keep(self) -> None:
        """Let the changes wait for an answer after this process has ended; `corral apply` and `corral discard` give it."""
        self._check()
        self._takes_calls = False
        self._pool.end()
        # What the owner does to the project from here on is no longer what the calls saw.
        with self._look() as look:
            changes = [change.to_dict() for change in look.changes()[:MAX_NOTED_CHANGES]]
        self._has_ended = True
        self._workshop.let_go(self._pool)
        facts = {"commands": self._commands, "root": self.root, "changes": changes}
        self._place.keep(facts | {"bytes": disk_usage(self._place.layer)})
        self._place.release()

    def discard(self) -> None:
        """End what still runs, and forget everything that was written and not applied."""
        if not self._has_ended:
            self._has_ended, self._takes_calls = True, False
            self._workshop.give_back(self._pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.discard()

    def _runner_for(self, argv: Sequence[object] | str) -> CommandRunner:
        self._check()
        if not self._takes_calls:
            raise TransactionError("changes of the transaction were applied already; begin another")
        if len(self._commands) < MAX_COMMANDS:
            words = argv if isinstance(argv, str) else " ".join(map(str, argv))
            self._commands.append(words[:MAX_COMMAND_CHARACTERS])
        return self._runner

    def _look(self) -> Look:
        self._check()
        root = self._runner.context.config.project_root
        return Look(root, self._place, self._containment.kept(), self._containment.programs())

    def _check(self) -> None:
        if self._has_ended:
            raise TransactionError("the transaction has ended; begin another")
