"""Renders results and verdicts as text, as JSON and as an exit code. Pure."""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral._lib.terminal import clip, columns, pad, printable, wrap
from corral.model.call import Axis, Decision
from corral.model.call_excerpt import Span, one_line, underlined
from corral.model.render_grant import BY_HAND, by_hand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral._lib.terminal import Terminal
    from corral.model.call import Call, Effect, Finding, Step, Verdict, Violation
    from corral.model.result import SandboxResult

DENIED_STATUS = 126
TIMED_OUT_STATUS = 124
PREFIX = "corral: "
FAILURE_STATUS = 125
CHECK_STATUS = {Decision.ALLOW: 0, Decision.ASK: 3, Decision.DENY: DENIED_STATUS}
LABEL_COLUMNS = len("instead  ")
AXIS_COLUMNS = len("  ? allow structure  ")
MIN_TEXT_COLUMNS = 20  # with less room beside its label, a text goes below it
MAX_EXAMINED = 12  # things listed per axis; the rest is counted
PARTIAL = "Only a part of the call was judged; there may be more findings."
QUESTION = {
    Axis.NAME: "may a program of this name run?",
    Axis.ARGV: "do the arguments contain code, or have hidden effects?",
    Axis.STRUCTURE: "can every part be read with certainty?",
    Axis.PATH: "does every path stay in the project?",
}


@frozen
class Explanation(Record):
    """The guard's full judgement of a call: verdict and commands. `axis_of` maps effects to axes."""

    call: Call
    verdict: Verdict
    steps: tuple[Step, ...]
    axis_of: Mapping[str, str]
    profile: str
    root: str

    def decision(self, axis: Axis) -> Decision:
        """Return the decision of one axis."""
        return max((f.decision for f in self.verdict.findings if f.axis == axis), default=Decision.ALLOW)

    def looked_at(self, axis: Axis) -> list[str]:
        """Return the names, commands or effect targets that an axis examined, each once."""
        if axis == Axis.NAME:
            return list(dict.fromkeys(step.name for step in self.steps))
        if axis == Axis.STRUCTURE:
            return list(dict.fromkeys(step.text for step in self.steps))
        touched = (e.text for step in self.steps for e in step.effects if self.axis_of.get(e.key) == str(axis))
        return list(dict.fromkeys(text for text in touched if text))

    def rules(self, axis: Axis) -> list[str]:
        """Return the ids of the rules that an axis found, each once."""
        return list(dict.fromkeys(f.rule for f in self.verdict.findings if f.axis == axis))

    def to_dict(self) -> dict[str, object]:
        """Return the explanation as JSON-ready data."""
        call = self.call
        return {
            "profile": self.profile,
            "root": self.root,
            "cwd": call.cwd,
            "shell": call.shell,
            "call": call.argv if isinstance(call.argv, str) else list(call.argv),
            **self.verdict.to_dict(),
            "reason": self.verdict.reason,
            "axes": [
                {
                    "axis": str(axis),
                    "decision": str(self.decision(axis)),
                    "looked_at": self.looked_at(axis),
                    "rules": self.rules(axis),
                }
                for axis in Axis
            ],
            "steps": [_step(step) for step in self.steps],
        }


def _step(step: Step) -> dict[str, object]:
    effects = [effect.as_dict() | {"decision": str(effect.decision)} for effect in step.effects]
    return step.as_dict() | {"effects": effects}


def exit_status(result: SandboxResult) -> int:
    """Return the exit code of `corral run` for a result."""
    if result.denied:
        return DENIED_STATUS
    return TIMED_OUT_STATUS if result.timed_out else result.exit_code


def json_text(data: object) -> str:
    """Return data as one line of ASCII JSON, which is safe in every locale."""
    import json  # noqa: PLC0415  text output does not need it

    return json.dumps(data)


def decision_label(decision: Decision, terminal: Terminal) -> str:
    """Return a decision as a coloured word with its sign, padded to the longest."""
    word = str(decision)
    return terminal.paint(word, pad(f"{terminal.sign(word)} {word}", len("? allow")))


def verdict_text(call: Call, verdict: Verdict, terminal: Terminal) -> str:
    """Return a verdict as text: every finding, strictest first, or one line."""
    lines = _finding_lines(call, verdict, terminal)
    return "\n".join(lines) if lines else f"{decision_label(verdict.decision, terminal)}  {_shown(call, terminal)}"


