"""Calls that run against the project without changing it, until somebody has looked and says that they may.

Nothing of a transaction reaches the project but by `apply`; left in any other way, it was never there.
"""

from __future__ import annotations

from corral.errors import TransactionError
from corral.model import Decision, Violation
from corral.rulebook import Profile, profile_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Self

    from corral.batch import Batch
    from corral.branch import Branch
    from corral.config import SandboxConfig
    from corral.handle import Handle
    from corral.model import Verdict
    from corral.result import SandboxResult
    from corral.sandbox import Sandbox
    from corral.workshop import Workshop

# What is asked about because it cannot be taken back: here it can.
_TAKEN_BACK = ("history", "discard", "delete-root", "delete-inside")


def judged_as(config: SandboxConfig) -> SandboxConfig:
    """Return the config that a transaction's calls are judged by: `workspace`, with what can be taken back allowed."""
    base = profile_named("workspace") if config.profile == "strict" else config.rules
    asked = {name: Decision.ALLOW for name in _TAKEN_BACK if base.effects[name] == Decision.ASK}
    # What the owner's policy denies stays denied.
    profile = Profile(base.name, {**base.effects, **asked}, base.groups, base.needs_containment)
    return config.replace(profile=profile)


class Transaction:
    """Runs calls as a sandbox does, against an overlay of the project. Use it in a `with`, and `apply` what is to stay."""

    def __init__(self, box: Sandbox, branch: Branch, workshop: Workshop, copied: str) -> None:
        self._box = box
        self._branch = branch
        self._workshop = workshop
        self._place = branch.place
        self._has_ended = False
        if copied:
            words = f"the transaction works on a copy of the project, since there is no overlay here: {copied}"
            branch.first_words = (Violation("copied", box.config.project_root, words),)

    @property
    def id(self) -> str:
        """The name by which results, log and history know it."""
        return self._place.id

    @property
    def how(self) -> str:
        """What stands for the project: an `overlay`, or a `reflink` or plain `copy` of it where the kernel gives none."""
        return self._place.how

    def check(self, argv: Sequence[object] | str, **options: Any) -> Verdict:
        """Judge a call as `Sandbox.check` does; deleting and rewriting are allowed here."""
        return self._box.check(argv, **options)

    def run(self, argv: Sequence[object] | str, **options: Any) -> SandboxResult:
        """Run a call to its end, as `Sandbox.run` does."""
        return self._open_box().run(argv, **options)

    async def arun(self, argv: Sequence[object] | str, **options: Any) -> SandboxResult:
        """Run a call to its end in the running event loop, as `Sandbox.arun` does."""
        return await self._open_box().arun(argv, **options)

    def start(self, argv: Sequence[object] | str, **options: Any) -> Handle:
        """Start a call, as `Sandbox.start` does."""
        return self._open_box().start(argv, **options)

    async def astart(self, argv: Sequence[object] | str, **options: Any) -> Handle:
        """Start a call in the running event loop, as `Sandbox.astart` does."""
        return await self._open_box().astart(argv, **options)

    def map(self, calls: Iterable[object], **options: Any) -> Batch:
        """Run many calls, as `Sandbox.map` does, all against the same overlay."""
        return self._open_box().map(calls, **options)

    def discard(self) -> None:
        """End what still runs, and forget everything that was written."""
        if not self._has_ended:
            self._has_ended = True
            self._workshop.give_back(self._branch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.discard()

    def _open_box(self) -> Sandbox:
        if self._has_ended:
            raise TransactionError("the transaction has ended; begin another")
        return self._box
