"""Verdicts of calls that come again: one is given again only if the machine gives every answer again that it rests on.

What judges is pure but for those answers, so nothing else can have changed; only what is allowed without a word is kept.
"""

from __future__ import annotations

from corral.machine import Witness
from corral.vet import vet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.config import SandboxConfig
    from corral.machine import Machine
    from corral.model import Call, Verdict

    Answers = tuple[tuple[Callable[..., object], tuple[str, ...], object], ...]

MAX_VERDICTS = 256
MAX_ANSWERS = 24  # beyond, asking again costs as much as judging again
MAX_TEXT = 4096  # characters of a call; longer ones do not come again


class Recall:
    """The verdicts of one sandbox under one config. Any thread may ask."""

    __slots__ = ("_config", "_known")

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._known: dict[object, tuple[Machine, Answers, Verdict]] = {}

    def vet(self, call: Call, machine: Machine) -> Verdict:
        """Judge a call, or find that it was judged before and nothing has changed."""
        argv = call.argv
        # Only plain text: a number or a list may equal another that is judged otherwise.
        if call.env is not None or type(argv) is not tuple or call.cwd.__class__ not in _TEXT_OR_NONE:
            return vet(call, self._config, machine)
        key = (argv, call.shell, call.cwd)
        try:
            known = self._known.get(key)
        except TypeError:  # an argument that is no text
            known = None
        if known is not None and known[0] is machine:
            for ask, about, answer in known[1]:
                if ask(machine, *about) != answer:
                    break
            else:
                return known[2]
        return self._judge(call, machine, key)

    def _judge(self, call: Call, machine: Machine, key: tuple[tuple[object, ...], bool, str | None]) -> Verdict:
        witness = Witness(machine)
        verdict = vet(call, self._config, witness)
        answers = witness.answers
        if verdict.findings or not verdict.complete or len(answers) > MAX_ANSWERS or not _is_short_text(key[0]):
            return verdict
        if len(self._known) >= MAX_VERDICTS:
            self._known.clear()
        self._known[key] = (machine, tuple([(ask, about, answer) for (ask, about), answer in answers.items()]), verdict)
        return verdict


_TEXT_OR_NONE = (str, type(None))


def _is_short_text(words: tuple[object, ...]) -> bool:
    return all(type(word) is str for word in words) and sum(len(str(word)) for word in words) <= MAX_TEXT
