"""Results and verdicts as text for people, as JSON and as a process's exit code. Pure: returns, never prints."""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral._lib.terminal import clip, columns, pad, printable, wrap
from corral.model.call import Axis, Decision
from corral.model.call_excerpt import Span, one_line, underlined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral._lib.terminal import Terminal
    from corral.model.call import Call, Effect, Finding, Step, Verdict, Violation
    from corral.model.result import SandboxResult

DENIED_STATUS = 126
TIMED_OUT_STATUS = 124
SPEAKER = "corral: "
FAILURE_STATUS = 125
CHECK_STATUS = {Decision.ALLOW: 0, Decision.ASK: 3, Decision.DENY: DENIED_STATUS}
LABEL_COLUMNS = len("instead  ")
AXIS_COLUMNS = len("  ? allow structure  ")
MIN_TEXT_COLUMNS = 20  # with less room beside its name, a text stands below it
MAX_LOOKED_AT = 12  # things named per axis; the rest is counted
PARTIAL = "Only a part of the call was judged; there may be more findings."
QUESTION = {
    Axis.NAME: "may a program of this name run?",
    Axis.ARGV: "do the arguments carry code, or do more than they say?",
    Axis.STRUCTURE: "can every part be read with certainty?",
    Axis.PATH: "does every path stay in the project?",
}


@frozen
class Explanation(Record):
    """All that the guard has to say about one call: the answer, and what would run. `axis_of` maps effects to axes."""

    call: Call
    verdict: Verdict
    steps: tuple[Step, ...]
    axis_of: Mapping[str, str]
    profile: str
    root: str

    def decision(self, axis: Axis) -> Decision:
        """Return what one axis says."""
        return max((f.decision for f in self.verdict.findings if f.axis == axis), default=Decision.ALLOW)

    def looked_at(self, axis: Axis) -> list[str]:
        """Return what an axis looked at, each thing once: names, whole commands, or what its effects touch."""
        if axis == Axis.NAME:
            return list(dict.fromkeys(step.name for step in self.steps))
        if axis == Axis.STRUCTURE:
            return list(dict.fromkeys(step.text for step in self.steps))
        touched = (e.text for step in self.steps for e in step.effects if self.axis_of.get(e.key) == str(axis))
        return list(dict.fromkeys(text for text in touched if text))

    def rules(self, axis: Axis) -> list[str]:
        """Return the ids of the rules by which an axis objects, each once."""
        return list(dict.fromkeys(f.rule for f in self.verdict.findings if f.axis == axis))

    def to_dict(self) -> dict[str, object]:
        """Return the reasoning as JSON-ready data."""
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
    data: dict[str, object] = {name: getattr(step, name) for name in step._fields}
    return data | {"effects": [{"key": e.key, "text": e.text, "decision": str(e.decision)} for e in step.effects]}


def exit_status(result: SandboxResult) -> int:
    """Return the exit code of `corral run` for a result."""
    if result.denied:
        return DENIED_STATUS
    return TIMED_OUT_STATUS if result.timed_out else result.exit_code


def json_text(data: object) -> str:
    """Return data as one line of ASCII JSON, which no lone surrogate, line separator or locale can break."""
    import json  # noqa: PLC0415  text for people does not need it

    return json.dumps(data)


def decision_label(decision: Decision, terminal: Terminal) -> str:
    """Return a decision as a word with its sign, in its colour, padded to the longest."""
    word = str(decision)
    return terminal.paint(word, pad(f"{terminal.sign(word)} {word}", len("? allow")))


def verdict_text(call: Call, verdict: Verdict, terminal: Terminal) -> str:
    """Return a verdict for people: every finding, strictest first, or one line."""
    lines = _finding_lines(call, verdict, terminal)
    return "\n".join(lines) if lines else f"{decision_label(verdict.decision, terminal)}  {_shown(call, terminal)}"


