"""Transactions: calls that write to an overlay of the project. Only `apply` writes their changes to the project itself."""

from __future__ import annotations

import os

from corral._lib.dirfd_tree import disk_usage
from corral._lib.quoting import shell_quote
from corral.guard.evaluate import vet
from corral.guard.rules.loader import Profile, profile_named
from corral.model.call import Decision, Violation
from corral.model.errors import TransactionError
from corral.transactions.apply import MAX_NOTED_CHANGES, Applied, LayerView, apply
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
    from corral.runtime.runner import CommandRunner
    from corral.sandbox import Sandbox
    from corral.transactions.changes import Change
    from corral.transactions.spares import TransactionFactory

# Effects that the policy asks about because they cannot be undone. In a transaction they can.
_UNDOABLE = ("history", "discard", "delete-root", "delete-inside")

MAX_COMMANDS = 20  # whose text the history keeps
MAX_COMMAND_CHARACTERS = 500
MAX_NOTED = 20  # changes, conflicts and refusals each in the audit log
MAX_NOTED_CHARACTERS = 160  # of each path, so that long file names cannot blow up a log line


def transaction_config(config: SandboxConfig) -> SandboxConfig:
    """Return the config that judges a transaction's calls: at least `workspace`, undoable effects are allowed, and no grants."""
    base = profile_named("workspace") if config.profile == "strict" else config.rules
    asked = {name: Decision.ALLOW for name in _UNDOABLE if base.effects[name] == Decision.ASK}
    # Only `ask` becomes `allow`: denied effects stay denied.
    profile = Profile(base.name, {**base.effects, **asked}, base.groups, base.needs_containment)
    # A granted call has a sandbox of its own, which would not see the transaction's changes.
    return config.replace(profile=profile, posture="locked")


def can_be_tried(box: Sandbox, call: Call) -> bool:
    """Return whether the policy asks about a call only because it cannot be undone, and `containment.destructive` is `try`."""
    if box.config.containment.destructive != "try":
        return False
    machine = box._state.look()[1]
    asked = vet(call, box.config, machine).decision == Decision.ASK
    return asked and vet(call, transaction_config(box.config), machine).allowed


def keep_for_review(tx: Transaction) -> tuple[dict[str, object], str]:
    """Keep a transaction's changes until the user applies or discards them. Returns the log fields and a message for the agent."""
    changes = tx.changes()
    if not changes:
        return log_fields(tx.id, "nothing"), "The command ran in a transaction and changed nothing."
    tx.keep()
    show, apply, discard = (
        f"corral {verb} --root {shell_quote(tx.root)} {tx.id}" for verb in ("history", "apply", "discard")
    )
    message = f"The command ran in a transaction, and the project is unchanged. {summary(changes)}. "
    message += f"The user can look at the changes ({show}) and decide: {apply}, or {discard}"
    return log_fields(tx.id, "kept", changes), message


def log_fields(
    id_: str, outcome: str, changes: Sequence[Change] = (), applied: Applied | None = None, *, in_part: bool = False
) -> dict[str, object]:
    """Return the audit log's fields about the outcome of a transaction."""
    details: dict[str, object] = {
        "changes": [_change_fields(change) for change in changes[:MAX_NOTED]],
        "changed": len(changes),
        "in_part": in_part,
    }
    if applied is not None:
        both = (("conflicts", applied.conflicts), ("refused", applied.refused))
        details |= {
            name: [{"path": _cut(each.path), "why": each.why} for each in some[:MAX_NOTED]] for name, some in both
        }
    fields = {"transaction": id_, "decision": "allow", "reason": outcome}
    return fields | {name: value for name, value in details.items() if value}


