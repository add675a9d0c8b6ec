"""The last gate: the sandbox's own check of what is about to run. What it cannot judge does not pass."""

from __future__ import annotations

from corral.integrations.gates.model import Refusal, names
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from corral.integrations.gates.model import ToolCall
    from corral.sandbox import Sandbox

_ARGUMENTS = ("cwd", "env")


class SandboxGate:
    """Judges calls that are commands: `argv`, a list, or `command`, shell text; and `cwd` and `env`, as `Sandbox.check` takes them.

    `besides` names the tools that are no commands and pass; a call of any other shape is refused. What the guard would ask
    about is refused too, with the decision `ask`.
    """

    name = "sandbox"
    is_last = True

    def __init__(self, box: Sandbox, *, besides: Iterable[str] = ()) -> None:
        self._box = box
        self._besides = frozenset(names("the tools besides commands", besides))

    def judge(self, call: ToolCall, now: float) -> Refusal | None:  # noqa: ARG002  one signature for all gates
        """Refuse what the guard does not allow."""
        if call.tool in self._besides:
            return None
        try:
            given, options = command_of(call)
        except PolicyError as error:
            return Refusal("gate-no-command", str(error), "Give argv as a list, or command as shell text.")
        verdict = self._box.check(given, **options)
        if verdict.allowed:
            return None
        first = min(
            (finding for finding in verdict.findings if finding.decision == verdict.decision), key=lambda f: f.axis
        )
        return Refusal(first.rule, first.reason, first.instead, verdict.decision, verdict)


def command_of(call: ToolCall) -> tuple[Any, dict[str, Any]]:
    """Return what a call would run, and the options of `check`; PolicyError where it is no command."""
    argv, text = call.arguments.get("argv"), call.arguments.get("command")
    if (argv is None) == (text is None):
        raise PolicyError("A command has either argv or command.")
    options = {name: call.arguments[name] for name in _ARGUMENTS if call.arguments.get(name) is not None}
    # Of any shape: the guard refuses what is no list of words, and no text.
    return (text if argv is None else argv), options | {"shell": argv is None}
