"""Proposes [[grant]] entries for the user's policy: from calls that were refused, or from one that was watched. Decides nothing.

An entry names exactly what a call needed: hosts, a fetch or a port. It never opens a file, a push or a command that runs outside:
the user answers those with `corral allow`.
"""

from __future__ import annotations

from collections import Counter

from corral._lib.records import Record, frozen
from corral._lib.terminal import Terminal, clip, printable
from corral.apps.cli.own_policy.policy_file import user_policy_text, with_grants_added
from corral.guard.evaluate import vet
from corral.model.call import Decision
from corral.model.call_excerpt import one_line
from corral.model.grant import LOCAL, NETWORK, REGISTRY, TRANSPORT, Grant, unique_grants
from corral.model.render_grant import needs_text
from corral.model.render_result import labelled
from corral.policy.answers.family_grants import PolicyGrant, covering, is_lasting
from corral.policy.loader import user_policy_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corral.guard.machine import Machine
    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig

MAX_EXAMPLES = 3  # calls that are shown for one proposal


@frozen
class Occasion(Record):
    """One refused call that a proposal would have let run."""

    at: str
    call: Call


@frozen
class Proposal(Record):
    """An entry for the policy, and the calls that it is proposed for."""

    entry: PolicyGrant
    grants: tuple[Grant, ...]
    occasions: tuple[Occasion, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the proposal as JSON-ready data."""
        shown = [{"at": each.at, "call": _text(each.call)} for each in self.occasions]
        return {
            "command": self.entry.family,
            "project": self.entry.project,
            "always": self.entry.always,
            "grants": [{"kind": grant.kind, "target": grant.target} for grant in self.grants],
            "occasions": shown,
        }


def entries_for(verdict: Verdict, root: str) -> list[tuple[PolicyGrant, tuple[Grant, ...]]]:
    """Return the entries that a call with this verdict needs, with their grants; none if an entry may not give one of them."""
    if verdict.decision is not Decision.ASK or not is_lasting(verdict):
        return []
    found = []
    for finding in verdict.findings:
        if finding.decision is Decision.ASK and not finding.grants:
            return []
        if finding.decision is not Decision.ASK:
            continue
        if not all(map(_may_last, finding.grants)):
            return []
        words = tuple(finding.family.split())
        entry = PolicyGrant(words, tuple(grant.opening for grant in finding.grants), root)
        found.append((entry, finding.grants))
    return found


def merged(found: Sequence[tuple[PolicyGrant, tuple[Grant, ...], Occasion]], at_least: int = 1) -> list[Proposal]:
    """Return one proposal for each command and project, those of the most calls first. An opening counts that `at_least` calls needed."""
    needed = Counter((entry.words, entry.project, grant.opening) for entry, grants, _ in found for grant in grants)
    made: dict[tuple[tuple[str, ...], str], Proposal] = {}
    for entry, grants, occasion in found:
        kept = tuple(g for g in grants if needed[entry.words, entry.project, g.opening] >= at_least)
        if not kept:
            continue
        key = (entry.words, entry.project)
        known = made.get(key, Proposal(entry.replace(openings=()), ()))
        openings = dict.fromkeys((*known.entry.openings, *(grant.opening for grant in kept)))
        made[key] = Proposal(
            entry.replace(openings=tuple(openings)),
            unique_grants((*known.grants, *kept)),
            tuple(dict.fromkeys((*known.occasions, occasion))),
        )
    return sorted(made.values(), key=lambda each: -len(each.occasions))


def would_run(call: Call, config: SandboxConfig, machine: Machine, entries: Sequence[PolicyGrant]) -> bool:
    """Return whether a call runs without a question under a config with these entries."""
    opened = config.replace(policy_grants=(*config.policy_grants, *numbered(entries)))
    verdict = vet(call, opened, machine.under(opened))
    return verdict.allowed or covering(verdict, opened, {}) is not None


def numbered(entries: Sequence[PolicyGrant]) -> tuple[PolicyGrant, ...]:
    """Return entries that have no line in a file yet, each with a source of its own."""
    return tuple(entry.replace(source=f"proposal {number}") for number, entry in enumerate(entries, 1))


def proposal_lines(number: int, proposal: Proposal, terminal: Terminal) -> Iterator[str]:
    """Yield the lines that show a proposal."""
    yield f"{terminal.paint('mark', f'{number}.')} {terminal.paint('head', printable(proposal.entry.family))}"
    yield from labelled("opens", needs_text(proposal.grants), terminal)
    yield from labelled("where", proposal.entry.project, terminal)
    count = len(proposal.occasions)
    if count:
        last = max(each.at for each in proposal.occasions)
        yield from labelled("when", f"{count} refused call{'s' * (count != 1)}, the last at {last}", terminal)
    calls = list(
        dict.fromkeys(one_line(each.call, terminal.columns - 12, terminal.sign("cut")) for each in proposal.occasions)
    )
    for text in calls[:MAX_EXAMPLES]:
        yield from labelled("call", text, terminal)
    if len(calls) > MAX_EXAMPLES:
        yield clip(f"  and {len(calls) - MAX_EXAMPLES} more", terminal.columns, terminal.sign("cut"))


def change_of(proposals: Sequence[Proposal], environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the new text of the user's policy file, and the difference from the present one."""
    from difflib import unified_diff  # noqa: PLC0415  only where there is a change to show

    after = with_grants_added([each.entry for each in proposals], environ)
    before = user_policy_text(environ).decode()
    path = user_policy_path(environ)
    lines = unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="")
    return after, "\n".join(lines)


def coloured(diff: str, terminal: Terminal) -> list[str]:
    """Return the lines of a difference in colour, with nothing that controls the terminal."""
    styles = {"+": "allow", "-": "deny", "@": "mark"}
    return [terminal.paint(styles.get(line[:1], "dim"), printable(line)) for line in diff.split("\n")]


def _may_last(grant: Grant) -> bool:
    """Return whether an entry of the policy may give a grant: one host, one fetch, one port, and nothing that was uncertain."""
    is_fetch = grant.kind == TRANSPORT and grant.target.startswith("fetch ")
    return grant.certain and (is_fetch or grant.kind in (NETWORK, REGISTRY, LOCAL))


def _text(call: Call) -> object:
    return call.argv if isinstance(call.argv, str) else list(call.argv)
