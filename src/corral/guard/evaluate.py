"""All axes over one call; a crashed one refuses. Runs nothing, and never raises."""

from __future__ import annotations

from corral.guard.analysis.command import Command, assign_variable, judge_command
from corral.guard.analysis.scope import Frame, LimitExceeded, Scope
from corral.guard.analysis.walker import Walker
from corral.guard.axes import arguments, executable, paths, structure
from corral.guard.axes.findings import AXIS_OF
from corral.guard.machine import Machine
from corral.guard.shell.expansion import Word
from corral.guard.shell.parser import Script
from corral.model.call import Axis, Call, Decision, Effect, Finding, Step, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.policy.config import SandboxConfig

MAX_FINDINGS = 50  # an agent reads no more; against a call of a thousand refused commands


def vet(call: Call, config: SandboxConfig, machine: Machine | None = None) -> Verdict:
    """Judge a call; run nothing."""
    try:
        return _vet(call, config, machine or Machine.of(config))
    except Exception as error:  # noqa: BLE001  the one broad except of the guard: a check that crashed refuses
        return Verdict((_crash(error),), complete=False)


def _crash(error: BaseException) -> Finding:
    reason = f"The guard failed on this call ({type(error).__name__}), so it is refused."
    return Finding(Axis.STRUCTURE, "structure-crash", Decision.DENY, reason, instead="Write it in plain, simple shell.")


def _vet(call: Call, config: SandboxConfig, machine: Machine) -> Verdict:
    refused = structure.refuse(call)
    if refused is not None:
        return Verdict((refused,))
    acts, complete = commands_of(call, machine)
    rules = config.rules.commands
    named, trimmed, found = acts, acts, []
    if rules:
        from corral.guard.axes import user_rules  # noqa: PLC0415  most owners have no rules of their own

        named, trimmed = user_rules.lifted(acts, rules)
        found = user_rules.judge(acts, rules)
    found += executable.judge(named, config)
    found += arguments.judge(trimmed, config)
    found += structure.judge(acts, config)
    found += paths.judge(acts, config, machine)
    outside = paths.cwd_finding(call, machine, config.rules.effects)
    if outside is not None:
        found.append(outside)
    if not found:
        return Verdict() if complete else Verdict((), complete=False)
    unique = list(dict.fromkeys(found))
    if len(unique) > MAX_FINDINGS:
        # The strictest are kept: a limit that was reached must not be cut off by what was only asked about before it.
        unique = sorted(unique, key=lambda f: -f.decision)[:MAX_FINDINGS]
    return Verdict(tuple(unique), complete and len(found) <= MAX_FINDINGS)


def commands_of(call: Call, machine: Machine) -> tuple[list[Command], bool]:
    """Return every command that a well-shaped call could run, and whether the walk got to its end."""
    walker = Walker(machine)
    cwd = machine.root if call.cwd is None else machine.resolve(call.cwd, machine.root)
    scope = Scope((cwd,))
    text = call.argv if isinstance(call.argv, str) else call.argv[0] if call.shell else ""
    script = Script(str(text), parse=call.shell)
    frame = Frame(walker, script, scope, 0)
    try:
        if call.env:
            act = Command("", [Word("env")], 0, scope.cwds)
            walker.commands.append(act)
            for name, value in call.env.items():
                assign_variable(walker, frame, act, name, value, Word(f"{name}={value}"))
        if call.shell:
            _deceptive(walker, script.text, None)
            walker.call_script(script, scope)
        else:
            arguments_of = (call.argv,) if isinstance(call.argv, str) else call.argv
            words = [Word(str(a), 0, len(str(a)), argument=i) for i, a in enumerate(arguments_of)]
            _plain(walker, words)
            judge_command(walker, frame, words)
    except LimitExceeded as limit:
        walker.report("limit", Word(str(text)[:80]), str(limit))
        return walker.commands, False
    return walker.commands, True


def _plain(walker: Walker, words: list[Word]) -> None:
    for word in words:
        match = structure.metacharacter(word.text)
        if match is not None:
            at = Word(match.group(), match.start(), match.end(), argument=word.argument)
            walker.report("metacharacter", at, structure.metacharacter_reason(word.argument or 0, match.group()))
        _deceptive(walker, word.text, word.argument)


def _deceptive(walker: Walker, text: str, argument: int | None) -> None:
    match = structure.deceptive(text)
    if match is not None:
        at = Word(f"U+{ord(match.group()):04X}", match.start(), match.end(), argument=argument)
        walker.report("unparsed", at, ": a character that hides what the text says")


def trace(call: Call, config: SandboxConfig, machine: Machine | None = None) -> tuple[Step, ...]:
    """Return every command that the call would run, in the order in which the guard looked at them."""
    machine = machine or Machine.of(config)
    if structure.refuse(call) is not None:
        return ()
    acts, _ = commands_of(call, machine)
    decisions = config.rules.effects
    steps = []
    for act in acts:
        effects: list[Effect] = []
        for key, word, detail in act.effects:
            made = [key] if key in AXIS_OF else paths.keys(key, word, act.cwds, machine)
            shown = word.text.replace("\0", "…").replace("\1", "…")
            by_name = arguments.by_name(key, act, word, detail, config)
            effects += [Effect(k, shown, decisions[k] if by_name is None else by_name) for k in made]
        if not act.name and not effects:
            continue
        first, last = act.words[0], act.words[-1]
        text = " ".join(w.text for w in act.words).replace("\0", "…").replace("\1", "…")
        steps.append(
            Step(
                act.depth,
                act.name,
                text,
                tuple(dict.fromkeys(effects)),
                first.start,
                max(0, last.end - first.start),
                first.argument,
            )
        )
    return tuple(steps)
