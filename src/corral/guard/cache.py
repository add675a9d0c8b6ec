"""Caches verdicts. A hit is returned only if every question that the original check asked the machine still has the same answer.

The guard is pure but for those answers, so nothing else can have changed. Only verdicts without findings are cached. The location of a
system program is asked again only after a second, if no link leads there: no command can change it.
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
MAX_ANSWERS = 24  # with more, checking them costs as much as judging the call again
MAX_TEXT = 4096  # characters of a call; longer calls are rarely repeated
SYSTEM_SECONDS = 1.0
SYSTEM_DIRECTORIES = ("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/")


class VerdictCache:
    """The cached verdicts of one sandbox under one config. Safe to use from several threads."""

    __slots__ = ("_checked_at", "_config", "_known")

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._known: dict[object, tuple[Machine, Answers, Answers, Verdict]] = {}
        self._checked_at: dict[
            object, float
        ] = {}  # when the second answers, those about system programs, were last checked

    def vet(self, call: Call, machine: Machine) -> Verdict:
        """Judge a call, or return its cached verdict if nothing has changed."""
        argv = call.argv
        # Only text is a safe key: values of other types can be equal and still be judged differently.
        if call.env is not None or type(argv) not in _TEXT_OR_WORDS or call.cwd.__class__ not in _TEXT_OR_NONE:
            return vet(call, self._config, machine)
        key: Any = (argv, call.shell, call.cwd)
        try:
            known = self._known.get(key)
        except TypeError:  # an argument that is not hashable
            known = None
        machine.forget_listings()
        if known is not None and known[0] is machine:
            now = monotonic()
            is_recent = now < self._checked_at.get(key, 0.0) + SYSTEM_SECONDS
            for ask, about, answer in known[1] if is_recent else known[1] + known[2]:
                if ask(machine, *about) != answer:
                    break
            else:
                if not is_recent:
                    self._checked_at[key] = now
                return known[3]
        return self._judge(call, machine, key)

    def _judge(self, call: Call, machine: Machine, key: tuple[str | tuple[object, ...], bool, str | None]) -> Verdict:
        now = monotonic()
        recording = RecordingMachine(machine)
        verdict = vet(call, self._config, recording)
        answers = recording.answers
        if verdict.findings or not verdict.complete or len(answers) > MAX_ANSWERS or not _is_short_text(key[0]):
            return verdict
        if len(self._known) >= MAX_VERDICTS:
            self._known.clear()
            self._checked_at.clear()
        split: tuple[list[Any], list[Any]] = ([], [])
        for (ask, about), answer in answers.items():
            split[_is_system_program(ask, about, answer, machine)].append((ask, about, answer))
        self._known[key] = (machine, tuple(split[0]), tuple(split[1]), verdict)
        self._checked_at[key] = now
        return verdict


_TEXT_OR_NONE = (str, type(None))
_TEXT_OR_WORDS = (str, tuple)


def _is_system_program(ask: Callable[..., object], about: tuple[str, ...], answer: object, machine: Machine) -> bool:
    if ask is not Machine.resolve or not isinstance(answer, str):
        return False
    changeable = (machine.root, *machine.writable, *(path for path, _ in machine.path_map))
    path = about[0]
    # Only the link /bin -> /usr/bin may be on the way, which only root can change. Another link could lead through the project.
    is_plain = path.startswith(SYSTEM_DIRECTORIES) and answer in (path, f"/usr{path}")
    return is_plain and not any(f"{answer}/".startswith(f"{place}/") for place in changeable)


def _is_short_text(words: str | tuple[object, ...]) -> bool:
    if isinstance(words, str):
        return len(words) <= MAX_TEXT
    return all(type(word) is str for word in words) and sum(len(str(word)) for word in words) <= MAX_TEXT
