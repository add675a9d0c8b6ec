"""`corral suggest`: reads the log and proposes [[grant]] entries that would have avoided refusals. The user at the terminal writes them."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import terminal_of
from corral.apps.cli.call import machine_of
from corral.apps.cli.log_filter import entry_count, parse_time
from corral.apps.cli.own_policy.grant_proposals import (
    Occasion,
    change_of,
    coloured,
    entries_for,
    merged,
    proposal_lines,
    would_run,
)
from corral.apps.cli.own_policy.policy_file import write_grants
from corral.apps.cli.questions.terminal_prompt import YES, TerminalPrompt, why_not_owner
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.audit import query
from corral.audit.audit_log import directory
from corral.audit.render_log import call_of
from corral.guard.evaluate import vet
from corral.model.errors import CorralError
from corral.model.render_result import json_text
from corral.policy.answers.family_grants import covering
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.apps.cli.own_policy.grant_proposals import Proposal
    from corral.guard.machine import Machine
    from corral.model.call import Call
    from corral.model.grant import Grant
    from corral.policy.answers.family_grants import PolicyGrant
    from corral.policy.config import SandboxConfig

DECLINED_STATUS = 1
SINCE = "7d"
MIN_OCCASIONS = 2
EVENTS = ("hook", "run", "mcp", "batch", "try")
VERB = Verb(
    "policy",
    "Propose grants that would have avoided the refusals in the log, and write those that you choose.",
    examples="""\
corral suggest                    propose grants for what was refused twice or more in 7 days
corral suggest --since 1d -n 1    for everything that was refused since yesterday
corral suggest --json             print the proposals, and write nothing
""",
    notes="""\
corral judges each refused call again, under your policy of today. It proposes what that call needed, and nothing wider: a
host, a package manager's hosts, a fetch, a port of this machine. It never proposes a file, a directory, a push, or a command
that runs outside: you answer those with `corral allow`.

