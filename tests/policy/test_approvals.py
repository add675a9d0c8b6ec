"""Approvals: exact, expiring, bounded, private to the user, and never for more than was shown."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corral import Containment, PolicyError, SandboxConfig
from corral.guard.evaluate import vet
from corral.guard.rules.loader import CommandRule, profile_named
from corral.model.call import Axis, Call, Decision, Finding, Verdict
from corral.model.grant import Grant
from corral.policy.answers import approvals

RESET = Call(("git", "reset", "--hard"))
DENIED = Call(("sudo", "id"))
ALLOWED = Call(("git", "status"))


@pytest.fixture
def config(project: Path) -> SandboxConfig:
    (project / "sub").mkdir()
    return SandboxConfig(str(project), profile="workspace")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state" / "corral" / "approvals"


def found(call: Call, config: SandboxConfig, environ: dict[str, str]) -> bool:
    return approvals.find_approval(call, vet(call, config), config, environ) is not None


def approve(call: Call, config: SandboxConfig, environ: dict[str, str]) -> approvals.Approval:
    return approvals.approve(call, vet(call, config), config, environ)


def test_nothing_is_approved_at_first(config: SandboxConfig, environ: dict[str, str]) -> None:
    assert vet(RESET, config).decision is Decision.ASK
    assert not found(RESET, config, environ)
    assert approvals.list_approvals(environ) == []


def test_approved_call_is_found_and_listed(config: SandboxConfig, environ: dict[str, str], place: Path) -> None:
    made = approve(RESET, config, environ)
    assert approvals.find_approval(RESET, vet(RESET, config), config, environ) == made
    assert approvals.list_approvals(environ) == [made]
    assert (made.call, made.shell, made.root, made.cwd) == (
        RESET.argv,
        False,
        config.project_root,
        config.project_root,
    )
    assert made.rules == ("argv-git-discard",)
    assert made.expires_at - made.approved_at == approvals.APPROVAL_SECONDS
    assert (place.stat().st_mode & 0o777, (place / made.key).stat().st_mode & 0o777) == (0o700, 0o600)
    json.dumps(made.to_dict())


def test_equal_text_and_directory_is_the_same_call(config: SandboxConfig, environ: dict[str, str]) -> None:
    approve(Call("git reset --hard", shell=True), config, environ)
    root = config.project_root
    for cwd in (None, root, ".", "sub/.."):
        assert found(Call(("git reset --hard",), shell=True, cwd=cwd), config, environ)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Call(("git", "reset", "--hard", "HEAD")), id="one word more"),
        pytest.param(Call(("git", "reset", "--hard "), cwd=None), id="a blank more"),
        pytest.param(Call("git reset --hard", shell=True), id="as shell text"),
        pytest.param(Call(("git", "reset", "--hard"), cwd="sub"), id="in another directory"),
        pytest.param(Call(("git", "reset", "--hard"), env={"A": "b"}), id="with a variable"),
        pytest.param(Call("git  reset --hard", shell=True), id="as shell text with two blanks"),
        pytest.param(Call("git reset --hard; true", shell=True), id="with a command behind it"),
    ],
)
def test_different_call_is_not_approved(other: Call, config: SandboxConfig, environ: dict[str, str]) -> None:
    approve(RESET, config, environ)
    assert not found(other, config, environ)


def test_other_project_is_not_approved(config: SandboxConfig, environ: dict[str, str], tmp_path: Path) -> None:
    approve(RESET, config, environ)
    (tmp_path / "other").mkdir()
    assert not found(RESET, SandboxConfig(str(tmp_path / "other"), profile="workspace"), environ)


def _rule(config: SandboxConfig) -> SandboxConfig:
    rule = CommandRule(("make", "deploy"), Decision.DENY)
    return config.replace(profile=profile_named("workspace").replace(commands=((rule,),)))


def _effect(config: SandboxConfig) -> SandboxConfig:
    base = profile_named("workspace")
    return config.replace(profile=base.replace(effects={**base.effects, "network": Decision.ALLOW}))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c: c.replace(containment=Containment(network="on")), id="the network"),
        pytest.param(lambda c: c.replace(containment=Containment(backend="none")), id="nothing holds it"),
        pytest.param(lambda c: c.replace(containment=Containment(write=("/opt/x",))), id="another path"),
        pytest.param(lambda c: c.replace(denylist={*c.denylist, "xyz"}), id="the denylist"),
        pytest.param(lambda c: c.replace(env_allowlist={*c.env_allowlist, "XYZ"}), id="the environment"),
        pytest.param(_rule, id="a rule"),
        pytest.param(_effect, id="an effect"),
    ],
)
def test_changed_policy_ends_the_approval(
    change: Callable[[SandboxConfig], SandboxConfig], config: SandboxConfig, environ: dict[str, str]
) -> None:
    approve(RESET, config, environ)
    other = change(config)
    assert vet(RESET, other).decision is Decision.ASK
    assert not found(RESET, other, environ)


CHANGED_FIELDS = {
    "words": ("make", "deploy"),
    "decision": Decision.DENY,
    "reason": "another",
    "instead": "another",
    "exact": True,
    "lifts": ("code",),
}


def _with_rule(config: SandboxConfig, rule: CommandRule) -> SandboxConfig:
    return config.replace(profile=profile_named("workspace").replace(commands=((rule,),)))


@pytest.mark.parametrize("field", sorted({*CommandRule._fields} - {"source"}))
def test_every_field_of_a_rule_is_part_of_an_approval(
    field: str, config: SandboxConfig, environ: dict[str, str]
) -> None:
    rule = CommandRule(("make", "all"), Decision.ALLOW, "a", "b", "corral.toml:1")
    approve(RESET, _with_rule(config, rule), environ)
    assert found(RESET, _with_rule(config, rule.replace(source="corral.toml:9")), environ)
    other = _with_rule(config, rule.replace(**{field: CHANGED_FIELDS[field]}))
    assert vet(RESET, other).decision is Decision.ASK
    assert not found(RESET, other, environ)


def test_every_field_of_the_policy_is_part_of_an_approval_or_listed(config: SandboxConfig) -> None:
    facts = dict(approvals.policy_facts(config))
    assert {*facts, *approvals._LEFT_OUT["SandboxConfig"]} == {*SandboxConfig._fields}
    contained = {name for name, _ in facts["containment"]}
    assert contained == {*Containment._fields} - {"scratch"}
    profile = {name for name, _ in approvals.policy_facts(config.rules)}
    assert profile == {*type(config.rules)._fields}


def test_changed_limits_keep_the_approval(config: SandboxConfig, environ: dict[str, str]) -> None:
    approve(RESET, config, environ)
    other = config.replace(timeout_seconds=None, max_output_bytes=1, containment=Containment(scratch="project"))
    assert found(RESET, other, environ)


def test_new_finding_ends_the_approval(config: SandboxConfig, environ: dict[str, str]) -> None:
    verdict = vet(RESET, config)
    approvals.approve(RESET, verdict, config, environ)
    (finding,) = verdict.findings
    more = Verdict((finding, finding.replace(rule="argv-git-other")))
    assert approvals.find_approval(RESET, more, config, environ) is None


@pytest.mark.parametrize("call", [DENIED, ALLOWED], ids=["denied", "allowed"])
def test_only_a_call_with_verdict_ask_can_be_approved(
    call: Call, config: SandboxConfig, environ: dict[str, str], place: Path
) -> None:
    with pytest.raises(PolicyError):
        approve(call, config, environ)
    assert not place.exists()


def test_denied_call_is_never_looked_up(config: SandboxConfig, environ: dict[str, str], place: Path) -> None:
    # A file that names the denied call must not help, even if the user copied it there.
    asked = vet(RESET, config)
    denied = Verdict((asked.findings[0].replace(decision=Decision.DENY),))
    made = approvals.approve(RESET, asked, config, environ)
    key = approvals._key(RESET, denied, config)
    (place / key).write_text(json.dumps(made.to_dict() | {"key": key}))
    assert approvals.find_approval(RESET, denied, config, environ) is None


def test_approval_expires(config: SandboxConfig, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = approve(RESET, config, environ)
    for at, holds in ((made.expires_at - 1, True), (made.expires_at, False), (made.approved_at - 3600, False)):
        monkeypatch.setattr(approvals, "time", lambda at=at: at)
        assert found(RESET, config, environ) == holds
        assert [a.key for a in approvals.list_approvals(environ)] == [made.key] * holds


def test_edited_expiry_is_not_accepted(config: SandboxConfig, environ: dict[str, str], place: Path) -> None:
    made = approve(RESET, config, environ)
    (place / made.key).write_text(json.dumps(made.to_dict() | {"expires_at": made.expires_at + 1e9}))
    assert not found(RESET, config, environ)


def test_approval_can_be_revoked_twice(config: SandboxConfig, environ: dict[str, str]) -> None:
    made = approve(RESET, config, environ)
    approvals.revoke(made, environ)
    approvals.revoke(made, environ)
    assert not found(RESET, config, environ)


def _writable(place: Path, key: str) -> None:
    (place / key).chmod(0o666)


def _linked(place: Path, key: str) -> None:
    (place / key).rename(place.parent / "elsewhere")
    (place / key).symlink_to(place.parent / "elsewhere")


def _piped(place: Path, key: str) -> None:
    (place / key).unlink()
    os.mkfifo(place / key)


def _damaged(place: Path, key: str) -> None:
    (place / key).write_bytes((place / key).read_bytes()[:-5])


def _of_another_call(place: Path, key: str) -> None:
    data = json.loads((place / key).read_text())
    (place / key).write_text(json.dumps(data | {"call": ["git", "clean", "-fdx"]}))


def _nested(place: Path, key: str) -> None:
    (place / key).write_text("[" * 100_000)


@pytest.mark.parametrize("harm", [_writable, _linked, _piped, _damaged, _of_another_call, _nested])
def test_unsafe_or_damaged_file_approves_nothing(
    harm: Callable[[Path, str], None], config: SandboxConfig, environ: dict[str, str], place: Path
) -> None:
    harm(place, approve(RESET, config, environ).key)
    assert not found(RESET, config, environ)


def test_directory_writable_by_others_is_an_error(config: SandboxConfig, environ: dict[str, str], place: Path) -> None:
    approve(RESET, config, environ)
    place.chmod(0o777)
    for act in (lambda: found(RESET, config, environ), lambda: approve(RESET, config, environ)):
        with pytest.raises(PolicyError, match="chmod go-w"):
            act()


def test_state_directory_in_the_project_is_an_error(config: SandboxConfig, project: Path) -> None:
    environ = {"HOME": str(project)}
    for act in (lambda: found(RESET, config, environ), lambda: approve(RESET, config, environ)):
        with pytest.raises(PolicyError, match=re.escape(config.project_root)):
            act()


def test_number_is_bounded_and_expired_ones_make_room(
    config: SandboxConfig, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "MAX_APPROVALS", 3)
    calls = [Call(("git", "reset", "--hard", f"HEAD~{i}")) for i in range(4)]
    made = [approve(call, config, environ) for call in calls[:3]]
    approve(calls[0], config, environ)
    with pytest.raises(PolicyError, match="corral grants revoke"):
        approve(calls[3], config, environ)
    monkeypatch.setattr(approvals, "time", lambda: made[2].expires_at + 1)
    approve(calls[3], config, environ)
    assert [a.call for a in approvals.list_approvals(environ)] == [calls[3].argv]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(Call(("git", "reset", "--hard", "x" * approvals.MAX_TEXT)), id="long"),
        pytest.param(Call(("git", "reset", 3)), id="no text"),
        pytest.param(Call(("git", "reset", "--hard"), env={}), id="a changed environment"),
    ],
)
def test_unreadable_call_cannot_be_approved(call: Call) -> None:
    assert not approvals.can_be_approved(call)


def test_concurrent_writers_lose_no_approval(config: SandboxConfig, environ: dict[str, str], place: Path) -> None:
    code = """if True:
        import os, sys
        from corral import SandboxConfig; from corral.policy.answers import approvals
        from corral.model.call import Call
        from corral.guard.evaluate import vet
        config = SandboxConfig(sys.argv[1], profile="workspace")
        for i in range(20):
            call = Call(("git", "reset", "--hard", f"HEAD~{sys.argv[2]}{i}"))
            approvals.approve(call, vet(call, config), config, os.environ)
            assert approvals.find_approval(call, vet(call, config), config, os.environ)
    """
    writers = [
        subprocess.Popen([sys.executable, "-c", code, config.project_root, str(n)], env=os.environ | environ)
        for n in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert len(approvals.list_approvals(environ)) == 80
    assert sorted(p.name for p in place.iterdir()) == sorted(a.key for a in approvals.list_approvals(environ))


GRANT = Grant("network", "index.example:443", "in the call")
CURL = Call(("curl", "https://index.example"))
NEEDS = Verdict(
    (Finding(Axis.ARGV, "argv-curl-network", Decision.ASK, "It connects.", grants=(GRANT,), family="curl"),)
)


def test_once_is_one_run_within_ten_minutes(
    config: SandboxConfig, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = approvals.approve(CURL, NEEDS, config, environ, once=True)
    assert (made.uses, made.grants, made.expires_at - made.approved_at) == (1, (GRANT,), 600.0)
    assert approvals.find_approval(CURL, NEEDS, config, environ) == made
    assert approvals.take_approval(CURL, NEEDS, config, environ) == made
    assert approvals.take_approval(CURL, NEEDS, config, environ) is None
    made = approvals.approve(CURL, NEEDS, config, environ, once=True)
    monkeypatch.setattr(approvals, "time", lambda: made.approved_at + 600)
    assert approvals.take_approval(CURL, NEEDS, config, environ) is None


def test_lasting_approval_is_taken_many_times(config: SandboxConfig, environ: dict[str, str]) -> None:
    made = approvals.approve(CURL, NEEDS, config, environ)
    assert [approvals.take_approval(CURL, NEEDS, config, environ) for _ in range(3)] == [made] * 3


def test_approval_is_only_for_the_grants_that_were_shown(config: SandboxConfig, environ: dict[str, str]) -> None:
    approvals.approve(CURL, NEEDS, config, environ)
    (finding,) = NEEDS.findings
    for grants in ((), (GRANT.replace(target="other.example:443"),), (GRANT, GRANT.replace(target="b.example:1"))):
        assert approvals.find_approval(CURL, Verdict((finding.replace(grants=grants),)), config, environ) is None
    assert approvals.find_approval(CURL, NEEDS.replace(others=("make",)), config, environ) is None


def test_two_runs_at_the_same_time_get_a_use_once(config: SandboxConfig, environ: dict[str, str]) -> None:
    approvals.approve(RESET, vet(RESET, config), config, environ, once=True)
    code = """if True:
        import os, sys
        from corral import SandboxConfig; from corral.policy.answers import approvals
        from corral.model.call import Call
        from corral.guard.evaluate import vet
        config, call = SandboxConfig(sys.argv[1], profile="workspace"), Call(("git", "reset", "--hard"))
        verdict = vet(call, config)
        sys.stdin.read()
        print(approvals.take_approval(call, verdict, config, os.environ) is not None)
    """
    command = [sys.executable, "-c", code, config.project_root]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    takers = [subprocess.Popen(command, env=os.environ | environ, **pipes) for _ in range(6)]
    said = [taker.communicate()[0] for taker in takers]
    assert sorted(said) == ["False\n"] * 5 + ["True\n"]


def test_approvals_of_the_old_format_are_counted_and_removed(
    config: SandboxConfig, environ: dict[str, str], place: Path
) -> None:
    made = approve(RESET, config, environ)
    old = made.to_dict() | {"schema": approvals.OLD_SCHEMA}
    del old["grants"], old["uses"]
    (place / made.key).write_text(json.dumps(old))
    assert not found(RESET, config, environ)
    assert approvals.list_approvals(environ) == []
    approve(Call(("git", "clean", "-fd")), config, environ)
    assert [approvals.remove_old_approvals(environ) for _ in range(2)] == [1, 0]
    assert len(approvals.list_approvals(environ)) == 1
