"""Which files a command reads and which it changes, as far as the guard can prove from its text. Runs nothing."""

from __future__ import annotations

import os

from corral.guard.axes import structure
from corral.guard.evaluate import commands_of
from corral.guard.machine import Machine
from corral.guard.path_zones import inside
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.call import Call
    from corral.policy.config import SandboxConfig

_CHANGES = frozenset({"writes", "deletes"})


def touched(call: Call, config: SandboxConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a call reads and what it writes or deletes, of the project; what cannot be proven is not among it."""
    machine = Machine.of(config)
    try:
        acts = [] if structure.refuse(call) is not None else commands_of(call, machine)[0]
    except Exception:  # noqa: BLE001  a call on which the guard fails is refused by its own check
        return (), ()
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for act in acts:
        if act.cwds is None or len(act.cwds) != 1:
            continue
        for verb, word, _ in act.effects:
            if HOLE in word.text or NUMBER_HOLE in word.text or word.glob or not word.text:
                continue
            path = machine.absolute(word.text, act.cwds[0])
            if not inside(path, machine.root):
                continue
            # A directory is listed, not read: its version would change with every file in it.
            if verb == "reads" and not os.path.isdir(path):
                reads[path] = None
            elif verb in _CHANGES:
                writes[path] = None
    return tuple(reads), tuple(writes)
