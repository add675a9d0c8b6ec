"""Answers for `corral run` whether a connection that nobody could foresee is served, while the proxy holds it.

The user is asked on the terminal of the run, where nothing else can write or read meanwhile, or by `corral allow --watch`.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from time import monotonic, sleep, time

from corral._lib.terminal import terminal_reset
from corral.apps.cli.call import machine_of
from corral.model.call import Verdict
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from corral.model.call import Call
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig

POLL_SECONDS = 0.2  # between two looks for the answer of a watcher
MAX_REFUSED = 8  # destinations in one question
_LAST_LINE = "\x1b[999;1H\n"


class _Question:
    """A destination that the thread of the run's terminal is asked about."""

    def __init__(self, destination: str, seconds: float) -> None:
        self.destination = destination
        self.ends_at = monotonic() + seconds
        self.answer = False
        self._done = allocate_lock()
        self._done.acquire()

    def close(self, *, answer: bool) -> None:
        self.answer = answer
        self._done.release()

    def wait(self) -> bool:
        # The prompt gives up by itself when the time is over.
        self._done.acquire()
        return self.answer


class HeldConnections:
    """The answers for one call. `on_hold` is None where nobody can answer: then the proxy refuses at once.

    `is_known` says that the config is the one that `corral allow` loads, `asks_here` that this run's terminal may be used, and
    `is_shown` that the command's output is shown there.
    """

    def __init__(
        self, call: Call, config: SandboxConfig, *, is_known: bool, asks_here: bool, is_shown: bool, host: str
    ) -> None:
        self._call, self._config, self._host = call, config, host
        self._asks_here, self._is_shown = asks_here, is_shown
        self._seconds = config.asking.hold_seconds
        self._questions: list[_Question] = []
        self._allowed: set[str] = set()
        self._waiting: set[str] = set()
        self._declined: set[str] = set()
        self._saved: list[Verdict] = []
        self._judged: Verdict | None = None
        self._can_open = is_known and bool(self._seconds) and config.opens and config.containment.network != "on"
        self.on_hold: Callable[[str], bool] | None = self._answer if self._can_answer() else None

    @property
    def allowed(self) -> tuple[str, ...]:
        """The destinations that were allowed while the command ran."""
        return tuple(sorted(self._allowed))

    def _can_answer(self) -> bool:
        from corral.policy.answers.watchers import is_watched  # noqa: PLC0415  few runs get here

        if not self._can_open:
            return False
        try:
            return self._asks_here or is_watched(os.environ) or self._has_yes()
        except (PolicyError, OSError):
            return False

    def _has_yes(self) -> bool:
        from corral.policy.store import Store  # noqa: PLC0415  few runs get here

        if not Store("state", "approvals", os.environ).exists():
            return False
        from corral.policy.answers.unforeseen import has_yes  # noqa: PLC0415  most users have stored no answer

        return has_yes(self._call, self._config.project_root, os.environ)

    def _verdict(self) -> Verdict:
        from corral.guard.evaluate import vet  # noqa: PLC0415  few connections are held

        if self._judged is None:
            self._judged = vet(self._call, self._config, machine_of(self._config))
        return self._judged

    def _answer(self, destination: str) -> bool:
        """Answer the proxy, in a thread of its own for each destination."""
        from corral.policy.answers.watchers import is_watched  # noqa: PLC0415  few connections are held

        if self._take(destination):
            return True
        if self._was_declined(destination):
            return False
        if self._asks_here:
            asked = _Question(destination, self._seconds)
            self._questions.append(asked)
            return asked.wait()
        return is_watched(os.environ) and self._wait_for_watcher(destination)

    def _take(self, destination: str) -> bool:
        from corral.policy.answers.unforeseen import take_yes  # noqa: PLC0415  few connections are held

        if destination not in self._allowed:
            self._allowed.update(take_yes(self._call, self._verdict(), destination, self._config, os.environ))
        return destination in self._allowed

    def _was_declined(self, destination: str) -> bool:
        from corral.policy.answers.family_grants import find_answer  # noqa: PLC0415  few connections are held
        from corral.policy.answers.unforeseen import with_destinations  # noqa: PLC0415

        asked = [with_destinations(Verdict(), (destination,)), with_destinations(self._verdict(), (destination,))]
        asked += [each for each in self._saved if destination in {grant.target for grant in each.grants}]
        if any(find_answer(self._call, each, self._config, os.environ) for each in asked):
            self._declined.add(destination)
        return destination in self._declined

    def _wait_for_watcher(self, destination: str) -> bool:
        ends_at = monotonic() + self._seconds
        self._waiting.add(destination)
        try:
            self._save(self._allowed | self._waiting, held_until=time() + self._seconds)
            while monotonic() < ends_at:
                if self._take(destination):
                    return True
                if self._was_declined(destination):
                    return False
                sleep(POLL_SECONDS)
            return False
        finally:
            self._waiting.discard(destination)

    def _save(self, destinations: Iterable[str], held_until: float = 0.0) -> str:
        from corral.policy.answers.refusals import save_refusal  # noqa: PLC0415  few connections are held
        from corral.policy.answers.unforeseen import with_destinations  # noqa: PLC0415

        asked = with_destinations(self._verdict(), sorted(destinations))
        self._saved.append(asked)
        return save_refusal(
            self._call, asked, self._config.project_root, os.environ, host=self._host, held_until=held_until
        )

    def ask_waiting(self) -> None:
        """Ask about the connections that wait. The thread that shows the command's output calls this, so none is shown meanwhile."""
        while self._questions:
            asked = self._questions.pop(0)
            answer = False
            try:
                left = asked.ends_at - monotonic()
                answer = left > 0 and self._ask(asked.destination, left)
            finally:
                asked.close(answer=answer)

    def _ask(self, destination: str, seconds: float) -> bool:
        from corral.apps.cli.questions.approver import Approver  # noqa: PLC0415  few connections are held
        from corral.apps.cli.questions.terminal_prompt import why_nobody  # noqa: PLC0415
        from corral.policy.answers.unforeseen import with_destinations  # noqa: PLC0415

        if why_nobody(os.environ):
            return False
        approver = Approver(self._config, machine_of, may_ask=True, seconds=seconds)
        approver.before = _below_output() if self._is_shown else ""
        if approver.ask(self._call, with_destinations(Verdict(), (destination,))):
            self._allowed.add(destination)
            return True
        if approver.was_answered:
            self._declined.add(destination)
        return False

    def save_refusal(self, result: SandboxResult) -> str:
        """Save what was refused without an answer, and return its id for `corral allow`; "" where there is nothing to answer."""
        from corral.model.render_grant import is_own_network  # noqa: PLC0415  few connections are refused

        refused = {c.grant for c in result.connections if c.outcome == "refused" and c.grant} - self._declined
        refused = {name for name in sorted(refused - self._allowed)[:MAX_REFUSED] if not is_own_network(name)}
        if not refused or not self._can_open or result.denied:
            return ""
        try:
            return self._save(self._allowed | refused)
        except (PolicyError, OSError):
            # The connection is refused in any case; only the line for the user is missing.
            return ""


def _below_output() -> str:
    """Return sequences after which text is visible, below everything that the command printed: nothing of it can follow the question."""
    reset = terminal_reset(os.environ)
    return f"{reset}{_LAST_LINE}" if reset else "\n"
