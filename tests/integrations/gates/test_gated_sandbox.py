"""Tests of GatedSandbox: results, refusals, recorded rulings, budget and recency with a real sandbox."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import corral
from corral import DENIED_EXIT_CODE, ContainmentError, Sandbox, SandboxResult
from corral.audit.audit_log import Log, directory
from corral.audit.ledger import LOG
from corral.integrations.frameworks._commands import arun_merged, run_merged
from corral.integrations.gates import (
    Budget,
    BudgetGate,
    Chain,
    FileStates,
    GatedSandbox,
    ObservationLedger,
    Pattern,
    Patterns,
    Recency,
    Ruling,
    SandboxGate,
    ToolAllowlist,
    ToolCall,
    noted,
)
from corral.integrations.gates.project_files import files_touched
from corral.model.call import Call, Decision

SCHEMA = json.loads((Path(corral.__file__).parent / "model" / "schemas" / "audit.schema.json").read_text())
NO_WORDS = Pattern("no-secret-word", "xyzzy", "It says the word.", "Do not say it.")


@pytest.fixture
def ledger() -> ObservationLedger:
    return ObservationLedger(Budget(total=200), len)


@pytest.fixture
def gated(open_box: Sandbox) -> GatedSandbox:
    return GatedSandbox(open_box, Patterns(NO_WORDS))


def run_by(gated: GatedSandbox, way: str, *args: Any, **options: Any) -> SandboxResult:
    async def awaited() -> SandboxResult:
        return await (await gated.astart(*args, **options))

    ways: dict[str, Callable[[], SandboxResult]] = {
        "run": lambda: gated.run(*args, **options),
        "arun": lambda: asyncio.run(gated.arun(*args, **options)),
        "start": lambda: gated.start(*args, **options).wait(),
        "astart": lambda: asyncio.run(awaited()),
    }
    return ways[way]()


WAYS = pytest.mark.parametrize("way", ["run", "arun", "start", "astart"])


@WAYS
def test_allowed_call_has_the_result_of_the_sandbox(gated: GatedSandbox, open_box: Sandbox, way: str) -> None:
    result = run_by(gated, way, "echo out; echo err >&2; exit 3", shell=True, env={"A": "1"}, timeout_seconds=20)
    plain = open_box.run("echo out; echo err >&2; exit 3", shell=True, env={"A": "1"}, timeout_seconds=20)
    own = {name: getattr(plain, name) for name in ("id", "started_at", "duration_ms", "usage")}
    assert result.replace(**own) == plain


@WAYS
def test_refused_call_is_a_denied_result_and_does_not_run(gated: GatedSandbox, project: Path, way: str) -> None:
    result = run_by(gated, way, ["touch", "xyzzy"])
    assert (result.denied, result.exit_code, result.argv) == (True, DENIED_EXIT_CODE, ("touch", "xyzzy"))
    assert result.reason == "Refused by the patterns gate: It says the word. Do not say it."
    assert not (project / "xyzzy").exists()
    assert run_by(gated, way, ["touch", "plugh"]).ok
    assert (project / "plugh").exists()


@pytest.mark.parametrize("way", ["run", "arun"])
def test_gates_judge_the_command_as_the_model_wrote_it(open_box: Sandbox, way: str) -> None:
    def run(text: str) -> SandboxResult:
        return run_merged(gated, text) if way == "run" else asyncio.run(arun_merged(gated, text))

    received: list[Ruling] = []
    gates = Patterns(
        Pattern("no-deploy", "^deploy", "Nothing is deployed."), Pattern("a-word", "^[a-z]+ ", "", required=True)
    )
    gated = GatedSandbox(open_box, gates, on_ruling=received.append)
    refused = run("deploy now")
    assert (refused.denied, refused.argv) == (True, ("deploy now",))
    done = run("echo out; echo err >&2")
    assert (done.stdout_text, done.stderr_text) == ("out\nerr\n", "")
    assert [(ruling.rule, ruling.result_id) for ruling in received] == [("no-deploy", refused.id), ("", done.id)]


def test_sandbox_judges_the_command_that_runs(box: Sandbox) -> None:
    result = GatedSandbox(box).run(["rm", "x"], meant=["ls"])
    assert (result.denied, result.argv) == (True, ("rm", "x"))


@WAYS
def test_sandbox_check_is_the_last_gate(box: Sandbox, way: str) -> None:
    received: list[Ruling] = []
    gated = GatedSandbox(box, Patterns(NO_WORDS), on_ruling=received.append)
    result = run_by(gated, way, ["rm", "x"], call_id="call-7")
    (ruling,) = received
    assert result.denied
    assert result.verdict == box.check(["rm", "x"])
    assert (ruling.gate, ruling.passed, ruling.rule) == ("sandbox", ("patterns",), result.verdict.findings[0].rule)
    assert (ruling.call_id, ruling.result_id) == ("call-7", result.id)


@WAYS
def test_ruling_carries_the_id_of_its_result(open_box: Sandbox, way: str) -> None:
    received: list[Ruling] = []
    gated = GatedSandbox(open_box, Patterns(NO_WORDS), on_ruling=received.append)
    results = [run_by(gated, way, argv) for argv in (["true"], ["echo", "xyzzy"])]
    assert [ruling.result_id for ruling in received] == [result.id for result in results]
    assert [ruling.decision for ruling in received] == [Decision.ALLOW, Decision.DENY]


def test_on_result_receives_refusals(open_box: Sandbox) -> None:
    received: list[SandboxResult] = []
    open_box.on_result = received.append
    gated = GatedSandbox(open_box, Patterns(NO_WORDS))
    results = [gated.run(["true"]), gated.run(["echo", "xyzzy"])]
    assert received == results


def test_rulings_are_in_the_users_log(open_box: Sandbox, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "home")}
    open_box.on_result = Log(open_box.config, environ=environ).result
    gates = Patterns(NO_WORDS)
    gated = GatedSandbox(open_box, gates, on_ruling=noted(Log(open_box.config, event="gate", environ=environ)))
    results = [gated.run(["true"], call_id="c1"), gated.run(["echo", "xyzzy"], call_id="c2")]
    lines = [json.loads(line) for line in Path(directory(environ), LOG).read_text().splitlines()]
    for line in lines:
        jsonschema.validate(line, SCHEMA)
    assert [line["event"] for line in lines] == ["run", "gate", "run", "gate"]
    first, second = lines[1], lines[3]
    assert (first["decision"], first["passed"], first["result_id"]) == ("allow", ["patterns", "sandbox"], results[0].id)
    assert (second["gate"], second["rule"], second["result_id"]) == ("patterns", "no-secret-word", results[1].id)
    assert (lines[2]["id"], lines[2]["decision"]) == (results[1].id, "deny")


def test_ask_without_on_ask_is_refused(sandbox: Callable[..., Sandbox], project: Path) -> None:
    box = sandbox(profile="workspace")
    assert box.check("git reset --hard", shell=True).decision == Decision.ASK
    ruling = GatedSandbox(box).decide("git reset --hard", shell=True)
    assert (ruling.decision, ruling.allowed) == (Decision.ASK, False)
    assert GatedSandbox(box).run("git reset --hard", shell=True).denied


def test_ask_with_on_ask_asks_the_user(sandbox: Callable[..., Sandbox]) -> None:
    box = sandbox(profile="workspace")
    asked: list[Call] = []
    box.on_ask = lambda call, verdict: not asked.append(call)
    result = GatedSandbox(box).run("git reset --hard", shell=True)
    assert len(asked) == 1
    assert not result.denied


def test_ask_of_another_gate_never_runs(open_box: Sandbox) -> None:
    class Asking:
        name = "asking"

        def judge(self, call: ToolCall, now: float) -> Any:
            return corral.integrations.gates.Refusal("r", "Why?", "", Decision.ASK)

    open_box.on_ask = lambda call, verdict: True
    assert GatedSandbox(open_box, Asking()).run(["true"]).denied


def test_output_is_cut_to_the_budget_and_next_call_refused(open_box: Sandbox) -> None:
    ledger = ObservationLedger(Budget(total=200), len)
    gated = GatedSandbox(open_box, BudgetGate(ledger, at_least=20), ledger=ledger)
    assert gated.run(["echo", "hello"]).stdout == b"hello\n"
    assert ledger.spent == 6
    cut = gated.run("seq 1000; seq 1000 >&2", shell=True)
    assert cut.truncated
    assert b"the observation budget is spent" in cut.stdout
    assert b"the observation budget is spent" in cut.stderr
    assert len(cut.stdout) + len(cut.stderr) <= 194
    assert ledger.spent == 6 + len(cut.stdout) + len(cut.stderr) <= 200
    refused = gated.run(["echo", "hello"])
    assert (refused.denied, refused.reason.partition(":")[0]) == (True, "Refused by the budget gate")


def test_file_changed_since_it_was_read_is_not_overwritten(open_box: Sandbox, project: Path) -> None:
    (project / "a.py").write_text("one")
    gated = GatedSandbox(open_box, Recency(FileStates(project)))
    assert gated.read_bytes("a.py") == b"one"
    gated.write_bytes("a.py", b"mine")
    (project / "a.py").write_text("theirs")
    with pytest.raises(PermissionError, match=r"recency gate: /.*/a\.py "):
        gated.write_bytes("a.py", b"mine again")
    assert (project / "a.py").read_text() == "theirs"
    assert gated.read_bytes("a.py") == b"theirs"
    gated.write_bytes("a.py", b"mine again")
    assert (project / "a.py").read_bytes() == b"mine again"


def test_relative_path_starts_at_the_project_root(open_box: Sandbox, project: Path, tmp_path: Path) -> None:
    (project / "a.py").write_text("one")
    gated = GatedSandbox(open_box, Recency(FileStates(tmp_path), must_read=True))
    with pytest.raises(PermissionError, match=r"recency gate: /.*/a\.py "):
        gated.write_bytes("a.py", b"mine")
    assert gated.run(["cat", "a.py"]).ok
    gated.write_bytes("a.py", b"mine")
    assert (project / "a.py").read_bytes() == b"mine"


@WAYS
def test_recency_gate_sees_files_of_commands(open_box: Sandbox, project: Path, way: str) -> None:
    (project / "a.txt").write_text("one\n")
    gated = GatedSandbox(open_box, Recency(FileStates(project)))
    assert run_by(gated, way, ["cat", "a.txt"]).ok
    (project / "a.txt").write_text("two\n")
    result = run_by(gated, way, "echo three > a.txt", shell=True)
    assert result.reason.startswith("Refused by the recency gate:")
    assert (project / "a.txt").read_text() == "two\n"
    assert run_by(gated, way, "cat a.txt && echo other > b.txt", shell=True).ok
    assert run_by(gated, way, "echo three > a.txt", shell=True).ok
    assert run_by(gated, way, "echo four >> a.txt", shell=True).ok
    assert (project / "a.txt").read_text() == "three\nfour\n"


@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        ("cat a | sort > b", ["a"], ["b"]),
        ("sed -i s/x/y/ a", ["a"], ["a"]),
        ("cd sub && cp c d", ["sub/c"], ["sub/d"]),
        ("rm a", [], ["a"]),
        ("cat $A *.py /etc/hosts", [], []),
        ("cat sub", [], []),
        ("cat <<", [], []),
    ],
    ids=["redirect", "in place", "after cd", "delete", "unknown or outside", "directory", "syntax error"],
)
def test_files_touched_come_from_the_command_text(
    open_box: Sandbox, project: Path, text: str, reads: list[str], writes: list[str]
) -> None:
    (project / "sub").mkdir()
    expected = tuple(tuple(str(project / name) for name in names) for names in (reads, writes))
    assert files_touched(Call(text, shell=True), open_box.config) == expected


@pytest.mark.parametrize("argv", [5, [], [1, 2], "two words", None], ids=repr)
@WAYS
def test_argv_of_any_type_gives_a_result(gated: GatedSandbox, argv: Any, way: str) -> None:
    assert run_by(gated, way, argv).denied


@pytest.mark.parametrize(
    "options",
    [{"env": 5}, {"env": {"A": 5}}, {"env": {"": ""}}, {"cwd": "\0"}, {"cwd": "../.."}, {"shell": True}],
    ids=repr,
)
@WAYS
def test_options_of_any_type_give_a_result(open_box: Sandbox, project: Path, options: dict[str, Any], way: str) -> None:
    gated = GatedSandbox(open_box, Recency(FileStates(project)))
    result = run_by(gated, way, ["cat", "a"], **options)
    assert result.exit_code == open_box.run(["cat", "a"], **options).exit_code


def test_sandbox_gate_refuses_a_call_that_is_not_a_command(box: Sandbox) -> None:
    chain = Chain(ToolAllowlist("*"), SandboxGate(box, besides=("search",)))
    assert chain.decide(ToolCall("run_command", {"argv": ["ls"]})).allowed
    assert chain.decide(ToolCall("bash", {"command": "ls | wc -l"})).allowed
    assert chain.decide(ToolCall("search", {"query": "x"})).allowed
    assert chain.decide(ToolCall("browse", {"url": "x"})).rule == "gate-no-command"
    assert chain.decide(ToolCall("bash", {"command": "ls; rm x"})).gate == "sandbox"
    assert chain.decide(ToolCall("bash", {"argv": ["ls"], "command": "ls"})).rule == "gate-no-command"


def test_call_that_cannot_start_raises_and_is_recorded(sandbox: Callable[..., Sandbox]) -> None:
    received: list[Ruling] = []
    box = sandbox()
    box.close()
    gated = GatedSandbox(box, on_ruling=received.append)
    for way in ("run", "arun", "start", "astart"):
        with pytest.raises(ContainmentError):
            run_by(gated, way, ["true"])
    assert [(ruling.decision, ruling.result_id) for ruling in received] == [(Decision.ALLOW, "")] * 4


def test_concurrent_threads_share_gates_and_budget(open_box: Sandbox) -> None:
    ledger = ObservationLedger(Budget(total=100), len)
    received: list[Ruling] = []
    gated = GatedSandbox(open_box, BudgetGate(ledger, at_least=10), ledger=ledger, on_ruling=received.append)
    results: list[SandboxResult] = []

    def work() -> None:
        results.extend(gated.run(["echo", "123456789"]) for _ in range(6))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(received) == len(results) == 24
    assert ledger.spent <= 100
    assert sum(result.denied for result in results) >= 24 - 10 - 3


def test_when_done_calls_back_before_and_after_the_end(open_box: Sandbox) -> None:
    received: list[SandboxResult] = []
    handle = open_box.start(["true"])
    handle.when_done(received.append)
    handle.when_done(received.append)
    result = handle.wait()
    handle.when_done(received.append)
    assert received == [result] * 3
