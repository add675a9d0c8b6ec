"""Tests the guard with granted destinations: known destinations are judged, unknown ones are left to the proxy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import Containment, Profile, SandboxConfig
from corral._lib.network.network_grants import Grants
from corral.guard.analysis.addresses import destination
from corral.guard.evaluate import trace, vet
from corral.guard.rules.loader import effects, profile_named
from corral.model.call import Call, Decision

GRANTED = ("granted.example:443", "granted.example:22", "db.example:5432", "*.example.org:443", "plain.example:80")
ALLOWED = [
    "curl https://granted.example/x",
    "curl -sSL https://GRANTED.example./x | tar xz",
    "curl https://user:word@granted.example/x",
    "curl https://a.b.example.org/x https://granted.example",
    "curl http://plain.example/",
    "curl plain.example",
    "curl localhost:8000/x",
    "curl https://$HOST/x",
    "wget -q https://granted.example/x",
    "wget -i urls.txt",
    "git clone https://granted.example/r.git",
    "git clone git@granted.example:o/r.git",
    "git clone ssh://git@granted.example/o/r.git",
    "git fetch",
    "git push origin main",
    "git ls-remote https://granted.example/r",
    "pip install requests",
    "pip install --index-url https://granted.example/simple requests",
    "pip install -i https://granted.example/simple requests",
    "pip install git+https://granted.example/r.git",
    "pip download requests",
    "npm install",
    "npm install lodash.merge",
    "npm install --registry https://granted.example",
    "npm install --registry=https://granted.example lodash",
    "psql -h db.example -p 5432",
    "psql postgres://u:p@db.example:5432/x",
    "nc db.example 5432",
    "python3 fetch.py https://granted.example/x",
]
DENIED = [
    "curl https://other.example/",
    "curl https://granted.example:8443/",
    "curl http://granted.example/",
    "curl https://granted.example.other.example/",
    "curl https://granted.example@other.example/",
    "curl 'https://other.example\\@granted.example/'",
    "curl 'https://granted.example%2eother.example/'",
    "curl https://example.org/",
    "curl https://notexample.org/",
    "curl 1.2.3.4",
    "curl https://0x7f.1/",
    "curl -x http://other.example:3128 https://granted.example/",
    "curl https://granted.example/ https://other.example/",
    "curl 'https://{granted,other}.example/'",
    "wget https://other.example/",
    "git clone https://other.example/r.git",
    "git clone git@other.example:o/r.git",
    "git push https://other.example/r.git main",
    "pip install --index-url https://other.example/simple requests",
    "pip install --extra-index-url=https://other.example/simple requests",
    "pip install git+https://other.example/r.git",
    "pip install -r https://other.example/requirements.txt",
    "npm install --registry https://other.example",
    "npm install git+https://other.example/r.git",
    "nc other.example 443",
    "ssh u@other.example",
    "psql postgres://u:p@other.example:5432/x",
    "mytool --url https://other.example/x",
    "sh -c 'curl https://other.example/'",
    "xargs curl https://other.example/",
]


@pytest.fixture
def config(project: object) -> SandboxConfig:
    return SandboxConfig(str(project), profile="workspace", containment=Containment(network=GRANTED))


@pytest.mark.parametrize("text", ALLOWED)
def test_granted_or_unknown_destination_is_allowed(text: str, config: SandboxConfig) -> None:
    assert vet(Call(text, shell=True), config).findings == ()


@pytest.mark.parametrize("text", DENIED)
def test_other_destination_is_denied(text: str, config: SandboxConfig) -> None:
    verdict = vet(Call(text, shell=True), config)
    assert verdict.decision is Decision.DENY
    assert {finding.rule.rpartition("-network-")[2] for finding in verdict.findings} == {"elsewhere"}


@pytest.mark.parametrize("text", [t for t in ALLOWED if "localhost" not in t and "python3" not in t])
def test_allowed_calls_need_the_grant(text: str, config: SandboxConfig) -> None:
    off = config.replace(containment=Containment())
    known = {"npm install", "npm install --registry https://granted.example"}  # these only fetch declared packages
    assert text in known or not vet(Call(text, shell=True), off).allowed


@pytest.mark.parametrize(
    "text", ["git fetch", "git push origin main", "pip install requests", "curl -K cfg", "curl https://$HOST/"]
)
def test_unknown_destination_is_refused_without_containment(text: str, config: SandboxConfig) -> None:
    for loose in (config.replace(profile="strict"), _uncontained(config)):
        assert not vet(Call(text, shell=True), loose).allowed


def _uncontained(config: SandboxConfig) -> SandboxConfig:
    return config.replace(containment=config.containment.replace(backend="none"))


def test_trace_shows_decisions_of_grants(config: SandboxConfig) -> None:
    for text, decision in (("curl https://granted.example/", "allow"), ("curl https://other.example/", "deny")):
        (step,) = trace(Call(text, shell=True), config)
        assert [(effect.key, str(effect.decision)) for effect in step.effects] == [("network", decision)]


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("curl https://other.example/", "other.example:443"),
        ("curl http://GRANTED.example./", "granted.example:80"),
        ("git clone git@other.example:o/r.git", "other.example:22"),
        ("curl https://[2001:DB8::1]:8443/", "[2001:db8::1]:8443"),
        ("psql postgres://db.example:5433/x", "db.example:5433"),
    ],
)
def test_refusal_names_the_grant_that_would_allow_it(config: SandboxConfig, text: str, grant: str) -> None:
    call = Call(text, shell=True)
    (finding,) = vet(call, config).findings
    assert f'containment.network = ["{grant}"]' in finding.instead
    containment = config.containment.replace(network=(*GRANTED, grant))
    assert vet(call, config.replace(containment=containment)).allowed


def test_refusal_names_no_grant_for_an_unknown_port(config: SandboxConfig) -> None:
    (finding,) = vet(Call(["curl", "1.2.3.4"]), config).findings
    assert finding.instead == effects()["network-elsewhere"]["instead"]


def test_profile_can_ask_about_other_destinations(config: SandboxConfig) -> None:
    base = profile_named("workspace")
    asks = Profile("asks", {**base.effects, "network-elsewhere": Decision.ASK}, base.groups, base.needs_containment)
    verdict = vet(Call(["curl", "https://other.example/"]), config.replace(profile=asks))
    assert verdict.decision is Decision.ASK


def test_allowing_the_network_allows_every_destination(config: SandboxConfig) -> None:
    base = profile_named("workspace")
    loose = Profile("loose", {**base.effects, "network": Decision.ALLOW}, base.groups, base.needs_containment)
    assert vet(Call(["curl", "https://other.example/"]), config.replace(profile=loose)).allowed


@given(st.text(alphabet="abco.@:/\\%#?[]0x12-_{} ", max_size=30), st.sampled_from(["https://", "http://", ""]))
def test_address_has_at_most_one_host(rest: str, scheme: str) -> None:
    try:
        found = destination(scheme + rest)
    except ValueError:
        return
    if found is not None:
        name, _ = found
        assert name
        assert name in rest.lower() or ":" in name
        assert not Grants(("z.example:443",)).covers(*found)
