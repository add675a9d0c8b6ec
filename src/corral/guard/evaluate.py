"""Judges one call on all axes. Runs nothing and never raises: a check that crashes refuses the call."""

from __future__ import annotations

from corral.guard.analysis.command import Command, assign_variable, judge_command
from corral.guard.analysis.scope import Frame, LimitExceeded, Scope
from corral.guard.analysis.walker import Walker
from corral.guard.axes import arguments, executable, paths, structure
from corral.guard.axes.findings import AXIS_OF
from corral.guard.machine import Machine
from corral.guard.shell.expansion import Word
from corral.guard.shell.parser import Script
from corral.model.call import Call, Effect, Step, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.policy.config import SandboxConfig

MAX_FINDINGS = 50  # against a call of a thousand refused commands; an agent reads no more


def vet(call: Call, config: SandboxConfig, machine: Machine | None = None) -> Verdict:
    """Judge a call without running anything."""
    try:
        return _vet(call, config, machine or Machine.of(config))
    except Exception as error:  # noqa: BLE001  the guard's only broad except: a check that crashed refuses
        reason = f"The guard failed on this call ({type(error).__name__}), so the call is refused."
        return Verdict((structure.shape_finding("crash", reason),), complete=False)


def _vet(call: Call, config: SandboxConfig, machine: Machine) -> Verdict:
    refused = structure.refuse(call)
    if refused is not None:
        return Verdict((refused,))
    commands, complete = commands_of(call, machine)
    rules = config.rules.commands
    named, trimmed, found = commands, commands, []
    if rules:
        from corral.guard.axes import user_rules  # noqa: PLC0415  most users have no rules of their own

        named, trimmed = user_rules.without_allowed(commands, rules)
        found = user_rules.judge(commands, rules)
    found += executable.judge(named, config)
    found += arguments.judge(trimmed, config)
    found += structure.judge(commands, config)
    found += paths.judge(commands, config, machine)
    outside = paths.cwd_finding(call, machine, config.rules.effects)
    if outside is not None:
        found.append(outside)
    if not found:
        return Verdict() if complete else Verdict((), complete=False)
    unique = list(dict.fromkeys(found))
    if len(unique) > MAX_FINDINGS:
        # Keep the strictest: earlier questions must not push out the refusal of a call that exceeds a limit.
        unique = sorted(unique, key=lambda f: -f.decision)[:MAX_FINDINGS]
    return Verdict(tuple(unique), complete and len(found) <= MAX_FINDINGS)


def commands_of(call: Call, machine: Machine) -> tuple[list[Command], bool]:
    """Return every command that a well-shaped call could run, and whether the guard walked the whole call."""
    walker = Walker(machine)
    cwd = machine.root if call.cwd is None else machine.resolve(call.cwd, machine.root)
    scope = Scope((cwd,))
    text = call.argv if isinstance(call.argv, str) else call.argv[0] if call.shell else ""
    script = Script(str(text), parse=call.shell)
    frame = Frame(walker, script, scope, 0)
    try:
        if call.env:
            command = Command("", [Word("env")], 0, scope.cwds)
            walker.commands.append(command)
            for name, value in call.env.items():
                assign_variable(walker, frame, command, name, value, Word(f"{name}={value}"))
        if call.shell:
            _report_deceptive(walker, script.text, None)
            walker.call_script(script, scope)
        else:
            texts = [call.argv] if isinstance(call.argv, str) else [str(argument) for argument in call.argv]
            words = [Word(text, 0, len(text), argument=index) for index, text in enumerate(texts)]
            for index, word in enumerate(words):
                match = structure.metacharacter(word.text)
                if match is not None:
                    at = Word(match.group(), match.start(), match.end(), argument=index)
                    walker.report("metacharacter", at, structure.metacharacter_reason(index, match.group()))
                _report_deceptive(walker, word.text, index)
            judge_command(walker, frame, words)
    except LimitExceeded as limit:
        walker.report("limit", Word(str(text)[:80]), f": {limit}")
        return walker.commands, False
    return walker.commands, True


def _report_deceptive(walker: Walker, text: str, argument: int | None) -> None:
    match = structure.deceptive(text)
    if match is not None:
        at = Word(f"U+{ord(match.group()):04X}", match.start(), match.end(), argument=argument)
        walker.report("unparsed", at, ", a character that can hide or disguise text")


def trace(call: Call, config: SandboxConfig, machine: Machine | None = None) -> tuple[Step, ...]:
    """Return every command that the call would run, in the order in which the guard judged them."""
    machine = machine or Machine.of(config)
    if structure.refuse(call) is not None:
        return ()
    decisions = config.rules.effects
    steps = []
    for command in commands_of(call, machine)[0]:
        effects: list[Effect] = []
        for key, word, _ in command.effects:
            keys = [key] if key in AXIS_OF else paths.word_effects(key, word, command.cwds, machine)
            granted = arguments.destination_decision(key, command, word, config)
            text = _without_holes(word.text)
            effects += [Effect(k, text, decisions[k] if granted is None else granted) for k in keys]
        if not command.name and not effects:
            continue
        first, last = command.words[0], command.words[-1]
        text = _without_holes(" ".join(word.text for word in command.words))
        length = max(0, last.end - first.start)
        unique = tuple(dict.fromkeys(effects))
        steps.append(Step(command.depth, command.name, text, unique, first.start, length, first.argument))
    return tuple(steps)


def _without_holes(text: str) -> str:
    """Return text with `…` for the parts that are only known at run time."""
    return text.replace("\0", "…").replace("\1", "…")
