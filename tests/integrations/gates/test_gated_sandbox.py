"""A sandbox behind gates: the same results, a refusal by any gate as a result, and every ruling recorded with its call."""

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
from corral.integrations.gates.file_access import touched
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
def test_what_passes_is_what_the_sandbox_gives(gated: GatedSandbox, open_box: Sandbox, way: str) -> None:
    result = run_by(gated, way, "echo out; echo err >&2; exit 3", shell=True, env={"A": "1"}, timeout_seconds=20)
    plain = open_box.run("echo out; echo err >&2; exit 3", shell=True, env={"A": "1"}, timeout_seconds=20)
    own = {name: getattr(plain, name) for name in ("id", "started_at", "duration_ms", "usage")}
    assert result.replace(**own) == plain


@WAYS
def test_what_a_gate_refuses_is_a_denied_result_and_does_not_run(gated: GatedSandbox, project: Path, way: str) -> None:
    result = run_by(gated, way, ["touch", "xyzzy"])
    assert (result.denied, result.exit_code, result.argv) == (True, DENIED_EXIT_CODE, ("touch", "xyzzy"))
    assert result.reason == "Refused by the patterns gate: It says the word. Do not say it."
    assert not (project / "xyzzy").exists()
    assert run_by(gated, way, ["touch", "plugh"]).ok
    assert (project / "plugh").exists()


@pytest.mark.parametrize("way", ["run", "arun"])
def test_what_an_adapter_puts_before_a_call_does_not_hide_it_from_a_gate(open_box: Sandbox, way: str) -> None:
    def run(text: str) -> SandboxResult:
        return run_merged(gated, text) if way == "run" else asyncio.run(arun_merged(gated, text))

    heard: list[Ruling] = []
    gates = Patterns(
        Pattern("no-deploy", "^deploy", "Nothing is deployed."), Pattern("a-word", "^[a-z]+ ", "", required=True)
    )
    gated = GatedSandbox(open_box, gates, on_ruling=heard.append)
    refused = run("deploy now")
    assert (refused.denied, refused.argv) == (True, ("deploy now",))
    done = run("echo out; echo err >&2")
    assert (done.stdout_text, done.stderr_text) == ("out\nerr\n", "")
    assert [(ruling.rule, ruling.result_id) for ruling in heard] == [("no-deploy", refused.id), ("", done.id)]


def test_the_sandbox_judges_what_runs_whatever_was_meant(box: Sandbox) -> None:
    result = GatedSandbox(box).run(["rm", "x"], meant=["ls"])
    assert (result.denied, result.argv) == (True, ("rm", "x"))


@WAYS
def test_the_sandbox_is_the_last_gate(box: Sandbox, way: str) -> None:
    heard: list[Ruling] = []
    gated = GatedSandbox(box, Patterns(NO_WORDS), on_ruling=heard.append)
    result = run_by(gated, way, ["rm", "x"], call_id="call-7")
    (ruling,) = heard
    assert result.denied
    assert result.verdict == box.check(["rm", "x"])
    assert (ruling.gate, ruling.passed, ruling.rule) == ("sandbox", ("patterns",), result.verdict.findings[0].rule)
    assert (ruling.call_id, ruling.result_id) == ("call-7", result.id)


@WAYS
def test_every_call_is_recorded_with_the_id_of_its_result(open_box: Sandbox, way: str) -> None:
    heard: list[Ruling] = []
    gated = GatedSandbox(open_box, Patterns(NO_WORDS), on_ruling=heard.append)
    results = [run_by(gated, way, argv) for argv in (["true"], ["echo", "xyzzy"])]
    assert [ruling.result_id for ruling in heard] == [result.id for result in results]
    assert [ruling.decision for ruling in heard] == [Decision.ALLOW, Decision.DENY]


def test_a_refusal_goes_to_on_result_as_any_result_does(open_box: Sandbox) -> None:
    heard: list[SandboxResult] = []
    open_box.on_result = heard.append
    gated = GatedSandbox(open_box, Patterns(NO_WORDS))
    results = [gated.run(["true"]), gated.run(["echo", "xyzzy"])]
    assert heard == results


def test_rulings_stand_in_the_owners_log(open_box: Sandbox, tmp_path: Path) -> None:
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


def test_an_ask_is_refused_where_nobody_can_be_asked(sandbox: Callable[..., Sandbox], project: Path) -> None:
    box = sandbox(profile="workspace")
    assert box.check("git reset --hard", shell=True).decision == Decision.ASK
    ruling = GatedSandbox(box).decide("git reset --hard", shell=True)
    assert (ruling.decision, ruling.allowed) == (Decision.ASK, False)
    assert GatedSandbox(box).run("git reset --hard", shell=True).denied


def test_an_ask_is_asked_where_somebody_can_be(sandbox: Callable[..., Sandbox]) -> None:
    box = sandbox(profile="workspace")
    asked: list[Call] = []
    box.on_ask = lambda call, verdict: not asked.append(call)
    result = GatedSandbox(box).run("git reset --hard", shell=True)
    assert len(asked) == 1
    assert not result.denied


def test_an_ask_of_another_gate_is_never_run(open_box: Sandbox) -> None:
    class Asking:
        name = "asking"

        def judge(self, call: ToolCall, now: float) -> Any:
            return corral.integrations.gates.Refusal("r", "Why?", "", Decision.ASK)

    open_box.on_ask = lambda call, verdict: True
    assert GatedSandbox(open_box, Asking()).run(["true"]).denied


