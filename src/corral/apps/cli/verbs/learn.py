"""`corral learn`: runs a command in a transaction, asks about all that it needs, and proposes the least policy that it runs under.

Nothing of the run is applied. A second run, under the proposed policy and without questions, proves the proposal.
"""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.arguments import call_arguments, call_usage, check_call
from corral.apps.cli.call import call_of, config_of, machine_of
from corral.apps.cli.own_policy.grant_proposals import (
    Proposal,
    change_of,
    coloured,
    entries_for,
    proposal_lines,
    would_run,
)
from corral.apps.cli.own_policy.policy_file import write_grants
from corral.apps.cli.questions.held_connections import HeldConnections
from corral.apps.cli.questions.terminal_prompt import YES, TerminalPrompt, why_not_owner
from corral.apps.cli.run_command import run_command
from corral.apps.cli.run_log import RunLog, print_violations
from corral.apps.cli.transactions import refuse_inside_sandbox
from corral.apps.cli.verb import Options, UsageError, Verb
from corral.audit.audit_log import Log
from corral.broker.openings import open_grants
from corral.guard.axes.openings import plain_words, quiet_commands
from corral.guard.evaluate import commands_of, vet
from corral.model.call import Decision
from corral.model.grant import NETWORK, Grant, unique_grants
from corral.model.render_grant import meanings, needs_sentence
from corral.model.render_result import denial_text, exit_status, labelled
from corral.policy.answers.family_grants import PolicyGrant
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.model.call import Call, Verdict
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig

NOBODY_STATUS, NOT_LEARNT_STATUS = 126, 1
LEARNT = "seen by corral learn"
VERB = Verb(
    "policy",
    "Run a command twice in a transaction, find what it needs, and propose the grants for exactly that.",
    examples="""\
corral learn -- python fetch_prices.py       find the hosts that a script connects to
corral learn --shell 'npm install'           find what an installation needs
""",
    notes="""\
corral asks about everything that the command needs: openings that the guard sees before it starts, and each host while the
connection to it waits. The network is never open as a whole. Then corral runs the command again under the proposed grants,
without a question. If that run succeeds too, corral shows the change of your own policy file and asks whether to write it.

No change of either run is applied to the project. What the command sends to a host that you allow cannot be undone.
""",
    exit_codes="0 proven, 1 nothing was proven or you said no, 126 denied or nobody can be asked, 125 corral itself failed",
    usage=call_usage("learn"),
    command_after="",
    arguments=call_arguments(on_terminal=True),
)


def check_arguments(options: Options, extra: list[str]) -> None:
    """Require one command."""
    check_call(options, extra)
    if options.json:
        raise UsageError("corral learn asks at the terminal, so it has no --json; corral suggest has one")


def main(options: Options) -> int:
    """Watch the command, prove what it needs, and offer to write it."""
    refuse_inside_sandbox()
    if why := why_not_owner(os.environ):
        print(f"corral: only a person at a terminal can let a command connect, and {printable(why)}", file=sys.stderr)
        return NOBODY_STATUS
    options.tty = True  # without a terminal of its own, the command could write over a question
    config, call = config_of(options), call_of(options)
    verdict = vet(call, config, machine_of(config))
    if verdict.decision is Decision.DENY:
        terminal = terminal_of(sys.stderr, os.environ)
        print(printable(verdict.reason) if call.shell else verdict.reason, file=sys.stderr)
        _say("no grant can allow this command", terminal.paint("deny", "not learnt"))
        return NOBODY_STATUS
    if verdict.decision is Decision.ASK and not entries_for(verdict, config.project_root):
        # Before anything runs: a push, for example, cannot be taken back.
        _say("not run: this needs your answer each time, so no grant is proposed. Run it with: corral run")
        return NOT_LEARNT_STATUS
    if verdict.grants and not _agreed(f"It needs {needs_sentence(verdict.grants)}.", verdict.grants, config):
        _say("not run: you said no")
        return NOT_LEARNT_STATUS
    watched = _Watched(call, config)
    result = _run(call, verdict.grants, config, options, watched)
    if not result.ok:
        _say_failed(call, result)
        return exit_status(result) or NOT_LEARNT_STATUS
    proposals = _proposals(call, verdict, watched.allowed, config)
    if proposals is None:
        return NOT_LEARNT_STATUS
    if not proposals:
        _say("the command needs nothing beyond your policy")
        return 0
    _say("now again, under the proposed grants and without a question")
    granted = tuple(grant for each in proposals for grant in each.grants)
    proof = _run(call, granted, config, options, None)
    is_enough = proof.ok and all(connection.outcome != "refused" for connection in proof.connections)
    if not is_enough or not would_run(call, config, machine_of(config), [each.entry for each in proposals]):
        _say_failed(call, proof)
        _say("the proposed grants are not enough, so nothing is proposed")
        return NOT_LEARNT_STATUS
    return _offer(proposals)


