"""Tests of the audit log: one line per call that follows the published schema, with a size limit, without secrets, never lost silently."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import corral
from corral import AuditError, Sandbox, SandboxConfig, SandboxResult
from corral.audit.audit_log import MAX_READ, MAX_TEXT, Log, directory
from corral.audit.ledger import LOG, MAX_LINE_BYTES
from corral.audit.query import verify
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.call import Call, Decision, Usage, Verdict, Violation

SCHEMA = json.loads((Path(corral.__file__).parent / "model" / "schemas" / "audit.schema.json").read_text())
TOKEN = "ghp_" + "abcdefghij0123456789"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "DEPLOY_TOKEN": "a rather plain phrase"}


@pytest.fixture
def config(project: Path) -> SandboxConfig:
    return SandboxConfig(str(project), profile="workspace")


def lines(environ: dict[str, str]) -> list[dict[str, Any]]:
    file = Path(directory(environ), LOG)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    for entry in found:
        jsonschema.validate(entry, SCHEMA)
    assert verify(directory(environ)).problems == ()
    return found


def test_published_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_verdict_is_logged_as_one_line(config: SandboxConfig, environ: dict[str, str]) -> None:
    call = Call(("sudo", "ls"), cwd="sub")
    verdict = vet(call, config, Machine.of(config))
    Log(config, event="hook", host="claude", environ=environ).verdict(call, verdict, id_="0" * 32)
    (entry,) = lines(environ)
    for name in ("at", "pid", "hash"):
        del entry[name]
    assert entry == {
        "schema": "corral.audit/1",
        "id": "0" * 32,
        "event": "hook",
        "host": "claude",
        "seq": 1,
        "prev": "0" * 64,
        "root": config.project_root,
        "profile": "workspace",
        "cwd": f"{config.project_root}/sub",
        "argv": ["sudo", "ls"],
        "decision": "deny",
        "findings": [{"rule": f.rule, "decision": "deny", "reason": f.reason} for f in verdict.findings],
    }


def test_result_is_logged_as_one_line_without_output(config: SandboxConfig, environ: dict[str, str]) -> None:
    result = SandboxResult(
        argv=("echo hidden words | wc",),
        exit_code=3,
        stdout=b"private output",
        shell=True,
        id="1" * 32,
        cwd=config.project_root,
        duration_ms=1.23456,
        stdout_bytes=14,
        killed=2,
        backend="warden",
        enforcement="partial",
        missing_layers=("net",),
        signal=9,
        timed_out=True,
        violations=(Violation("blocked", "/etc/x", grant="containment.read"),),
        usage=Usage(0.5, 0.25, 1024),
    )  # type: ignore[arg-type]
    Log(config, call="2" * 32, environ=environ).result(result)
    (entry,) = lines(environ)
    assert (entry["event"], entry["shell"], entry["decision"], entry["call"]) == (
        *("run", "echo hidden words | wc", "allow", "2" * 32),
    )
    assert "private output" not in json.dumps(entry)
    assert entry["result"] == {
        "exit_code": 3,
        "signal": 9,
        "timed_out": True,
        "denied": False,
        "truncated": False,
        "stdout_bytes": 14,
        "stderr_bytes": 0,
        "killed": 2,
        "backend": "warden",
        "enforcement": "partial",
        "started_at": "",
        "network": "off",
        "duration_ms": 1.235,
        "missing_layers": ["net"],
        "violations": [{"kind": "blocked", "target": "/etc/x", "grant": "containment.read"}],
        "usage": {name: getattr(result.usage, name) for name in result.usage._fields},
    }


@pytest.mark.parametrize(
    ("allowed", "decision"),
    [(Verdict(), "deny"), (None, "ask")],
    ids=["refused though allowed by the guard", "asked about and refused"],
)
def test_refused_result_has_the_decision_of_the_guard(
    config: SandboxConfig, environ: dict[str, str], allowed: Verdict | None, decision: str
) -> None:
    call = Call(("git", "reset", "--hard"))
    verdict = vet(call, config, Machine.of(config)) if allowed is None else allowed
    result = SandboxResult(("git",), -100, denied=True, reason="no", id="1" * 32, verdict=verdict)
    Log(config, environ=environ).result(result)
    assert [(e["decision"], e["result"]["denied"], e["reason"]) for e in lines(environ)] == [(decision, True, "no")]


def test_notes_and_failures_are_logged(config: SandboxConfig, environ: dict[str, str]) -> None:
    Log(config, event="hook", host="gemini", environ=environ).note({"files": ["a", "b"], "decision": "allow"})
    Log(event="hook", host="gemini", environ=environ).note({"decision": "deny", "error": "no JSON"})
    Log(config, environ=environ).failure(Call(("ls",)), AuditError("x"))
    assert [(e.get("root"), e.get("files"), e.get("error")) for e in lines(environ)] == [
        (config.project_root, ["a", "b"], None),
        (None, None, "no JSON"),
        (config.project_root, None, "x"),
    ]


def test_secrets_are_redacted_in_every_field(config: SandboxConfig, environ: dict[str, str]) -> None:
    log = Log(config, environ=environ)
    secrets = (TOKEN, environ["DEPLOY_TOKEN"])
    for secret in secrets:
        call = Call(("deploy", secret, "--password", "hunter2", "x"), cwd=secret)
        finding = corral.Finding(corral.Axis.PATH, "path-x", Decision.DENY, f"{secret} is outside")
        log.verdict(call, Verdict((finding,)), reason=secret)
        log.failure(Call(f"echo {secret}; PASSWORD=hunter2 x", shell=True), secret)
        log.note({"files": [secret], "error": secret})
        violation = Violation("blocked", secret, secret)
        log.result(SandboxResult((secret,), 0, id="1" * 32, cwd=secret, reason=secret, violations=(violation,)))
    text = Path(directory(environ), LOG).read_text()
    assert [secret for secret in (*secrets, "hunter2") if secret in text] == []
    assert "[redacted:DEPLOY_TOKEN]" in text
    lines(environ)


@pytest.mark.parametrize(
    "call",
    [
        Call("é" * 300_000, shell=True),
        Call(("x", "é" * 300_000)),
        Call(("x",) * 100_000),
        Call(tuple("\U0001f600" * 200 for _ in range(500))),
    ],
    ids=["shell text", "a word", "words", "long words"],
)
def test_long_call_is_cut_and_has_its_length_and_hash(
    config: SandboxConfig, environ: dict[str, str], call: Call
) -> None:
    log = Log(config, environ=environ)
    log.verdict(call, Verdict())
    log.verdict(call.replace(argv="y" + call.argv if isinstance(call.argv, str) else ("y", *call.argv)), Verdict())
    one, two = lines(environ)
    kept = one.get("shell") or "".join(one["argv"])
    assert len(kept) <= MAX_TEXT
    assert one["cut"]["length"] == sum(map(len, call.argv))
    assert one["cut"]["sha256"] != two["cut"]["sha256"]
    assert Path(directory(environ), LOG).stat().st_size < 2 * MAX_LINE_BYTES


def test_secret_across_the_cut_is_redacted(config: SandboxConfig, environ: dict[str, str]) -> None:
    log = Log(config, environ=environ)
    for before in (MAX_TEXT - 10, MAX_READ - 10, MAX_READ - 30):
        log.verdict(Call("#" * before + TOKEN + "#" * 9, shell=True), Verdict())
        log.verdict(Call(("#" * before + TOKEN, TOKEN)), Verdict())
    assert "ghp_abc" not in Path(directory(environ), LOG).read_text()


@pytest.mark.parametrize(
    "text", ["cat /root/.ssh/{}", "cat /root/.ssh/{}{}", "curl http://h/{}", "dd if=/dev/{} of=x", "sudo {}"]
)
def test_partial_secret_in_a_reason_is_redacted(config: SandboxConfig, environ: dict[str, str], text: str) -> None:
    secret = "".join(f"z{number:03}q" for number in range(40))
    # A reason quotes at most eighty characters of the command, so it contains only a part of the secret.
    verdict = corral.Sandbox(config).check(text.replace("{}", secret), shell=True)
    log = Log(config, environ={**environ, "DEPLOY_TOKEN": secret})
    log.verdict(Call(text.replace("{}", secret), shell=True), verdict, reason=verdict.reason)
    assert verdict.findings
    assert secret[:12] not in Path(directory(environ), LOG).read_text()


def test_invalid_unicode_and_other_types_are_logged(config: SandboxConfig, environ: dict[str, str]) -> None:
    log = Log(config, environ=environ)
    log.verdict(Call(("a\udcff\n\x1b[31m\u202e\0", 7, b"x")), Verdict())
    log.verdict(Call("a\udcff\u2028\ud800", shell=True), Verdict())
    assert lines(environ)[0]["argv"] == ["a\udcff\n\x1b[31m\u202e\0", "7", "b'x'"]


def test_log_inside_the_project_is_refused(config: SandboxConfig, project: Path) -> None:
    environ = {"HOME": str(project)}
    with pytest.raises(AuditError, match="lies inside the project"):
        Log(config, environ=environ).verdict(Call(("ls",)), Verdict())
    assert list(project.iterdir()) == []


def test_log_directory_writable_by_others_is_refused(config: SandboxConfig, environ: dict[str, str]) -> None:
    Log(config, environ=environ).verdict(Call(("ls",)), Verdict())
    os.chmod(directory(environ), 0o777)
    with pytest.raises(AuditError, match="can be written by others"):
        Log(config, environ=environ).verdict(Call(("ls",)), Verdict())


def test_log_directory_that_cannot_be_made_is_refused(config: SandboxConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = Log(config, environ={"HOME": str(tmp_path / "file")})
    for attempt in (log.check, lambda: log.verdict(Call(("ls",)), Verdict())):
        with pytest.raises(AuditError, match="set XDG_STATE_HOME to a place that can be"):
            attempt()


def test_only_the_user_can_read_the_log(config: SandboxConfig, environ: dict[str, str]) -> None:
    Log(config, environ=environ).verdict(Call(("ls",)), Verdict())
    place = Path(directory(environ))
    assert [oct(path.stat().st_mode & 0o777) for path in (place, place / LOG)] == ["0o700", "0o600"]


def told(project: Path) -> tuple[Sandbox, list[SandboxResult]]:
    results: list[SandboxResult] = []
    return Sandbox(SandboxConfig(str(project), timeout_seconds=0.5), on_result=results.append), results


def closed(box: Sandbox) -> SandboxResult:
    with box.start(["sleep", "60"], timeout_seconds=60) as handle:
        pass
    assert handle.result is not None
    return handle.result


CALLS: dict[str, Callable[[Sandbox], SandboxResult]] = {
    "a command": lambda box: box.run(["true"]),
    "a failing command": lambda box: box.run(["false"]),
    "a refused command": lambda box: box.run(["sudo", "ls"]),
    "a missing program": lambda box: box.run(["nosuchprogram"]),
    "a missing directory": lambda box: box.run(["true"], cwd="nowhere"),
    "a command over its time limit": lambda box: box.run(["sleep", "60"]),
    "a command in an event loop": lambda box: asyncio.run(box.arun(["true"])),
    "a refused command in an event loop": lambda box: asyncio.run(box.arun(["sudo", "ls"])),
    "a closed handle": closed,
}


@pytest.mark.parametrize("run", CALLS.values(), ids=CALLS)
def test_on_result_is_called_once_per_result(project: Path, run: Callable[[Sandbox], SandboxResult]) -> None:
    box, results = told(project)
    with box:
        result = run(box)
        assert results == [result]
        assert box.run(["true"]).ok
    assert len(results) == 2


def test_error_in_on_result_is_raised_and_the_sandbox_survives(project: Path) -> None:
    def fail(_: SandboxResult) -> None:
        raise AuditError("the disk is full")

    with Sandbox(SandboxConfig(str(project)), on_result=fail) as box:
        for call in (["true"], ["sudo", "ls"], ["nosuchprogram"], ["true"]):
            with pytest.raises(AuditError, match="the disk is full"):
                box.run(call)
        box.on_result = None
        assert box.run(["true"]).ok


def test_library_logs_through_on_result(project: Path, environ: dict[str, str]) -> None:
    config = SandboxConfig(str(project))
    with Sandbox(config, on_result=Log(config, event="library", environ=environ).result) as box:
        ran = box.run(["true"])
        refused = box.run(["sudo", "ls"])
    assert [(e["id"], e["event"], e["decision"]) for e in lines(environ)] == [
        (ran.id, "library", "allow"),
        (refused.id, "library", "deny"),
    ]


def test_writing_a_line_loads_no_heavy_module(project: Path, environ: dict[str, str]) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(corral.__file__).parents[1])!r})
from corral.audit.audit_log import Log
from corral.policy.config import SandboxConfig
from corral.model.call import Call, Verdict
Log(SandboxConfig({str(project)!r}), environ={environ!r}).verdict(Call(("git status",), True), Verdict())
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "json",
        "re",
        "enum",
        "hashlib",
        "typing",
        "datetime",
        "fcntl",
        "_hashlib",
        "corral.audit.redact",
        "corral.audit.query",
    }
    assert set(done.stdout.split()) & heavy == set()
    assert len(lines(environ)) == 1