def test_output_beyond_the_budget_is_cut_and_the_next_call_refused(open_box: Sandbox) -> None:
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


def test_a_file_that_changed_since_it_was_read_is_not_overwritten(open_box: Sandbox, project: Path) -> None:
    (project / "a.py").write_text("one")
    gated = GatedSandbox(open_box, Recency(FileStates(project)))
    assert gated.read_bytes("a.py") == b"one"
    gated.write_bytes("a.py", b"mine")
    (project / "a.py").write_text("theirs")
    with pytest.raises(PermissionError, match=r"Refused by the recency gate: /.*/a\.py changed since it was read"):
        gated.write_bytes("a.py", b"mine again")
    assert (project / "a.py").read_text() == "theirs"
    assert gated.read_bytes("a.py") == b"theirs"
    gated.write_bytes("a.py", b"mine again")
    assert (project / "a.py").read_bytes() == b"mine again"


def test_a_relative_path_is_the_projects_wherever_the_gate_begins(
    open_box: Sandbox, project: Path, tmp_path: Path
) -> None:
    (project / "a.py").write_text("one")
    gated = GatedSandbox(open_box, Recency(FileStates(tmp_path), must_read=True))
    with pytest.raises(PermissionError, match=r"a\.py exists and was not read"):
        gated.write_bytes("a.py", b"mine")
    assert gated.run(["cat", "a.py"]).ok
    gated.write_bytes("a.py", b"mine")
    assert (project / "a.py").read_bytes() == b"mine"


@WAYS
def test_commands_are_known_by_what_they_read_and_write(open_box: Sandbox, project: Path, way: str) -> None:
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
    ids=["redirect", "in place", "after cd", "delete", "not proven, or outside", "a directory", "not to be parsed"],
)
def test_what_a_command_touches_is_read_from_its_text(
    open_box: Sandbox, project: Path, text: str, reads: list[str], writes: list[str]
) -> None:
    (project / "sub").mkdir()
    expected = tuple(tuple(str(project / name) for name in names) for names in (reads, writes))
    assert touched(Call(text, shell=True), open_box.config) == expected


@pytest.mark.parametrize("argv", [5, [], [1, 2], "two words", None], ids=repr)
@WAYS
def test_arguments_of_any_shape_are_a_result(gated: GatedSandbox, argv: Any, way: str) -> None:
    assert run_by(gated, way, argv).denied


@pytest.mark.parametrize(
    "options",
    [{"env": 5}, {"env": {"A": 5}}, {"env": {"": ""}}, {"cwd": "\0"}, {"cwd": "../.."}, {"shell": True}],
    ids=repr,
)
@WAYS
def test_options_of_any_shape_are_a_result_too(
    open_box: Sandbox, project: Path, options: dict[str, Any], way: str
) -> None:
    gated = GatedSandbox(open_box, Recency(FileStates(project)))
    result = run_by(gated, way, ["cat", "a"], **options)
    assert result.exit_code == open_box.run(["cat", "a"], **options).exit_code


def test_a_gate_alone_needs_a_command_or_a_tool_that_is_none(box: Sandbox) -> None:
    chain = Chain(ToolAllowlist("*"), SandboxGate(box, besides=("search",)))
    assert chain.decide(ToolCall("run_command", {"argv": ["ls"]})).allowed
    assert chain.decide(ToolCall("bash", {"command": "ls | wc -l"})).allowed
    assert chain.decide(ToolCall("search", {"query": "x"})).allowed
    assert chain.decide(ToolCall("browse", {"url": "x"})).rule == "gate-no-command"
    assert chain.decide(ToolCall("bash", {"command": "ls; rm x"})).gate == "sandbox"
    assert chain.decide(ToolCall("bash", {"argv": ["ls"], "command": "ls"})).rule == "gate-no-command"


def test_a_call_that_could_not_start_is_recorded_and_raises(sandbox: Callable[..., Sandbox]) -> None:
    heard: list[Ruling] = []
    box = sandbox()
    box.close()
    gated = GatedSandbox(box, on_ruling=heard.append)
    for way in ("run", "arun", "start", "astart"):
        with pytest.raises(ContainmentError):
            run_by(gated, way, ["true"])
    assert [(ruling.decision, ruling.result_id) for ruling in heard] == [(Decision.ALLOW, "")] * 4


def test_many_threads_at_once_share_gates_and_budget(open_box: Sandbox) -> None:
    ledger = ObservationLedger(Budget(total=100), len)
    heard: list[Ruling] = []
    gated = GatedSandbox(open_box, BudgetGate(ledger, at_least=10), ledger=ledger, on_ruling=heard.append)
    results: list[SandboxResult] = []

    def work() -> None:
        results.extend(gated.run(["echo", "123456789"]) for _ in range(6))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == len(results) == 24
    assert ledger.spent <= 100
    assert sum(result.denied for result in results) >= 24 - 10 - 3


def test_when_done_tells_once_before_and_after_the_end(open_box: Sandbox) -> None:
    heard: list[SandboxResult] = []
    handle = open_box.start(["true"])
    handle.when_done(heard.append)
    handle.when_done(heard.append)
    result = handle.wait()
    handle.when_done(heard.append)
    assert heard == [result] * 3
