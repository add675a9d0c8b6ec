"""Decisions, findings and verdicts, and their JSON form."""

import json

import pytest

from corral.model.call import Axis, Decision, Finding, Verdict

ASK_PATH = Finding(
    Axis.PATH, "path-cat-read-outside", Decision.ASK, "It is outside.", "../x", 4, 4, None, "Stay inside."
)
DENY_PATH = Finding(Axis.PATH, "path-cwd", Decision.DENY, "The directory is outside.", instead="Start inside.")
DENY_NAME = Finding(Axis.NAME, "name-rm", Decision.DENY, "rm is on the denylist.", "rm", 0, 2, 0)


def test_decisions_are_ordered_from_allow_to_deny() -> None:
    assert sorted([Decision.DENY, Decision.ALLOW, Decision.ASK]) == [Decision.ALLOW, Decision.ASK, Decision.DENY]
    assert [str(d) for d in Decision] == ["allow", "ask", "deny"]


def test_axes_are_ordered_as_reasons_are_shown() -> None:
    assert [str(a) for a in sorted(Axis)] == ["name", "argv", "structure", "path"]


@pytest.mark.parametrize(
    ("findings", "decision", "allowed", "reason"),
    [
        pytest.param((), Decision.ALLOW, True, "", id="no finding allows"),
        pytest.param((ASK_PATH,), Decision.ASK, False, "It is outside. Stay inside.", id="one that asks"),
        pytest.param(
            (ASK_PATH, DENY_PATH),
            Decision.DENY,
            False,
            "The directory is outside. Start inside.",
            id="the strictest counts",
        ),
        pytest.param(
            (DENY_PATH, DENY_NAME), Decision.DENY, False, "rm is on the denylist.", id="the first axis gives the reason"
        ),
        pytest.param(
            (ASK_PATH.replace(axis=Axis.NAME), DENY_PATH),
            Decision.DENY,
            False,
            "The directory is outside. Start inside.",
            id="an earlier axis that only asks does not",
        ),
    ],
)
def test_verdict_is_the_strictest_of_its_findings(
    findings: tuple[Finding, ...], decision: Decision, allowed: bool, reason: str
) -> None:
    verdict = Verdict(findings)
    assert (verdict.decision, verdict.allowed, verdict.reason) == (decision, allowed, reason)


def test_json_of_a_finding_has_every_field() -> None:
    assert ASK_PATH.to_dict() == {
        "axis": "path",
        "rule": "path-cat-read-outside",
        "decision": "ask",
        "reason": "It is outside.",
        "text": "../x",
        "start": 4,
        "length": 4,
        "argument": None,
        "instead": "Stay inside.",
    }


@pytest.mark.parametrize("verdict", [Verdict(), Verdict((ASK_PATH, DENY_NAME)), Verdict((DENY_PATH,), complete=False)])
def test_verdict_round_trips_through_json(verdict: Verdict) -> None:
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict


@pytest.mark.parametrize(
    "change", [{"axis": "moon"}, {"decision": "maybe"}, {"colour": "red"}], ids=["axis", "decision", "key"]
)
def test_unknown_finding_field_or_value_is_refused(change: dict[str, str]) -> None:
    with pytest.raises((KeyError, TypeError)):
        Finding.from_dict(DENY_NAME.to_dict() | change)
