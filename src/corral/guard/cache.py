"""Verdicts of calls that come again: one is given again only if the machine gives every answer again that it rests on.

What judges is pure but for those answers, so nothing else can have changed; only what is allowed without a word is kept.
Where a program of the system lies is asked again after a second, if there is no link to follow: no command may change that.
"""

from __future__ import annotations

from time import monotonic

from corral.guard.evaluate import vet
from corral.guard.machine import Machine, RecordingMachine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig

    Answers = tuple[tuple[Callable[..., object], tuple[str, ...], object], ...]

MAX_VERDICTS = 256
MAX_ANSWERS = 24  # beyond, asking again costs as much as judging again
MAX_TEXT = 4096  # characters of a call; longer ones do not come again
SYSTEM_SECONDS = 1.0
SYSTEM_DIRECTORIES = ("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/")


class VerdictCache:
    """The verdicts of one sandbox under one config. Any thread may ask."""

    __slots__ = ("_asked_at", "_config", "_known")

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._known: dict[object, tuple[Machine, Answers, Answers, Verdict]] = {}
        self._asked_at: dict[object, float] = {}  # of the second answers, which are the system's

    def vet(self, call: Call, machine: Machine) -> Verdict:
        """Judge a call, or find that it was judged before and nothing has changed."""
        argv = call.argv
        # Only plain text: a number or a list may equal another that is judged otherwise.
        if call.env is not None or type(argv) not in _TEXT_OR_WORDS or call.cwd.__class__ not in _TEXT_OR_NONE:
            return vet(call, self._config, machine)
        key: Any = (argv, call.shell, call.cwd)
        try:
            known = self._known.get(key)
        except TypeError:  # an argument that is no text
            known = None
        if known is not None and known[0] is machine:
            now = monotonic()
            is_recent = now < self._asked_at.get(key, 0.0) + SYSTEM_SECONDS
            for ask, about, answer in known[1] if is_recent else known[1] + known[2]:
                if ask(machine, *about) != answer:
                    break
            else:
                if not is_recent:
                    self._asked_at[key] = now
                return known[3]
        return self._judge(call, machine, key)

    def _judge(self, call: Call, machine: Machine, key: tuple[str | tuple[object, ...], bool, str | None]) -> Verdict:
        now = monotonic()
        witness = RecordingMachine(machine)
        verdict = vet(call, self._config, witness)
        answers = witness.answers
        if verdict.findings or not verdict.complete or len(answers) > MAX_ANSWERS or not _is_short_text(key[0]):
            return verdict
        if len(self._known) >= MAX_VERDICTS:
            self._known.clear()
            self._asked_at.clear()
        asked: tuple[list[Any], list[Any]] = ([], [])
        for (ask, about), answer in answers.items():
            asked[_is_of_the_system(ask, about, answer, machine)].append((ask, about, answer))
        self._known[key] = (machine, tuple(asked[0]), tuple(asked[1]), verdict)
        self._asked_at[key] = now
        return verdict


_TEXT_OR_NONE = (str, type(None))
_TEXT_OR_WORDS = (str, tuple)


def _is_of_the_system(ask: Callable[..., object], about: tuple[str, ...], answer: object, machine: Machine) -> bool:
    if ask is not Machine.resolve or not isinstance(answer, str):
        return False
    changeable = (machine.root, *machine.writable, *(path for path, _ in machine.shown))
    path = about[0]
    # No link on the way but that of /bin, which only the owner can turn: one of any other could lead through the project.
    is_plain = path.startswith(SYSTEM_DIRECTORIES) and answer in (path, f"/usr{path}")
    return is_plain and not any(f"{answer}/".startswith(f"{place}/") for place in changeable)


def _is_short_text(words: str | tuple[object, ...]) -> bool:
    if isinstance(words, str):
        return len(words) <= MAX_TEXT
    return all(type(word) is str for word in words) and sum(len(str(word)) for word in words) <= MAX_TEXT
