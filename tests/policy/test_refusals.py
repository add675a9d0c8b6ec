"""Refusals that `corral allow` can answer: bounded, short-lived, private, and no permission by themselves."""

import json
import os
from pathlib import Path

import pytest

from corral.model.call import Axis, Call, Decision, Finding, Verdict
from corral.model.errors import PolicyError
from corral.model.grant import Grant
from corral.policy.answers import refusals
from corral.policy.answers.refusals import find_refusal, open_refusals, remove_refusal, save_refusal

GRANT = Grant("network", "index.example:443", "in the call")
ASK = Verdict((Finding(Axis.ARGV, "argv-curl-network", Decision.ASK, "It connects.", grants=(GRANT,), family="curl"),))
CALL = Call("curl https://index.example", shell=True)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


def save(call: Call, root: Path, environ: dict[str, str], verdict: Verdict = ASK) -> str:
    return save_refusal(call, verdict, str(root), environ, host="claude", session="s1")


def test_saved_refusal_is_found_as_it_was(environ: dict[str, str], project: Path, tmp_path: Path) -> None:
    id_ = save(CALL, project, environ)
    found = find_refusal(id_, environ)
    assert found is not None
    assert found.as_call == Call("curl https://index.example", shell=True, cwd=str(project))
    assert (found.verdict, found.grants, found.host, found.session) == (ASK, (GRANT,), "claude", "s1")
    assert open_refusals(environ) == [found]
    (file,) = (tmp_path / "state" / "corral" / "refusals").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_words_of_a_call_come_back_as_words(environ: dict[str, str], project: Path) -> None:
    found = find_refusal(save(Call(("curl", "a b")), project, environ), environ)
    assert found is not None
    assert found.as_call == Call(("curl", "a b"), cwd=str(project))


def test_same_call_keeps_its_id_and_other_calls_get_their_own(environ: dict[str, str], project: Path) -> None:
    first, again = save(CALL, project, environ), save(CALL, project, environ)
    other = save(Call(("curl", "x")), project, environ)
    assert (first == again, first != other, len(open_refusals(environ))) == (True, True, 2)


def test_ids_are_short_hexadecimal_numbers(environ: dict[str, str], project: Path) -> None:
    ids = {save(Call(("curl", str(number))), project, environ) for number in range(40)}
    assert len(ids) == 40
    assert all(4 <= len(id_) <= 32 and set(id_) <= set("0123456789abcdef") for id_ in ids)


def test_id_that_is_taken_gets_longer(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], project: Path) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: b"\x7f\x3a" * (size // 2))
    assert [save(Call(("curl", str(number))), project, environ) for number in range(3)] == ["7f3a", "7f3a7", "7f3a7f"]
    found = find_refusal("7f3a", environ)
    assert found is not None
    assert found.call == ("curl", "0")


@pytest.mark.parametrize("id_", ["", "7f3", "7F3A", "../x", "7f3a-", "*", "7f3a\n", "0" * 33, "zzzz"])
def test_invalid_id_finds_nothing(id_: str, environ: dict[str, str], project: Path) -> None:
    save(CALL, project, environ)
    assert find_refusal(id_, environ) is None


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        pytest.param(CALL, Verdict(), id="allowed"),
        pytest.param(CALL, Verdict((ASK.findings[0].replace(decision=Decision.DENY),)), id="denied"),
        pytest.param(Call(("curl", "x" * 20_000)), ASK, id="too long to show"),
        pytest.param(Call(("curl",), env={"A": "b"}), ASK, id="with an environment"),
    ],
)
def test_call_that_no_question_can_allow_is_not_saved(
    call: Call, verdict: Verdict, environ: dict[str, str], project: Path
) -> None:
    assert save(call, project, environ, verdict) == ""
    assert open_refusals(environ) == []


def test_refusal_expires_after_an_hour(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], project: Path) -> None:
    id_ = save(CALL, project, environ)
    found = find_refusal(id_, environ)
    assert found is not None
    for later, is_open in ((3599, True), (3600, False), (-3600, False)):
        monkeypatch.setattr(refusals, "time", lambda later=later: found.refused_at + later)
        assert (find_refusal(id_, environ) is not None) == is_open


def test_oldest_refusal_of_the_project_makes_room(environ: dict[str, str], project: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    kept = save(CALL, tmp_path / "other", environ)
    store = tmp_path / "state" / "corral" / "refusals"
    first = save(Call(("curl", "first")), project, environ)
    os.utime(next(store.glob(f"{first}-*")), (os.stat(store).st_mtime - 60,) * 2)
    for number in range(refusals.MAX_OF_PROJECT):
        save(Call(("curl", str(number))), project, environ)
    assert (find_refusal(first, environ), find_refusal(kept, environ) is None) == (None, False)
    assert len(open_refusals(environ)) == refusals.MAX_OF_PROJECT + 1


def test_answered_refusal_is_gone(environ: dict[str, str], project: Path) -> None:
    found = find_refusal(save(CALL, project, environ), environ)
    assert found is not None
    remove_refusal(found, environ)
    remove_refusal(found, environ)
    assert open_refusals(environ) == []


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "corral.refusal/9"},
        {"id": "0000"},
        {"call": []},
        {"call": [1]},
        {"verdict": {"findings": [{}]}},
        {"shell": "no"},
        {"refused_at": "x"},
        {"root": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_damaged_file_is_no_refusal(
    change: dict[str, object], environ: dict[str, str], project: Path, tmp_path: Path
) -> None:
    save(CALL, project, environ)
    (file,) = (tmp_path / "state" / "corral" / "refusals").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert open_refusals(environ) == []


def test_file_of_another_mode_or_a_link_is_no_refusal(environ: dict[str, str], project: Path, tmp_path: Path) -> None:
    save(CALL, project, environ)
    (file,) = (tmp_path / "state" / "corral" / "refusals").iterdir()
    file.chmod(0o622)
    assert open_refusals(environ) == []
    file.chmod(0o600)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert open_refusals(environ) == []


def test_state_directory_in_the_project_is_an_error(project: Path) -> None:
    with pytest.raises(PolicyError, match="inside the project"):
        save(CALL, project, {"HOME": str(project)})
