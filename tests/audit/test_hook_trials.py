"""Tests that corral's trials of installed hooks are marked in the log and hidden, and that an agent cannot fake the mark."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import alone
import pytest

from corral.apps.cli.verbs.status import recent_refusals
from corral.apps.doctor.hook_checks import CANARY, REFUSED, hook_checks, probe_calls
from corral.audit import audit_log, hook_trials, query
from corral.audit.query import LogFilter
from corral.integrations.hooks.install import apply, installed_hooks, plan_install
from corral.integrations.hooks.registry import HOSTS, USER, settings_path, start_words

NAMES = list(HOSTS)


def install(name: str, home: Path, work: Path) -> None:
    environ = alone.environment(home)
    apply(plan_install(HOSTS[name], USER, str(work), environ), environ, str(work))


def log_of(home: Path) -> str:
    return audit_log.directory(alone.environment(home))


def tickets(home: Path) -> Path:
    return Path(log_of(home)).parent / "trials"


def asked(home: Path, work: Path, **environ: str) -> None:
    """Run Claude Code's hook on the text of a trial, as an agent can."""
    host = HOSTS["claude"]
    environment = alone.environment(home, **environ)
    event, _, hook = installed_hooks(host, settings_path(host, USER, str(work), environment))[0]
    payload = next(iter(probe_calls(HOSTS["claude"], event, str(work)).values()))
    done = subprocess.run(
        start_words(hook),
        input=json.dumps(payload).encode(),
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2


def entries(home: Path, **wish: Any) -> list[dict[str, Any]]:
    return query.entries(log_of(home), LogFilter(**wish))


@pytest.mark.parametrize("name", NAMES)
def test_trials_of_doctor_are_marked_and_hidden(name: str, home: Path, work: Path) -> None:
    install(name, home, work)
    checks = hook_checks(alone.environment(home), str(work))
    assert next(check.status for check in checks if check.name == name) == "ok"
    found = entries(home, trials=True)
    assert found
    assert {entry.get("trial") for entry in found} == {True}
    assert entries(home) == []
    assert list(query.walk(log_of(home), LogFilter())) == []
    assert next(query.follow(log_of(home), LogFilter(), after=0)) is None
    assert recent_refusals(log_of(home), str(work)) == []
    assert list(tickets(home).iterdir()) == []


def test_text_of_a_trial_does_not_hide_a_call(home: Path, work: Path) -> None:
    install("claude", home, work)
    asked(home, work)
    (entry,) = entries(home)
    assert ("trial" in entry, entry["shell"]) == (False, f"{REFUSED}  # {CANARY}")
    assert [call["command"] for call in recent_refusals(log_of(home), str(work))] == [f"{REFUSED}  # {CANARY}"]


@pytest.mark.parametrize(
    "value", ["1", "true", "0" * 32, "../audit", "../trials/" + "0" * 32, ".", "a" * 31 + "/", "ü" * 32]
)
def test_variable_without_a_ticket_does_not_hide_a_call(home: Path, work: Path, value: str) -> None:
    install("claude", home, work)
    tickets(home).mkdir(parents=True, mode=0o700)
    asked(home, work, **{hook_trials.VARIABLE: value})
    assert len(entries(home)) == 1


def test_expired_ticket_does_not_hide_a_call(home: Path, work: Path) -> None:
    install("claude", home, work)
    with hook_trials.ticket(alone.environment(home)) as marked:
        asked(home, work, **marked)
        assert entries(home) == []
    asked(home, work, **marked)
    assert len(entries(home)) == 1


@pytest.mark.parametrize("kind", ["link", "writable", "directory", "directory writable"])
def test_ticket_of_another_user_does_not_hide_a_call(home: Path, work: Path, kind: str) -> None:
    install("claude", home, work)
    name = "ab" * 16
    place = tickets(home)
    place.mkdir(parents=True, mode=0o700)
    if kind == "link":
        (place / name).symlink_to(work / ".git")
    elif kind == "directory":
        (place / name).mkdir()
    else:
        (place / name).touch(0o600)
        os.chmod(place / name if kind == "writable" else place, 0o777)
    asked(home, work, **{hook_trials.VARIABLE: name})
    assert len(entries(home)) == 1


def test_only_entries_of_hooks_are_trials(home: Path) -> None:
    environ = alone.environment(home)
    with hook_trials.ticket(environ) as marked:
        audit_log.Log(event="run", environ={**environ, **marked}).note({"decision": "deny"})
        audit_log.Log(event="hook", environ={**environ, **marked}).note({"decision": "deny"})
    assert ["trial" in entry for entry in entries(home, trials=True)] == [False, True]


def test_tickets_of_a_killed_doctor_are_removed(home: Path) -> None:
    place = tickets(home)
    place.mkdir(parents=True, mode=0o700)
    old, new = place / ("0" * 32), place / ("1" * 32)
    for file in (old, new):
        file.touch()
    os.utime(old, (0, 0))
    with hook_trials.ticket(alone.environment(home)):
        assert (old.exists(), new.exists()) == (False, True)


def test_trials_are_unmarked_if_the_state_is_not_writable(home: Path) -> None:
    (home / "file").touch()
    with hook_trials.ticket({"HOME": str(home), "XDG_STATE_HOME": str(home / "file")}) as marked:
        assert marked == {}


def test_log_command_shows_trials_on_request(home: Path, work: Path) -> None:
    install("claude", home, work)
    environ = alone.environment(home)
    hook_checks(environ, str(work))

    def printed(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "corral", "log", *words],
            env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)}, cwd=work, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout

    assert (CANARY in printed(), CANARY in printed("--trials")) == (False, True)
    id_ = entries(home, trials=True)[0]["id"]
    assert CANARY in printed("show", id_)
