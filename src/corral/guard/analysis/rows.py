"""Names the parts of a row: the description of one program's options and operands in the compiled rules."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NamedTuple

    Row = dict[str, Any]
    # A slot as the compiled rules hold it. Code that every command runs unpacks it: that takes a tenth of the time of six properties.
    RawSlot = tuple[str, str, str, str, tuple[str, ...], tuple[str, ...]]

    class Slot(NamedTuple):
        """A slot of an option or operand."""

        effect: str  # a verb, such as `reads`
        kind: str  # of the word that fills the slot; without one, the option itself has the effect
        many: str  # "*" takes all words, "?" only an attached value, "stop" ends the options
        label: str  # the reason for the effect, or an argument of the kind
        unless: tuple[str, ...]  # options that each drop the slot
        when: tuple[str, ...]  # options of which one must be given
else:

    class Slot(tuple):
        """Names the fields of a slot without unpacking it: constructing a record costs more than most hook calls can spare."""

        __slots__ = ()
        _make = classmethod(tuple.__new__)
        effect, kind, many, label, unless, when = (property(lambda slot, at=at: slot[at]) for at in range(6))


EFFECT_OF_VERB = {
    "rewrites": "history", "discards": "discard", "wipes": "wipe", "privileges": "privilege", "kills": "process", "changes": "system",
    "installs": "install", "fetches": "fetch", "sends": "network", "listens": "network-listen", "runs": "code-option",
    "loads": "code-loaded",
}  # fmt: skip
GUESSED = Slot._make(("reads", "any", "", "", (), ()))
GUESSED_OPERANDS = (Slot._make(("reads", "any", "*", "", (), ())),)
UNKNOWN_ROW: Row = {"id": "unknown", "style": "guess", "options": {}, "operands": GUESSED_OPERANDS}


def slots_of(raw: Iterable[Any]) -> list[Slot]:
    """Return the slots that the compiled rules hold as plain tuples."""
    return [Slot._make(slot) for slot in raw]