def _change_fields(change: Change) -> dict[str, str]:
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
    """Runs calls as a sandbox does, in an overlay of the project. Use it in a `with` block and `apply` the changes to keep."""

    def __init__(
        self, sandbox: CommandRunner, factory: TransactionFactory, config: SandboxConfig, verdicts: VerdictCache
    ) -> None:
        # Not at the top: the hook loads this module for `transaction_config`, and has no time to load the runtime.
        from corral.runtime.run_options import run_options  # noqa: PLC0415
        from corral.runtime.runner import CommandRunner  # noqa: PLC0415

        self._options_of = run_options
        pool, why_copied = factory.take()
        containment = sandbox.state.containment
        inspect: Inspect = containment.denials
        if why_copied:
            inspect = with_notice(inspect, config.project_root, why_copied)
        context = sandbox.context.replace(config=config, inspect=inspect, transaction=pool.place.id)
        self._runner = CommandRunner(sandbox.state, context, pool, verdicts)
        self._pool = pool
        self._factory = factory
        self._containment = containment
        self._place = pool.place
        self._commands: list[str] = []
        self._takes_calls = True
        self._has_ended = False

    @property
    def id(self) -> str:
        """The transaction's id in results, log and history."""
        return self._place.id

    @property
    def root(self) -> str:
        """The project's root."""
        return self._runner.context.config.project_root

    @property
    def how(self) -> str:
        """The copy of the project that the calls change: `overlay`, or `reflink` or `copy` where the kernel allows no overlay."""
        return self._place.how

    def check(self, argv: Sequence[object] | str, **options: Any) -> Verdict:
        """Judge a call as `Sandbox.check` does. Deleting and rewriting files is allowed here."""
        return self._runner.check(self._options_of(argv, **options).call)

    def run(self, argv: Sequence[object] | str, **options: Any) -> SandboxResult:
        """Run a call as `Sandbox.run` does."""
        return self._runner_for(argv).run(self._options_of(argv, **options))

    async def arun(self, argv: Sequence[object] | str, **options: Any) -> SandboxResult:
        """Run a call as `Sandbox.arun` does."""
        return await self._runner_for(argv).arun(self._options_of(argv, **options))

    def start(self, argv: Sequence[object] | str, **options: Any) -> Handle:
        """Start a call as `Sandbox.start` does."""
        return self._runner_for(argv).start(self._options_of(argv, **options))

    async def astart(self, argv: Sequence[object] | str, **options: Any) -> Handle:
        """Start a call as `Sandbox.astart` does."""
        return await self._runner_for(argv).astart(self._options_of(argv, **options))

    def map(self, calls: Iterable[object], **options: Any) -> Batch:
        """Run many calls as `Sandbox.map` does, all in the same overlay."""
        from corral.runtime.batch import Batch, LocalWork  # noqa: PLC0415  it loads threading

        runner = self._runner_for("…")
        work = LocalWork(runner.context.config, lambda argv, **given: runner.start(self._options_of(argv, **given)))
        return Batch(work, calls, on_result=runner.state.on_result, **options)

    def changes(self) -> tuple[Change, ...]:
        """Return the changes so far: files added, changed, deleted or renamed, and changed modes, links and times."""
        with self._look() as look:
            return look.changes()

    def diff(self) -> str:
        """Return the changes as a unified diff in git's format. Binary and huge files take one line each."""
        with self._look() as look:
            return look.diff()

    def apply(self, paths: Iterable[str | os.PathLike[str]] | None = None) -> Applied:
        """Write the changes to the project, all or nothing. With `paths`, only those at or below them.

        A file that changed in the project since the transaction began is a conflict: nothing is written, and the conflicts
        are returned. Changes to protected paths are left out. The transaction runs no more calls afterwards.
        """
        chosen = None if paths is None else [os.fspath(path) for path in paths]
        self._check()
        self._takes_calls = False
        # No command may write while the changes are read.
        self._pool.end()
        with self._look() as look:
            return apply(look, os.environ, chosen, self._commands)

    def keep(self) -> None:
        """Keep the changes after this process has ended, until `corral apply` or `corral discard`."""
        self._check()
        self._takes_calls = False
        self._pool.end()
        # Listed now: later changes to the project must not appear as changes of the calls.
        with self._look() as look:
            changes = [change.to_dict() for change in look.changes()[:MAX_NOTED_CHANGES]]
        self._has_ended = True
        self._factory.let_go(self._pool)
        facts = {"commands": self._commands, "root": self.root, "changes": changes}
        self._place.keep(facts | {"bytes": disk_usage(self._place.layer)})
        self._place.release()

    def discard(self) -> None:
        """Kill what still runs and drop all changes that were not applied."""
        if not self._has_ended:
            self._has_ended, self._takes_calls = True, False
            self._factory.give_back(self._pool)

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
            raise TransactionError("the transaction's changes were applied already; begin another transaction")
        if len(self._commands) < MAX_COMMANDS:
            words = argv if isinstance(argv, str) else " ".join(map(str, argv))
            self._commands.append(words[:MAX_COMMAND_CHARACTERS])
        return self._runner

    def _look(self) -> LayerView:
        self._check()
        root = self._runner.context.config.project_root
        return LayerView(root, self._place, self._containment.kept())

    def _check(self) -> None:
        if self._has_ended:
            raise TransactionError("the transaction has ended; begin another one")