The grants go into your own policy file, for one project each. Only a person at a terminal can write them.
""",
    exit_codes="0, 1 you said no, 125 corral could not ask or failed itself",
    arguments=(
        argument("--since TIME", f"Read the log from this time on (default: {SINCE}).", default=SINCE),
        argument("-n N", f"Propose what was refused at least N times (default: {MIN_OCCASIONS}).", dest="number", type=entry_count, default=MIN_OCCASIONS),
        argument("--project DIR", "Read the entries of this project alone.", default=""),
    ),
)  # fmt: skip


def check_arguments(options: Options, _: list[str]) -> None:
    """Replace the time by its exact form, and refuse any other text."""
    try:
        options.since = parse_time(options.since)
    except (ValueError, OverflowError):
        raise UsageError(f"--since {options.since!r} is not a time, such as 2h, today or 2026-11-15T09:30") from None


def main(options: Options) -> int:
    """Propose grants, and write those that the user chooses."""
    wish = query.LogFilter(
        since=options.since, project=os.path.realpath(options.project) if options.project else "", trials=False
    )
    reader = _Reader()
    for entry in query.walk(directory(os.environ), wish):
        result = entry.get("result")
        # A question that was answered with yes is no refusal.
        was_refused = not isinstance(result, dict) or result.get("denied") is True
        if entry.get("event") in EVENTS and entry.get("decision") in ("ask", "deny") and was_refused:
            reader.add(entry)
    proposals = merged(reader.found, options.number)
    if options.json:
        print(json_text([each.to_dict() for each in proposals]))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    if not proposals:
        print(_nothing(reader, options.number))
        return 0
    for number, each in enumerate(proposals, 1):
        print("\n".join([*proposal_lines(number, each, terminal), ""]))
    return _offer(proposals)


class _Reader:
    """Judges the refused calls of the log again, each call once for each project."""

    def __init__(self) -> None:
        self.refused = 0  # calls in the log
        self.hard = 0  # of those, the ones that no entry may allow
        self.found: list[tuple[PolicyGrant, tuple[Grant, ...], Occasion]] = []
        self._configs: dict[str, tuple[SandboxConfig, Machine] | None] = {}
        self._known: dict[tuple[object, ...], list[tuple[PolicyGrant, tuple[Grant, ...]]]] = {}
        self._seen: set[str] = set()

    def add(self, entry: dict[str, object]) -> None:
        """Add a refused call."""
        # A hook's verdict and the run that it allowed are one call.
        id_ = str(entry.get("call") or entry.get("id"))
        call, root = call_of(entry), str(entry.get("root"))
        if id_ in self._seen or call is None:
            return
        self._seen.add(id_)
        self.refused += 1
        key = (root, call)
        if key not in self._known:
            self._known[key] = self._judge(call, root)
        self.hard += not self._known[key]
        occasion = Occasion(str(entry.get("at")), call)
        self.found += [(granted, grants, occasion) for granted, grants in self._known[key]]

    def _judge(self, call: Call, root: str) -> list[tuple[PolicyGrant, tuple[Grant, ...]]]:
        if root not in self._configs:
            self._configs[root] = _config(root)
        known = self._configs[root]
        if known is None:
            return []
        config, machine = known
        verdict = vet(call, config, machine)
        if covering(verdict, config, os.environ) is not None:
            return []  # it would run today
        entries = entries_for(verdict, root)
        if entries and not would_run(call, config, machine, [entry for entry, _ in entries]):
            return []
        return entries


def _config(root: str) -> tuple[SandboxConfig, Machine] | None:
    try:
        config = load(root, os.environ).config
        return config, machine_of(config)
    except (CorralError, OSError):
        return None  # the project is gone, or its policy is wrong


def _nothing(reader: _Reader, number: int) -> str:
    if not reader.refused:
        return "Nothing to propose: the log has no refused call in this time."
    many = f"{reader.refused} call{'s' * (reader.refused != 1)}"
    rest = reader.refused - reader.hard
    text = f"Nothing to propose. The log has {many} that corral refused or asked about in this time."
    if reader.hard:
        text += f" {reader.hard} of them would run today, or a lasting grant cannot allow them: see corral log --decision deny."
    if rest:
        text += f" {rest} of them needed something that was refused fewer than {number} times: see corral suggest -n 1."
    return text


def _offer(proposals: Sequence[Proposal]) -> int:
    if why := why_not_owner(os.environ):
        print(f"corral: nothing is written: only a person at a terminal can do that, and {why}", file=sys.stderr)
        return 0
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, os.environ)
        offered = "[y]es, all" if len(proposals) > 1 else "[y]es"
        numbers = ", numbers such as 1 3" if len(proposals) > 1 else ""
        said = prompt.ask(f"{terminal.paint('head', f'Add to your policy? {offered}{numbers}, [N]o')} > ")
        chosen = list(proposals) if said in YES else _numbered(said, proposals)
        if not chosen:
            prompt.write("Nothing was written.\n")
            return DECLINED_STATUS
        after, diff = change_of(chosen, os.environ)
        prompt.write("\n".join(["", *coloured(diff, terminal), "", ""]))
        if prompt.ask(f"{terminal.paint('head', 'Write it? [y]es, [N]o')} > ") not in YES:
            prompt.write("Nothing was written.\n")
            return DECLINED_STATUS
        families = ", ".join(each.entry.family for each in chosen)
        path = write_grants(after, f"A person at a terminal added grants for: {families}", os.environ)
        prompt.write(f"Written to {path}. Remove an entry there to be asked again.\n")
        return 0
    return DECLINED_STATUS  # interrupted


def _numbered(said: str, proposals: Sequence[Proposal]) -> list[Proposal]:
    words = said.replace(",", " ").split()
    if not words or not all(word.isdecimal() and 1 <= int(word) <= len(proposals) for word in words):
        return []
    return [proposals[number - 1] for number in sorted({int(word) for word in words})]
