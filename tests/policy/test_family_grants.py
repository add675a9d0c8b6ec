"""Grants for a command family: exact in project, destination and policy, and only where nothing else could use them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import Containment, PolicyError, SandboxConfig
from corral.guard.rules.loader import CommandRule, profile_named
from corral.model.call import Axis, Call, Decision, Finding, Verdict
from corral.model.grant import Grant
from corral.policy.answers import family_grants
from corral.policy.answers.family_grants import (
    NEVER,
    NO,
    PolicyGrant,
    covering,
    family_of,
    find_answer,
    list_answers,
    list_family_grants,
    revoke_answer,
    revoke_family_grant,
    store_answer,
    store_family_grant,
    use_family_grant,
)

INDEX = Grant("network", "index.example:443", "pip config get global.index-url")
FILES = Grant("network", "files.example:443", "named by index.example")
REGISTRY = Grant("registry", "pip")
CALL = Call(("pip", "install", "x"))


def finding(
    *grants: Grant, family: str = "pip install", decision: Decision = Decision.ASK, rule: str = "argv-pip-install"
) -> Finding:
    return Finding(Axis.ARGV, rule, decision, "It downloads.", grants=grants, family=family)


def asks(*findings: Finding, others: tuple[str, ...] = (), complete: bool = True) -> Verdict:
    return Verdict(findings, complete, others)


@pytest.fixture
def config(project: Path) -> SandboxConfig:
    return SandboxConfig(str(project), profile="workspace")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state" / "corral" / "grants"


def allow(config: SandboxConfig, environ: dict[str, str], *grants: Grant, family: str = "pip install") -> str:
    return store_family_grant(family, grants or (INDEX, FILES), config, environ, channel="terminal").id


def test_stored_grant_covers_other_texts_of_its_family(config: SandboxConfig, environ: dict[str, str]) -> None:
    id_ = allow(config, environ)
    for verdict in (asks(finding(INDEX)), asks(finding(FILES), finding(INDEX, FILES))):
        found = covering(verdict, config, environ)
        assert found is not None
        assert found.id == id_


@pytest.mark.parametrize(
    "verdict",
    [
        pytest.param(asks(finding(INDEX, Grant("network", "evil.example:443"))), id="a second host"),
        pytest.param(asks(finding(Grant("network", "index.example:80"))), id="another port"),
        pytest.param(asks(finding(Grant("read", "index.example:443"))), id="another kind"),
        pytest.param(asks(finding(INDEX, family="curl")), id="another family"),
        pytest.param(asks(finding(INDEX, family="")), id="no family"),
        pytest.param(asks(finding(INDEX), finding(INDEX, family="curl")), id="two families"),
        pytest.param(asks(finding(INDEX), others=("python3 x.py",)), id="another command"),
        pytest.param(asks(finding(INDEX), finding()), id="a question without an opening"),
        pytest.param(asks(finding(INDEX.replace(certain=False))), id="an uncertain source"),
        pytest.param(asks(finding(INDEX), complete=False), id="judged in part"),
        pytest.param(asks(finding(INDEX), finding(decision=Decision.DENY)), id="a denial beside it"),
        pytest.param(asks(finding(INDEX, decision=Decision.ALLOW)), id="nothing asked"),
        pytest.param(asks(), id="nothing found"),
    ],
)
def test_grant_does_not_cover_more_than_it_says(
    verdict: Verdict, config: SandboxConfig, environ: dict[str, str]
) -> None:
    allow(config, environ)
    assert covering(verdict, config, environ) is None


def _rule(config: SandboxConfig) -> SandboxConfig:
    rule = CommandRule(("make", "deploy"), Decision.DENY)
    return config.replace(profile=profile_named("workspace").replace(commands=((rule,),)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c: c.replace(containment=Containment(write=("/opt/x",))), id="another path"),
        pytest.param(lambda c: c.replace(containment=Containment(backend="none")), id="nothing holds it"),
        pytest.param(lambda c: c.replace(env_allowlist={*c.env_allowlist, "XYZ"}), id="the environment"),
        pytest.param(lambda c: c.replace(denylist={*c.denylist, "xyz"}), id="the denylist"),
        pytest.param(_rule, id="a rule"),
        pytest.param(lambda c: c.replace(profile="strict"), id="the profile"),
        pytest.param(lambda c: c.replace(project_root="/usr"), id="the project"),
    ],
)
def test_changed_policy_ends_the_grant(
    change: Callable[[SandboxConfig], SandboxConfig], config: SandboxConfig, environ: dict[str, str]
) -> None:
    allow(config, environ)
    assert covering(asks(finding(INDEX)), change(config), environ) is None


def test_more_network_keeps_the_grant(config: SandboxConfig, environ: dict[str, str]) -> None:
    allow(config, environ)
    other = config.replace(containment=Containment(network=("other.example:443",)))
    assert covering(asks(finding(INDEX)), other, environ) is not None


def test_changed_row_of_the_family_ends_the_grant(
    monkeypatch: pytest.MonkeyPatch, config: SandboxConfig, environ: dict[str, str]
) -> None:
    allow(config, environ)
    monkeypatch.setattr(family_grants, "row_digest", lambda name: f"another {name}")
    assert covering(asks(finding(INDEX)), config, environ) is None


def test_grant_expires(monkeypatch: pytest.MonkeyPatch, config: SandboxConfig, environ: dict[str, str]) -> None:
    allow(config, environ)
    (made,) = list_family_grants(environ)
    for at, holds in ((made.expires_at - 1, True), (made.expires_at, False), (made.granted_at - 3600, False)):
        monkeypatch.setattr(family_grants, "time", lambda at=at: at)
        assert (covering(asks(finding(INDEX)), config, environ) is not None) == holds
        assert len(list_family_grants(environ)) == holds


def test_uses_are_counted_and_listed(config: SandboxConfig, environ: dict[str, str]) -> None:
    allow(config, environ)
    for number in (1, 2):
        found = covering(asks(finding(INDEX)), config, environ)
        assert found is not None
        use_family_grant(found, config, environ)
        (listed,) = list_family_grants(environ)
        assert (listed.uses, listed.last_used > 0) == (number, True)


def test_revoked_grant_covers_nothing(config: SandboxConfig, environ: dict[str, str]) -> None:
    allow(config, environ)
    (made,) = list_family_grants(environ)
    revoke_family_grant(made, environ)
    revoke_family_grant(made, environ)
    assert covering(asks(finding(INDEX)), config, environ) is None


@pytest.mark.parametrize(
    ("family", "grants"),
    [
        ("", (INDEX,)),
        ("pip install", ()),
        ("pip install", (INDEX.replace(certain=False),)),
        ("cp", (Grant("write", "/srv/x"),)),
    ],
    ids=["no family", "no grants", "uncertain", "write"],
)
def test_what_can_only_be_allowed_once_is_not_stored(
    family: str, grants: tuple[Grant, ...], config: SandboxConfig, environ: dict[str, str]
) -> None:
    with pytest.raises(PolicyError):
        store_family_grant(family, grants, config, environ, channel="terminal")


def _writable(file: Path) -> None:
    file.chmod(0o666)


def _linked(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def _more(file: Path) -> None:
    data = json.loads(file.read_text())
    more = Grant("network", "evil.example:443").to_dict()
    file.write_text(json.dumps(data | {"grants": [*data["grants"], more]}))


def _longer(file: Path) -> None:
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data | {"expires_at": data["expires_at"] + 1e9}))


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def _list(file: Path) -> None:
    file.write_text("[]")


@pytest.mark.parametrize("harm", [_writable, _linked, _more, _longer, _cut, _list])
def test_unsafe_or_damaged_file_grants_nothing(
    harm: Callable[[Path], None], config: SandboxConfig, environ: dict[str, str], place: Path
) -> None:
    allow(config, environ)
    (file,) = place.iterdir()
    harm(file)
    assert covering(asks(finding(INDEX)), config, environ) is None
    assert covering(asks(finding(Grant("network", "evil.example:443"))), config, environ) is None


def test_number_of_grants_is_bounded(
    monkeypatch: pytest.MonkeyPatch, config: SandboxConfig, environ: dict[str, str]
) -> None:
    monkeypatch.setattr(family_grants, "MAX_GRANTS", 2)
    for host in ("a.example:1", "b.example:1", "a.example:1"):
        allow(config, environ, Grant("network", host))
    with pytest.raises(PolicyError, match="corral grants revoke"):
        allow(config, environ, Grant("network", "c.example:1"))


HOSTS = st.sampled_from(["a.example:443", "b.example:443", "c.example:80"])
GRANTS = st.builds(Grant, st.sampled_from(["network", "read", "write"]), HOSTS, st.just(""), st.booleans())
FINDINGS = st.builds(
    lambda grants, family, decision: finding(*grants, family=family, decision=decision),
    st.lists(GRANTS, max_size=3),
    st.sampled_from(["", "curl", "pip install"]),
    st.sampled_from(list(Decision)),
)
VERDICTS = st.builds(
    Verdict, st.lists(FINDINGS, max_size=3).map(tuple), st.booleans(), st.sampled_from([(), ("make",)])
)


@given(verdict=VERDICTS, stored=st.lists(GRANTS, min_size=1, max_size=3))
def test_covered_verdict_needs_nothing_but_the_stored_set(
    tmp_path_factory: pytest.TempPathFactory, verdict: Verdict, stored: list[Grant]
) -> None:
    base = tmp_path_factory.mktemp("family")
    (base / "project").mkdir()
    config = SandboxConfig(str(base / "project"), profile="workspace")
    environ = {"HOME": str(base), "XDG_STATE_HOME": str(base / "state")}
    try:
        store_family_grant("curl", stored, config, environ, channel="terminal")
    except PolicyError:
        return
    is_covered = covering(verdict, config, environ) is not None
    asked = [each for each in verdict.findings if each.decision is Decision.ASK]
    granted = [grant for each in verdict.findings for grant in each.grants]
    openings = {grant.opening for grant in stored}
    allowed = (
        verdict.decision is Decision.ASK
        and verdict.complete
        and not verdict.others
        and all(each.grants for each in asked)
        and all(each.family == "curl" for each in verdict.findings if each.grants)
        and all(grant.certain and grant.kind != "write" and grant.opening in openings for grant in granted)
    )
    assert is_covered == allowed


@given(verdict=VERDICTS)
def test_no_verdict_with_another_command_has_a_family(verdict: Verdict) -> None:
    assert family_of(verdict.replace(others=("python3 x.py",))) == ""


def entry(**changes: object) -> PolicyGrant:
    made = PolicyGrant(("pip", "install"), (REGISTRY.opening, INDEX.opening), source="policy.toml:3")
    return made.replace(**changes)


@pytest.mark.parametrize(
    ("made", "verdict", "holds"),
    [
        pytest.param(entry(), asks(finding(REGISTRY)), True, id="what it says"),
        pytest.param(entry(), asks(finding(REGISTRY, INDEX)), True, id="all that it says"),
        pytest.param(entry(words=("pip",)), asks(finding(REGISTRY)), True, id="its first word"),
        pytest.param(entry(words=("pip", "install", "x")), asks(finding(REGISTRY)), False, id="more words"),
        pytest.param(entry(words=("pi",)), asks(finding(REGISTRY)), False, id="a part of a word"),
        pytest.param(entry(), asks(finding(FILES)), False, id="another host"),
        pytest.param(entry(), asks(finding(REGISTRY.replace(certain=False))), False, id="an uncertain source"),
        pytest.param(entry(), asks(finding(REGISTRY), others=("make",)), False, id="not alone"),
        pytest.param(entry(alone=False), asks(finding(REGISTRY), others=("make",)), True, id="need not be alone"),
        pytest.param(entry(), asks(finding(REGISTRY), finding(INDEX, family="curl")), False, id="two families"),
        pytest.param(entry(), asks(finding(REGISTRY), finding()), False, id="a question without an opening"),
        pytest.param(entry(project="/srv/other"), asks(finding(REGISTRY)), False, id="another project"),
    ],
)
def test_grant_of_the_policy_covers(
    made: PolicyGrant, verdict: Verdict, holds: bool, config: SandboxConfig, environ: dict[str, str]
) -> None:
    found = covering(verdict, config.replace(policy_grants=(made,)), environ)
    assert (found is not None) == holds
    if found is not None:
        assert (found.channel, found.key) == ("policy", "policy.toml:3")


@pytest.mark.parametrize(
    ("target", "holds"),
    [
        ("push git@forge.example:me/app.git refs/heads/agent/x", True),
        ("push git@forge.example:me/app.git refs/heads/agent/x refs/heads/agent/y", True),
        ("push git@forge.example:me/app.git refs/heads/agent/x refs/heads/main", False),
        ("push git@forge.example:me/other.git refs/heads/agent/x", False),
        ("push git@forge.example:me/app.git", False),
        ("fetch git@forge.example:me/app.git refs/heads/agent/x", False),
    ],
)
def test_pattern_of_refs_covers_only_a_push_below_it(
    target: str, holds: bool, config: SandboxConfig, environ: dict[str, str]
) -> None:
    made = PolicyGrant(("git", "push"), (("transport", "push git@forge.example:me/app.git refs/heads/agent/*"),))
    verdict = asks(finding(Grant("transport", target), family="git push"))
    assert (covering(verdict, config.replace(policy_grants=(made,)), environ) is not None) == holds


def test_remote_of_the_project_can_be_named(config: SandboxConfig, environ: dict[str, str]) -> None:
    made = PolicyGrant(("git",), (("transport", "push origin refs/heads/agent/*"), ("transport", "fetch origin")))
    named = config.replace(policy_grants=(made,))
    for target, source, holds in (
        ("push git@forge.example:me/app.git refs/heads/agent/x", ".git/config, remote origin", True),
        ("push git@forge.example:me/app.git refs/heads/agent/x", ".git/config, remote other", False),
        ("push git@forge.example:me/app.git refs/heads/agent/x", "in the call", False),
        ("push git@forge.example:me/app.git refs/heads/main", ".git/config, remote origin", False),
        ("fetch git@forge.example:me/app.git", ".git/config, remote origin", True),
        ("fetch git@forge.example:me/app.git", "in the call", False),
    ):
        verdict = asks(finding(Grant("transport", target, source), family="git push"))
        assert (covering(verdict, named, environ) is not None) == holds


def test_no_is_remembered_for_ten_minutes_and_never_for_a_week(
    monkeypatch: pytest.MonkeyPatch, config: SandboxConfig, environ: dict[str, str]
) -> None:
    verdict = asks(finding(INDEX))
    for answer, seconds in ((NO, 600.0), (NEVER, 7 * 86400.0)):
        made = store_answer(answer, CALL, verdict, config, environ)
        for later, holds in ((seconds - 1, True), (seconds, False), (-3600, False)):
            monkeypatch.setattr(family_grants, "time", lambda later=later, made=made: made.answered_at + later)
            assert (find_answer(CALL, verdict, config, environ) is not None) == holds
        monkeypatch.undo()
    (listed,) = list_answers(environ)
    assert (listed.answer, listed.about) == (NEVER, "pip install")
    revoke_answer(listed, environ)
    assert find_answer(CALL, verdict, config, environ) is None


def test_other_words_for_the_same_openings_are_the_same_question(
    config: SandboxConfig, environ: dict[str, str]
) -> None:
    store_answer(NO, CALL, asks(finding(INDEX)), config, environ)
    other = Call(("pip", "install", "y", "--quiet"))
    assert find_answer(other, asks(finding(INDEX, rule="argv-x")), config, environ) is not None
    assert find_answer(other, asks(finding(FILES)), config, environ) is None
    assert find_answer(other, asks(finding(INDEX, family="curl")), config, environ) is None


def test_question_that_is_only_for_once_is_about_one_call(config: SandboxConfig, environ: dict[str, str]) -> None:
    verdict = asks(finding(Grant("write", "/srv/x"), family=""))
    store_answer(NO, CALL, verdict, config, environ)
    assert find_answer(CALL, verdict, config, environ) is not None
    assert find_answer(Call(("cp", "a", "/srv/x")), verdict, config, environ) is None
