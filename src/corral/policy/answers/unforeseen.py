"""Turns destinations that a command asked for while it ran into a question, and finds the user's answers to it.

The guard could not foresee them, so a call that needs no other answer is asked about too. A yes is for one run: what a command
connects to can depend on anything it reads.
"""

from __future__ import annotations

from corral.model.call import Axis, Decision, Finding
from corral.model.grant import NETWORK, Grant
from corral.policy.answers.approvals import call_fields, list_approvals, take_approval

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from corral.model.call import Call, Verdict
    from corral.policy.answers.approvals import Approval
    from corral.policy.config import SandboxConfig

RULE = "argv-unforeseen-network"
SOURCE = "seen when it ran"


def with_destinations(verdict: Verdict, destinations: Collection[str]) -> Verdict:
    """Return a verdict that also asks about these destinations, each `host:port`."""
    found = [
        Finding(
            Axis.ARGV,
            RULE,
            Decision.ASK,
            f"It connects to {destination}, which is not granted.",
            grants=(Grant(NETWORK, destination, SOURCE, certain=False),),
        )
        for destination in sorted(destinations)
    ]
    return verdict.replace(findings=(*verdict.findings, *found))


def destinations_of(verdict: Verdict) -> tuple[str, ...]:
    """Return the destinations that `with_destinations` added."""
    return tuple(grant.target for finding in verdict.findings if finding.rule == RULE for grant in finding.grants)


def has_yes(call: Call, root: str, environ: Mapping[str, str]) -> bool:
    """Return whether the user may have allowed destinations for the next run of a call."""
    return next(_approvals(call, root, environ), None) is not None


def take_yes(
    call: Call, verdict: Verdict, destination: str, config: SandboxConfig, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the destinations that the user allowed together with this one, and use up that yes; () if there was no such yes."""
    for known in _approvals(call, config.project_root, environ):
        allowed = {grant.target for grant in known.grants} - {grant.target for grant in verdict.grants}
        asked = with_destinations(verdict, allowed)
        if destination in allowed and take_approval(call, asked, config, environ) is not None:
            return tuple(sorted(allowed))
    return ()


def _approvals(call: Call, root: str, environ: Mapping[str, str]) -> Iterator[Approval]:
    fields = call_fields(call, root)
    for known in list_approvals(environ):
        if RULE in known.rules and (known.root, known.cwd, known.shell, known.call) == fields:
            yield known
