"""The record of one opening of the sandbox."""

import pytest

from corral.model.call import Axis, Decision, Finding, Verdict
from corral.model.grant import Grant, unique_grants

HOST = Grant("network", "api.example:443", "in the call")


def finding(decision: Decision, *grants: Grant) -> Finding:
    return Finding(Axis.ARGV, "argv-x-network", decision, "x needs it.", grants=grants)


def test_grant_round_trips_through_a_mapping() -> None:
    assert Grant.from_dict(HOST.to_dict()) == HOST


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"kind": "root"}, id="unknown kind"),
        pytest.param({"target": 443}, id="number as target"),
        pytest.param({"source": None}, id="no source"),
    ],
)
def test_damaged_grant_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not a grant"):
        Grant.from_dict(HOST.to_dict() | change)


def test_damaged_certainty_counts_as_uncertain() -> None:
    assert not Grant.from_dict(HOST.to_dict() | {"certain": "yes"}).certain


def test_opening_is_uncertain_if_one_source_is() -> None:
    doubtful = HOST.replace(source=".npmrc", certain=False)
    assert unique_grants([HOST, doubtful, HOST]) == (doubtful,)


def test_denied_verdict_grants_nothing() -> None:
    verdict = Verdict((finding(Decision.ASK, HOST), finding(Decision.DENY)))
    assert (verdict.grants, verdict.replace(findings=verdict.findings[:1]).grants) == ((), (HOST,))