def denial_text(call: Call, result: SandboxResult, terminal: Terminal) -> str:
    """Return what a person is told when a call was not run."""
    if result.verdict.findings:
        return verdict_text(call, result.verdict, terminal)
    return f"{decision_label(Decision.DENY, terminal)}  {printable(result.reason)}"


def timeout_text(seconds: float | None) -> str:
    """Return what a person is told when a command ran out of time."""
    return f"corral: timed out after {seconds or 0:g} s; --timeout S sets another limit, --timeout 0 none"


def violation_text(violation: Violation, width: int = 0) -> str:
    """Return what was stopped, why, and what would allow it: one line, or lines of at most `width` columns."""
    text = printable(violation.text)
    lines = wrap(text, width, " " * len(SPEAKER)) if width else [text]
    return SPEAKER + "\n".join(lines).lstrip()


def _shown(call: Call, terminal: Terminal) -> str:
    return one_line(call, terminal.columns - 9, terminal.sign("cut"))


def _finding_lines(call: Call, verdict: Verdict, terminal: Terminal) -> list[str]:
    lines: list[str] = []
    for finding in sorted(verdict.findings, key=lambda f: (-f.decision, f.axis)):
        lines += [*([""] if lines else []), *finding_lines(call, finding, terminal)]
    return lines if verdict.complete else [*lines, PARTIAL]


def finding_lines(call: Call, finding: Finding, terminal: Terminal, margin: str = "    ") -> list[str]:
    """Return a finding for people: its rule, the offending part underlined behind a margin of four, why, and the way out."""
    lines = _head_lines(finding, terminal)
    part = Span(finding.start, finding.length, finding.argument)
    for text, carets in underlined(call, part, terminal.columns - 4, terminal.sign("cut")):
        lines.append(f"{margin}{text}")
        if carets:
            lines.append(f"{margin}{terminal.paint(str(finding.decision), carets)}")
    for label, said in (("why", finding.reason), ("instead", finding.instead)):
        if said:
            lines += labelled(label, said, terminal)
    return lines


def _head_lines(finding: Finding, terminal: Terminal) -> list[str]:
    said, rule = decision_label(finding.decision, terminal), printable(finding.rule)
    axis = f" {terminal.sign('dot')} {finding.axis} axis"
    room = terminal.columns - len("? allow  ")
    if columns(rule) > room:
        return [said, *(terminal.paint("head", line) for line in wrap(rule, terminal.columns, "  "))]
    # The id of a rule begins with its axis: where there is no room for both nothing is lost.
    axis = terminal.paint("dim", axis) if columns(rule + axis) <= room else ""
    return [f"{said}  {terminal.paint('head', rule)}{axis}"]


def labelled(label: str, text: str, terminal: Terminal) -> list[str]:
    """Return a text in a column of its own, beside its label."""
    indent = " " * (4 + LABEL_COLUMNS)
    if not _has_room(terminal, len(indent)):
        return [
            *([f"    {terminal.paint('dim', label)}"] if label else []),
            *wrap(printable(text), terminal.columns, " " * 6),
        ]
    first, *rest = wrap(printable(text), terminal.columns, indent)
    return [f"    {terminal.paint('dim', label)}{first[4 + len(label) :]}", *rest]


def explain_text(reasoning: Explanation, terminal: Terminal) -> str:
    """Return the whole reasoning for people: the call, what would run, what each axis says, and every finding."""
    call, dot = reasoning.call, terminal.sign("dot")
    about = f"profile {reasoning.profile} {dot} root {reasoning.root} {dot} cwd {call.cwd or '.'}"
    blocks = [
        [
            f"{decision_label(reasoning.verdict.decision, terminal)}  {_shown(call, terminal)}",
            terminal.paint("dim", clip(printable(about), terminal.columns, terminal.sign("cut"))),
        ],
        [terminal.paint("head", "What would run"), *step_lines(call, reasoning.steps, terminal)],
        [terminal.paint("head", "What each axis says"), *_axis_lines(reasoning, terminal)],
    ]
    findings = _finding_lines(call, reasoning.verdict, terminal)
    if findings:
        blocks.append([terminal.paint("head", "Findings"), *findings])
    return "\n\n".join("\n".join(block) for block in blocks)


