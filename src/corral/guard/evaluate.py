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
from corral.model.call import Call, Decision, Effect, Step, Verdict
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.shell_memory import ShellMemory
    from corral.policy.config import SandboxConfig

MAX_PROOF_SECONDS = 0.05  # of CPU for the first look; the second, with the grants, takes as long
BY_ITSELF = "Run it by itself: it is then allowed, or the user is asked about it."
MAX_FINDINGS = 50  # against a call of a thousand refused commands; an agent reads no more


def vet(
    call: Call, config: SandboxConfig, machine: Machine | None = None, memory: ShellMemory | None = None
) -> Verdict:
    """Judge a call without running anything. `memory` is the state of the shell that the call runs in, if that shell lasts."""
    try:
        machine = machine or Machine.of(config)
        verdict = _vet(call, config, machine, memory)
        if memory is None or not memory.values:
            return verdict
        likely = _vet(call, config, machine, memory, recalls=True)
        findings = tuple(dict.fromkeys((*verdict.findings, *likely.findings)))
        return Verdict(findings, verdict.complete and likely.complete, verdict.others or likely.others)
    except Exception as error:  # noqa: BLE001  the guard's only broad except: a check that crashed refuses
        reason = f"The guard failed on this call ({type(error).__name__}), so the call is refused."
        return Verdict((structure.shape_finding("crash", reason),), complete=False)


def _vet(
    call: Call,
    config: SandboxConfig,
    machine: Machine,
    memory: ShellMemory | None = None,
    *,
    proves: bool = True,
    recalls: bool = False,
) -> Verdict:
    began = machine.cpu_seconds()
    machine.forget_listings()
    refused = structure.refuse(call)
    if refused is not None:
        return Verdict((refused,))
    walker = Walker(machine)
    complete = _walk(call, walker, memory, recalls=recalls)
    commands = walker.commands
    if not complete:
        del commands[MAX_FINDINGS:-1]  # the time is up; the last one reports the limit
    rules = config.rules.commands
    named, trimmed, found = commands, commands, []
    if rules:
        from corral.guard.axes import user_rules  # noqa: PLC0415  most users have no rules of their own

        named, trimmed = user_rules.without_allowed(commands, rules)
        found = user_rules.judge(commands, rules)
    try:
        walker.spend(sum(len(command.effects) for command in commands) // 4)
        found += executable.judge(named, config, machine, walker.spend)
        found += arguments.judge(trimmed, config, machine, walker.spend)
        found += structure.judge(commands, config)
        found += paths.judge(commands, config, machine, walker)
    except LimitExceeded as limit:
        complete = _report_limit(call, walker, limit)
        found += structure.judge(commands[-1:], config)
    # A shell is where an earlier call has led it: only its operands count.
    outside = None if memory is not None else paths.cwd_finding(call, machine, config)
    if outside is not None:
        found.append(outside)
    if (
        proves
        and complete
        and config.policy_grants
        and config.opens
        and all(f.decision == Decision.ALLOW for f in found)
    ):
        from corral.guard.axes.openings import standing_openings  # noqa: PLC0415  most policies have no grant

        standing = standing_openings(commands, config)
        if standing and not any(finding.grants for finding in found):
            return Verdict((*dict.fromkeys(found), *standing))
    if not found:
        return Verdict() if complete else Verdict((), complete=False)
    unique = list(dict.fromkeys(found))
    if len(unique) > MAX_FINDINGS:
        # Keep the strictest: earlier questions must not push out the refusal of a call that exceeds a limit.
        unique = sorted(unique, key=lambda f: -f.decision)[:MAX_FINDINGS]
    verdict = Verdict(tuple(unique), complete and len(found) <= MAX_FINDINGS)
    if not proves or not any(finding.grants for finding in unique):
        return verdict
    if verdict.decision != Decision.DENY:
        from corral.guard.axes.openings import other_commands  # noqa: PLC0415  most calls need none

        verdict = verdict.replace(others=other_commands(commands, verdict.grants, config, machine))
        from corral.guard.axes.direct_openings import are_alone  # noqa: PLC0415  as above

        is_short = machine.cpu_seconds() - began < MAX_PROOF_SECONDS
        is_safe = verdict.complete and are_alone(verdict.grants, commands)
        if is_safe and is_short and _passes(call, verdict, config, machine, memory):
            return _asked_if_shared(verdict)
    return _without_openings(verdict)


def _passes(call: Call, verdict: Verdict, config: SandboxConfig, machine: Machine, memory: ShellMemory | None) -> bool:
    """Say whether the call would be allowed, or only asked about for other reasons, with all its grants: a yes must help."""
    try:
        opened = config.with_grants(verdict.grants)
    except PolicyError:
        return False
    again = _vet(call, opened, machine.under(opened), memory, proves=False)
    return again.decision != Decision.DENY and again.complete and not again.grants


def _asked_if_shared(verdict: Verdict) -> Verdict:
    """Return the verdict with a question instead of an unasked opening, if other commands of the call could use it."""
    if not verdict.others:
        return verdict
    asked = [f.replace(decision=max(f.decision, Decision.ASK), family="") if f.grants else f for f in verdict.findings]
    return verdict.replace(findings=tuple(asked))


def _without_openings(verdict: Verdict) -> Verdict:
    """Return the verdict in which everything that would need an opening is denied, after what no opening could cure."""
    hard = [f for f in verdict.findings if not f.grants]
    cured = [f.replace(decision=Decision.DENY, grants=(), family="") for f in verdict.findings if f.grants]
    if any(f.decision == Decision.DENY for f in hard):
        cured = [f.replace(instead=BY_ITSELF) for f in cured]
    return verdict.replace(findings=(*hard, *cured), others=())


def commands_of(call: Call, machine: Machine) -> tuple[list[Command], bool]:
    """Return every command that a well-shaped call could run, and whether the guard walked the whole call."""
    walker = Walker(machine)
    complete = _walk(call, walker)
    return walker.commands, complete


def _walk(call: Call, walker: Walker, memory: ShellMemory | None = None, *, recalls: bool = False) -> bool:
    """Collect the commands of a call in a walker; return whether it walked the whole call."""
    machine = walker.machine
    cwd = machine.root if call.cwd is None else machine.resolve(call.cwd, machine.root)
    scope = Scope((cwd,))
    text = call.argv if isinstance(call.argv, str) else call.argv[0] if call.shell else ""
    script = Script(str(text), walker.is_late_to_parse, parse=call.shell)
    frame = Frame(walker, script, scope, 0)
    try:
        if memory is not None:
            memory.restore(walker, scope, recalls=recalls)
        if call.env:
            command = Command("", [Word("env")], 0, scope.cwds)
            walker.commands.append(command)
            for name, value in call.env.items():
                assign_variable(walker, frame, command, name, value, Word(f"{name}={value}"))
        if call.shell:
            _report_deceptive(walker, script.text, None)
            walker.call_script(frame)
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
        return _report_limit(call, walker, limit)
    finally:
        if memory is not None:
            memory.note(walker, frame, recalls=recalls)
    return True


def _report_limit(call: Call, walker: Walker, limit: LimitExceeded) -> bool:
    """Report a call that exceeds a limit; return that the guard has not walked the whole call."""
    text = call.argv if isinstance(call.argv, str) else str(call.argv[0])
    walker.report("limit", Word(text[:80]), f": {limit}")
    return False


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