def denial_text(call: Call, result: SandboxResult, terminal: Terminal) -> str:
    """Return the message for a call that was not run."""
    if result.verdict.findings:
        text = verdict_text(call, result.verdict, terminal)
        line = by_hand(call, result.verdict)
        return f"{text}\n\n{BY_HAND.format(line)}" if line else text
    return f"{decision_label(Decision.DENY, terminal)}  {printable(result.reason)}"


def timeout_text(seconds: float | None) -> str:
    """Return the message for a command that timed out."""
    return f"corral: timed out after {seconds or 0:g} s; --timeout S sets another limit, --timeout 0 none"


def violation_text(violation: Violation, width: int = 0) -> str:
    """Return the message for a violation: one line, or lines of at most `width` columns."""
    text = printable(violation.text)
    lines = wrap(text, width, " " * len(PREFIX)) if width else [text]
    return PREFIX + "\n".join(lines).lstrip()


def _shown(call: Call, terminal: Terminal) -> str:
    return one_line(call, terminal.columns - 9, terminal.sign("cut"))


def _finding_lines(call: Call, verdict: Verdict, terminal: Terminal) -> list[str]:
    lines: list[str] = []
    for finding in sorted(verdict.findings, key=lambda f: (-f.decision, f.axis)):
        lines += [*([""] if lines else []), *finding_lines(call, finding, terminal)]
    return lines if verdict.complete else [*lines, PARTIAL]


def finding_lines(call: Call, finding: Finding, terminal: Terminal, margin: str = "    ") -> list[str]:
    """Return a finding as text: its rule, the underlined part of the call, the reason and the alternative."""
    lines = _head_lines(finding, terminal)
    span = Span(finding.start, finding.length, finding.argument)
    for text, carets in underlined(call, span, terminal.columns - 4, terminal.sign("cut")):
        lines.append(f"{margin}{text}")
        if carets:
            lines.append(f"{margin}{terminal.paint(str(finding.decision), carets)}")
    for label, text in (("why", finding.reason), ("instead", finding.instead)):
        if text:
            lines += labelled(label, text, terminal)
    return lines


def _head_lines(finding: Finding, terminal: Terminal) -> list[str]:
    label, rule = decision_label(finding.decision, terminal), printable(finding.rule)
    axis = f" {terminal.sign('dot')} {finding.axis} axis"
    room = terminal.columns - len("? allow  ")
    if columns(rule) > room:
        return [label, *(terminal.paint("head", line) for line in wrap(rule, terminal.columns, "  "))]
    # The id of a rule begins with its axis, so the axis can be left out where there is no room.
    axis = terminal.paint("dim", axis) if columns(rule + axis) <= room else ""
    return [f"{label}  {terminal.paint('head', rule)}{axis}"]


def labelled(label: str, text: str, terminal: Terminal) -> list[str]:
    """Return a wrapped text in a column beside its label."""
    indent = " " * (4 + LABEL_COLUMNS)
    if not _has_room(terminal, len(indent)):
        return [
            *([f"    {terminal.paint('dim', label)}"] if label else []),
            *wrap(printable(text), terminal.columns, " " * 6),
        ]
    first, *rest = wrap(printable(text), terminal.columns, indent)
    return [f"    {terminal.paint('dim', label)}{first[4 + len(label) :]}", *rest]


def explain_text(explanation: Explanation, terminal: Terminal) -> str:
    """Return an explanation as text: the call, its commands, each axis, and every finding."""
    call, dot = explanation.call, terminal.sign("dot")
    about = f"profile {explanation.profile} {dot} root {explanation.root} {dot} cwd {call.cwd or '.'}"
    blocks = [
        [
            f"{decision_label(explanation.verdict.decision, terminal)}  {_shown(call, terminal)}",
            terminal.paint("dim", clip(printable(about), terminal.columns, terminal.sign("cut"))),
        ],
        [terminal.paint("head", "What would run"), *step_lines(call, explanation.steps, terminal)],
        [terminal.paint("head", "What each axis says"), *_axis_lines(explanation, terminal)],
    ]
    findings = _finding_lines(call, explanation.verdict, terminal)
    if findings:
        blocks.append([terminal.paint("head", "Findings"), *findings])
    return "\n\n".join("\n".join(block) for block in blocks)


