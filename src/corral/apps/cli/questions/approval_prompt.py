"""Renders the question before a call: the call, what it needs or why corral asks, and the possible answers.

Text of the call reaches the terminal only as printable characters behind a bar, so it cannot forge a line of corral's or hide itself.
"""

from __future__ import annotations

import os

from corral._lib.terminal import Terminal, columns, printable, wrap
from corral.apps.cli.questions.terminal_prompt import without_middle
from corral.guard.broker_shapes import sentences_about
from corral.guard.evaluate import trace
from corral.model.call_excerpt import quoted_lines
from corral.model.grant import BROKER, REGISTRY
from corral.model.render_grant import meanings, needs_sentence, required_word, scope_text
from corral.model.render_result import finding_lines, labelled, source_text, step_lines
from corral.policy.answers.approvals import APPROVAL_SECONDS, Approval, can_be_approved
from corral.policy.answers.family_grants import FamilyGrant, family_of, is_lasting
from corral.policy.answers.question_count import MANY
from corral.policy.answers.unforeseen import destinations_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corral.guard.machine import Machine
    from corral.model.call import Call, Step, Verdict
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig

DAYS = int(APPROVAL_SECONDS // 86400)
MAX_LINES = 24  # of the call, of its findings and of its effects, unless the user asks for all
MAX_NON_ASCII = 5  # characters named because they may look like others
NEED_COLUMNS = len("  With that  ")
_NO_HOSTS: Mapping[str, tuple[Grant, ...]] = {}
LIMITED = "so this can only be allowed once."
ONCE, PROJECT, DESTINATION, NEVER = "once", "project", "destination", "never"
_LETTERS = {ONCE: ("o", "once", "y", "yes"), PROJECT: ("p", "project"), DESTINATION: ("d",), NEVER: ("x",)}


def question(
    call: Call,
    verdict: Verdict,
    config: SandboxConfig,
    machine: Machine,
    terminal: Terminal,
    *,
    runs: bool,
    whole: bool,
    hosts: Mapping[str, tuple[Grant, ...]] = _NO_HOSTS,
) -> tuple[str, bool]:
    """Return the question without its answers, and whether it shows all of the call. `whole` also shows why corral asks.

    `hosts` are the hosts that each package manager of the call needs.
    """
    if verdict.grants:
        return _grant_question(call, verdict, config, machine, terminal, runs=runs, whole=whole, hosts=hosts)
    bar = terminal.paint("dim", f"  {terminal.sign('bar')[0]} ")
    quoted = [f"{bar}{line}" for line in quoted_lines(call, max(terminal.columns - 4, 8))]
    findings: list[str] = []
    for finding in verdict.findings:
        findings += [*finding_lines(call, finding, terminal, bar), ""]
    steps = step_lines(call, trace(call, config, machine), terminal)
    most = 0 if whole else MAX_LINES
    blocks = [without_middle(lines, most, terminal) for lines in (quoted, findings, steps)]
    (shown, _), (found, _), (effects, _) = blocks
    asks = "This command needs your approval" if runs else "An agent asks to run this"
    lines = ["", terminal.paint("ask", f"{terminal.sign('ask')} {asks}"), "", *shown, "", *_non_ascii(call, terminal)]
    lines += [*found, terminal.paint("head", "What would run"), *effects, ""]
    where = os.path.realpath(os.path.join(config.project_root, call.cwd or ""))
    lines += [*labelled("where", where, terminal), *labelled("held", _confinement(config), terminal)]
    return "\n".join([*lines, "", ""]), all(is_whole for _, is_whole in blocks)


def _grant_question(
    call: Call,
    verdict: Verdict,
    config: SandboxConfig,
    machine: Machine,
    terminal: Terminal,
    *,
    runs: bool,
    whole: bool,
    hosts: Mapping[str, tuple[Grant, ...]],
) -> tuple[str, bool]:
    bar = terminal.paint("dim", f"  {terminal.sign('bar')[0]} ")
    quoted = [f"{bar}{line}" for line in quoted_lines(call, max(terminal.columns - 4, 8))]
    shown, is_whole = without_middle(quoted, 0 if whole else MAX_LINES, terminal)
    where = printable(os.path.realpath(os.path.join(config.project_root, call.cwd or "")))
    asks = "This command needs your permission, in" if runs else "An agent asks to run this in"
    if runs and destinations_of(verdict):
        asks = "This command runs, and waits for your permission to connect, in"
    head = wrap(f"{terminal.sign('ask')} {asks} {where}", terminal.columns, "  ")
    lines = ["", *(terminal.paint("ask", line.strip() if n == 0 else line) for n, line in enumerate(head))]
    lines += ["", *shown, "", *_non_ascii(call, terminal)]
    steps = trace(call, config, machine)
    lines += [*_needs(verdict, hosts, terminal), *_notes(verdict, hosts, terminal), *_parts(call, steps, terminal), ""]
    for finding in verdict.findings:
        if whole or not finding.grants:
            lines += [*finding_lines(call, finding, terminal, bar), ""]
    if whole:
        lines += [terminal.paint("head", "What would run"), *step_lines(call, steps, terminal), ""]
    return "\n".join([*lines, ""]), is_whole


def many_questions(asked: int, terminal: Terminal) -> str:
    """Return the line that says how often the user was asked in the last day, or nothing if that was seldom."""
    if asked < MANY:
        return ""
    line = f"Question {asked} of the last 24 hours. `corral posture` sets what is asked."
    return terminal.paint("dim", f"  {line}") + "\n\n"


def _needs(verdict: Verdict, hosts: Mapping[str, tuple[Grant, ...]], terminal: Terminal) -> Iterator[str]:
    """Yield what the call needs and what a yes means. Each grant has its source, beside it or on the next line."""
    label = "It needs"
    for grant in _shown_grants(verdict, hosts):
        source = f"({printable(grant.source)})" if grant.source else ""
        text = needs_sentence((grant,))
        fits = NEED_COLUMNS + columns(text) + 2 + columns(source) <= terminal.columns
        yield from _labelled(label, f"{text}  {source}" if fits else text, terminal)
        if source and not fits:
            yield from _labelled("", f"  {source}", terminal)
        label = ""
    label = "With that"
    for sentence in (*meanings(verdict.grants), *sentences_about(verdict.grants)):
        yield from _labelled(label, sentence, terminal)
        label = ""
    is_outside = all(grant.kind == BROKER for grant in verdict.grants)
    stays = "in the sandbox: no other host, no keys, and no other files outside the project."
    yield from _labelled("The rest" if is_outside else "It stays", f"{'stays ' * is_outside}{stays}", terminal)


def _shown_grants(verdict: Verdict, hosts: Mapping[str, tuple[Grant, ...]]) -> Iterator[Grant]:
    """Yield the grants, with the hosts of a package index in its place."""
    for grant in verdict.grants:
        named = [host for host in hosts.get(grant.target, ()) if host.certain] if grant.kind == REGISTRY else []
        yield from named or [grant]


def _notes(verdict: Verdict, hosts: Mapping[str, tuple[Grant, ...]], terminal: Terminal) -> Iterator[str]:
    """Yield what the user should know besides, above all why a grant can only be given once."""
    seen = destinations_of(verdict)
    if seen:
        yield from _labelled("Note", f"a command may connect to other places each time it runs, {LIMITED}", terminal)
    doubtful = [grant for grant in verdict.grants if not grant.certain and grant.target not in seen]
    uncertain = list(dict.fromkeys(printable(grant.source) for grant in doubtful))
    if uncertain:
        yield from _labelled("Note", f"{', '.join(uncertain)} can be changed by commands, {LIMITED}", terminal)
    if hosts:
        yield from _labelled("Note", "hosts that this package index names for its files are opened too.", terminal)
    left_out = [
        printable(f"{host.target} ({host.source})") for each in hosts.values() for host in each if not host.certain
    ]
    if left_out:
        note = f"files of the project name more hosts, which are not opened: {', '.join(left_out)}."
        yield from _labelled("Note", note, terminal)
    if verdict.others:
        runs = f"{', '.join(map(printable, verdict.others))} {'run' if len(verdict.others) > 1 else 'runs'}"
        yield from _labelled("Note", f"{runs} in the same call and can use this too, {LIMITED}", terminal)
    if any(label.startswith("xn--") for grant in verdict.grants for label in grant.target.split(".")):
        note = "a name that begins with xn-- stands for letters outside ASCII, which may look like others."
        yield from _labelled("Note", note, terminal)


def _parts(call: Call, steps: tuple[Step, ...], terminal: Terminal) -> Iterator[str]:
    """Yield the commands of a call with several, so that the user sees what else gets the grants."""
    names = [printable(source_text(call, step)) for step in steps if step.depth == 0]
    if len(names) > 1:
        yield from _labelled("Parts", f" {terminal.sign('dot')} ".join(names), terminal)


def _labelled(label: str, text: str, terminal: Terminal) -> list[str]:
    first, *rest = wrap(text, terminal.columns, " " * NEED_COLUMNS)
    padded = f"  {label}".ljust(NEED_COLUMNS)
    return [f"{terminal.paint('dim', padded)}{first[NEED_COLUMNS:]}", *rest]


def answers(call: Call, verdict: Verdict, *, runs: bool, is_whole: bool) -> dict[str, tuple[str, ...]]:
    """Return the possible answers, and the texts that mean each of them."""
    grants = verdict.grants
    can_store = is_whole and can_be_approved(
        call
    )  # the user must have seen all of a call before approving it for later
    word = required_word(grants)
    offered = [ONCE] if runs or can_store else []
    if can_store and (not grants or (is_lasting(verdict) and not word)):
        offered.append(PROJECT)
    if can_store and family_of(verdict) and not word:
        offered.append(DESTINATION)
    if grants:
        offered.append(NEVER)
    return {name: (word,) if name == ONCE and word else _LETTERS[name] for name in offered}


def choices(
    verdict: Verdict, offered: dict[str, tuple[str, ...]], terminal: Terminal, *, runs: bool, can_show: bool
) -> str:
    """Return the last lines of the question, with the possible answers."""
    if not verdict.grants:
        named = {ONCE: "[o]nce", PROJECT: f"for this [p]roject ({DAYS} days)"}
        short = [named[name] for name in offered] + ["[s]how all"] * can_show
        return terminal.paint("head", f"{'Run it' if runs else 'Allow'}? {', '.join([*short, '[N]o'])}") + " > "
    once = "once, this time only" if runs else "once, within 10 minutes"
    texts = {
        ONCE: f"type this word to allow it {once}" if required_word(verdict.grants) else once,
        PROJECT: f"exactly this command in this project, for {DAYS} days",
        DESTINATION: f"{scope_text(family_of(verdict), verdict.grants)} in this project, for {DAYS} days",
        NEVER: f"never in this project, for {DAYS} days",
    }
    rows = [(offered[name][0], texts[name]) for name in texts if name in offered]
    rows += [("s", "show why corral asks, and everything that would run")] if can_show else []
    width = max(len(key) for key, _ in rows) + 4
    lines = []
    for key, text in rows:
        first, *rest = wrap(text, terminal.columns, " " * width)
        lines += [f"  {terminal.paint('mark', key.ljust(width - 2))}{first[width:]}", *rest]
    keys = ", ".join([*(f"[{key}]" for key, _ in rows), "[N]o"])
    return "\n".join([*lines, "", terminal.paint("head", f"Allow? {keys}") + " > "])


def kept_text(approval: Approval | FamilyGrant) -> str:
    """Return the message after a call was approved for the project."""
    if isinstance(approval, FamilyGrant):
        what = scope_text(approval.family, approval.grants)
        return f"Allowed in this project for {DAYS} days: {what}. To be asked again: corral grants revoke {approval.id}"
    return f"Approved in this project for {DAYS} days. To be asked again: corral grants revoke {approval.id}"


def _non_ascii(call: Call, terminal: Terminal) -> list[str]:
    text = call.argv if isinstance(call.argv, str) else " ".join(map(str, call.argv))
    if text.isascii():
        return []
    found = list(dict.fromkeys(char for char in text if not char.isascii()))
    named = [f"{printable(char)} U+{ord(char):04X}" if printable(char) == char else printable(char) for char in found]
    more = ", …" if len(named) > MAX_NON_ASCII else ""
    note = f"characters outside ASCII may look like others: {', '.join(named[:MAX_NON_ASCII])}{more}"
    return [*labelled("note", note, terminal), ""]


def _confinement(config: SandboxConfig) -> str:
    containment = config.containment
    if containment.backend == "none":
        return f"profile {config.rules.name}, not contained: the command runs with all your rights"
    if containment.destinations:
        network = f"network to {', '.join(containment.destinations)}"
    else:
        network = "no network" if containment.network == "off" else "with network"
    project = "the project read-only" if containment.project == "read-only" else "in the project"
    return f"profile {config.rules.name}, {project}, {network}"