def step_lines(call: Call, steps: Sequence[Step], terminal: Terminal) -> list[str]:
    """Return the tree of the commands that would run, each with its effects."""
    if not steps:
        return ["  nothing that the guard could name"]
    lines: list[str] = []
    depths = _depths(steps)
    for step, depth, ahead, below in zip(steps, depths, _ahead(depths), [*depths[1:], 0], strict=True):
        bars = "".join(terminal.sign("bar") if more else "   " for more in ahead[:-1])
        branch = bars + terminal.sign("tee" if ahead[-1] else "end")
        text = clip(printable(_source(call, step)), max(terminal.columns - 2 - len(branch), 1), terminal.sign("cut"))
        lines.append(f"  {terminal.paint('dim', branch)}{terminal.paint('head', text)}")
        under = bars + (terminal.sign("bar") if ahead[-1] else "   ")
        under += terminal.sign("bar") if below > depth else ""
        lines += [f"  {terminal.paint('dim', under)}{_effect(effect, terminal, len(under))}" for effect in step.effects]
    return lines


def _source(call: Call, step: Step) -> str:
    """Return a command as it was written, quotes and all, where its place in a shell string is its own."""
    written = call.argv[step.start : step.start + step.length] if isinstance(call.argv, str) else ""
    # What stands in a here-document has the place of its redirect, which says nothing of the command.
    return written if step.name and step.name in written else step.text or step.name


def _depths(steps: Sequence[Step]) -> list[int]:
    """Return the depths to draw: a step that comes before the one around it, as a substitution does, hangs higher."""
    depths: list[int] = []
    for step in steps:
        depths.append(min(step.depth, depths[-1] + 1 if depths else 0))
    return depths


def _ahead(depths: Sequence[int]) -> list[tuple[bool, ...]]:
    """Return for each row, and for each depth down to its own, whether the branch at that depth goes on below it."""
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
    said = clip(f"{key} {printable(effect.text)}".rstrip(), room, terminal.sign("cut"))
    return f"{decision_label(effect.decision, terminal)} {said}"


def _has_room(terminal: Terminal, used: int) -> bool:
    return terminal.columns - used >= MIN_TEXT_COLUMNS


def _axis_lines(reasoning: Explanation, terminal: Terminal) -> list[str]:
    lines = []
    beside = _has_room(terminal, AXIS_COLUMNS)
    indent = " " * (AXIS_COLUMNS if beside else 4)
    for axis in Axis:
        said = decision_label(reasoning.decision(axis), terminal)
        if beside:
            first, *rest = wrap(QUESTION[axis], terminal.columns, indent)
            lines += [f"  {said} {pad(str(axis), 10)} {first[len(indent) :]}", *rest]
        else:
            lines += [f"  {said} {axis}", *wrap(QUESTION[axis], terminal.columns, indent)]
        lines += [
            terminal.paint("dim", line)
            for line in wrap(_looked_at(reasoning, axis, terminal), terminal.columns, indent)
        ]
        rules = reasoning.rules(axis)
        if rules:
            lines += wrap(f"found {printable(', '.join(rules))}", terminal.columns, indent)
    return lines


def _looked_at(reasoning: Explanation, axis: Axis, terminal: Terminal) -> str:
    things = reasoning.looked_at(axis)
    if not things:
        return "saw nothing of its kind"
    if axis == Axis.STRUCTURE:
        # Naming them would repeat the tree above.
        return f"looked at the whole call, {len(reasoning.steps)} command{'s' * (len(reasoning.steps) != 1)} in it"
    shown = [clip(printable(t), max(terminal.columns - 34, 12), terminal.sign("cut")) for t in things[:MAX_LOOKED_AT]]
    more = f", and {len(things) - MAX_LOOKED_AT} more" if len(things) > MAX_LOOKED_AT else ""
    return f"looked at {', '.join(shown)}{more}"