def step_lines(call: Call, steps: Sequence[Step], terminal: Terminal) -> list[str]:
    """Return the tree of the commands that would run, each with its effects."""
    if not steps:
        return ["  no command that the guard could identify"]
    lines: list[str] = []
    depths = _depths(steps)
    for step, depth, ahead, below in zip(steps, depths, _ahead(depths), [*depths[1:], 0], strict=True):
        bars = "".join(terminal.sign("bar") if more else "   " for more in ahead[:-1])
        branch = bars + terminal.sign("tee" if ahead[-1] else "end")
        text = clip(
            printable(source_text(call, step)), max(terminal.columns - 2 - len(branch), 1), terminal.sign("cut")
        )
        lines.append(f"  {terminal.paint('dim', branch)}{terminal.paint('head', text)}")
        under = bars + (terminal.sign("bar") if ahead[-1] else "   ")
        under += terminal.sign("bar") if below > depth else ""
        lines += [f"  {terminal.paint('dim', under)}{_effect(effect, terminal, len(under))}" for effect in step.effects]
    return lines


def source_text(call: Call, step: Step) -> str:
    """Return a command as the shell string writes it, with its quotes, where its position is known."""
    written = call.argv[step.start : step.start + step.length] if isinstance(call.argv, str) else ""
    # A command in a here-document has the position of the redirect, which does not contain it.
    return written if step.name and step.name in written else step.text or step.name


def _depths(steps: Sequence[Step]) -> list[int]:
    """Return the depths to draw. A substitution comes before the command that contains it, so its depth is reduced."""
    depths: list[int] = []
    for step in steps:
        depths.append(min(step.depth, depths[-1] + 1 if depths else 0))
    return depths


def _ahead(depths: Sequence[int]) -> list[tuple[bool, ...]]:
    """Return for each row, and each depth down to its own, whether the branch at that depth continues below."""
    open_at: list[bool] = []
    found: list[tuple[bool, ...]] = []
    for depth in reversed(depths):
        open_at = (open_at + [False] * (depth + 1 - len(open_at)))[: depth + 1]
        found.append(tuple(open_at))
        open_at[depth] = True
    return found[::-1]


def _effect(effect: Effect, terminal: Terminal, used: int) -> str:
    key = pad(effect.key, 16) if _has_room(terminal, AXIS_COLUMNS) else effect.key
    room = max(terminal.columns - used - 10, 1)
    text = clip(f"{key} {printable(effect.text)}".rstrip(), room, terminal.sign("cut"))
    return f"{decision_label(effect.decision, terminal)} {text}"


def _has_room(terminal: Terminal, used: int) -> bool:
    return terminal.columns - used >= MIN_TEXT_COLUMNS


def _axis_lines(explanation: Explanation, terminal: Terminal) -> list[str]:
    lines = []
    beside = _has_room(terminal, AXIS_COLUMNS)
    indent = " " * (AXIS_COLUMNS if beside else 4)
    for axis in Axis:
        label = decision_label(explanation.decision(axis), terminal)
        if beside:
            first, *rest = wrap(QUESTION[axis], terminal.columns, indent)
            lines += [f"  {label} {pad(str(axis), 10)} {first[len(indent) :]}", *rest]
        else:
            lines += [f"  {label} {axis}", *wrap(QUESTION[axis], terminal.columns, indent)]
        examined = wrap(_examined(explanation, axis, terminal), terminal.columns, indent)
        lines += [terminal.paint("dim", line) for line in examined]
        rules = explanation.rules(axis)
        if rules:
            lines += wrap(f"found {printable(', '.join(rules))}", terminal.columns, indent)
    return lines


def _examined(explanation: Explanation, axis: Axis, terminal: Terminal) -> str:
    things = explanation.looked_at(axis)
    if not things:
        return "nothing to examine"
    if axis == Axis.STRUCTURE:
        # The tree above names the commands.
        return f"examined the whole call, {len(explanation.steps)} command{'s' * (len(explanation.steps) != 1)} in it"
    shown = [clip(printable(t), max(terminal.columns - 34, 12), terminal.sign("cut")) for t in things[:MAX_EXAMINED]]
    more = f", and {len(things) - MAX_EXAMINED} more" if len(things) > MAX_EXAMINED else ""
    return f"examined {', '.join(shown)}{more}"