class _Watched(HeldConnections):
    """Asks at this terminal about what a command needs, for the time of one run."""

    def __init__(self, call: Call, config: SandboxConfig) -> None:
        super().__init__(call, config, is_known=True, asks_here=True, is_shown=True, host="learn")

    def _take(self, destination: str) -> bool:
        return destination in self._allowed

    def _was_declined(self, destination: str) -> bool:
        return destination in self._declined

    def _ask(self, destination: str, seconds: float) -> bool:
        grant = Grant(NETWORK, destination, LEARNT)
        agreed = _agreed(f"It wants to connect to {printable(destination)}.", (grant,), self._config, seconds)
        (self._allowed if agreed else self._declined).add(destination)
        return agreed


def _agreed(what: str, grants: Sequence[Grant], config: SandboxConfig, seconds: float | None = None) -> bool:
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, os.environ)
        lines = ["", terminal.paint("head", what)]
        for sentence in meanings(grants):
            lines += labelled("means", sentence, terminal)
        prompt.write("\n".join([*lines, ""]))
        agreed = prompt.ask(f"{terminal.paint('head', 'Allow it for this run? [y]es, [N]o')} > ", seconds) in YES
        if agreed:
            # Logged first: if the log cannot be written, nothing is granted.
            reason = f"A person at a terminal allowed for one run of corral learn: {needs_sentence(grants)}"
            Log(config, event="grant").note({"decision": "allow", "reason": reason})
        return agreed
    return False  # interrupted


def _run(
    call: Call, grants: tuple[Grant, ...], config: SandboxConfig, options: Options, watched: _Watched | None
) -> SandboxResult:
    """Run the call once, in a sandbox that has these grants, in a transaction of which nothing is kept.

    Without `watched`, nobody is asked.
    """
    log = RunLog(Log(config, event="try"), required=config.audit.required)
    on_hold, while_waiting = (None, None) if watched is None else (watched.on_hold, watched.ask_waiting)
    opened = open_grants(config, grants)
    os.environ.update(opened.variables)
    own = opened.config.replace(env_allowlist={*opened.config.env_allowlist, *opened.variables})
    try:
        with Sandbox(config=own, on_result=log.result, on_hold=on_hold) as box, box.transaction() as tx:
            result = run_command(tx, call, options, while_waiting)
            tx.discard()
    finally:
        opened.close()
    print_violations(result)
    return result


def _proposals(
    call: Call, verdict: Verdict, destinations: tuple[str, ...], config: SandboxConfig
) -> list[Proposal] | None:
    """Return what the call needed as entries for the policy. None if an entry cannot give it; the user has read why."""
    made = []
    if verdict.decision is Decision.ASK:
        made = [Proposal(entry, grants) for entry, grants in entries_for(verdict, config.project_root)]
    if destinations:
        words = _words_of(call, config)
        if not words:
            _say(
                "the command has no plain words of its own to name in a grant, or starts several programs; give it a name on PATH"
            )
            return None
        grants = tuple(Grant(NETWORK, destination, LEARNT) for destination in destinations)
        openings = tuple(grant.opening for grant in grants)
        made.append(Proposal(PolicyGrant(words, openings, config.project_root, always=True), grants))
    known: dict[tuple[str, ...], Proposal] = {}
    for each in made:
        old = known.get(each.entry.words, each)
        openings = tuple(dict.fromkeys((*old.entry.openings, *each.entry.openings)))
        entry = each.entry.replace(openings=openings, always=old.entry.always or each.entry.always)
        known[each.entry.words] = Proposal(entry, unique_grants((*old.grants, *each.grants)))
    return list(known.values())


def _words_of(call: Call, config: SandboxConfig) -> tuple[str, ...]:
    """Return the words that name the one command of a call that could have connected."""
    commands, is_whole = commands_of(call, machine_of(config))
    quiet = quiet_commands(commands)
    own = {plain_words(command) for command in commands if command.name and command not in quiet}
    return own.pop() if is_whole and len(own) == 1 else ()


def _offer(proposals: list[Proposal]) -> int:
    terminal = terminal_of(sys.stdout, os.environ)
    _say(f"{terminal.paint('allow', 'proven')}: the command succeeds under these grants")
    for number, each in enumerate(proposals, 1):
        print("\n".join(["", *proposal_lines(number, each, terminal)]))
    after, diff = change_of(proposals, os.environ)
    with TerminalPrompt() as prompt:
        prompt.write("\n".join(["", *coloured(diff, terminal_of(prompt, os.environ)), "", ""]))
        if prompt.ask(f"{terminal.paint('head', 'Write it to your policy? [y]es, [N]o')} > ") in YES:
            families = ", ".join(each.entry.family for each in proposals)
            path = write_grants(after, f"A person at a terminal added grants for: {families}", os.environ)
            prompt.write(f"Written to {path}. Remove an entry there to be asked again.\n")
            return 0
        prompt.write("Nothing was written.\n")
    return NOT_LEARNT_STATUS


def _say_failed(call: Call, result: SandboxResult) -> None:
    if result.denied:
        print(denial_text(call, result, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
        return
    _say(
        f"the command {'timed out' if result.timed_out else f'exited with {result.exit_code}'}, so nothing is proposed"
    )


def _say(text: str, *more: str) -> None:
    print(": ".join(("corral", *more, text)), file=sys.stderr)
