"""Runs the demo: an agent in a temporary repository, with gates before the sandbox, spans around it and an audit log behind it."""

from __future__ import annotations

import os
import tempfile

from corral._lib.records import Record, frozen
from corral.apps.agentdemo import repository
from corral.apps.agentdemo.model import DETERMINISTIC, open_model
from corral.apps.agentdemo.trace import Span, spans_of
from corral.apps.unguarded import state_dirs_in
from corral.audit import audit_log
from corral.audit import query as history
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._commands import ONE_STREAM
from corral.integrations.frameworks.minisweagent import CorralEnvironment
from corral.integrations.gates import (
    Budget,
    BudgetGate,
    FileStates,
    GatedSandbox,
    ObservationLedger,
    Pattern,
    Patterns,
    Recency,
    Ruling,
    ToolAllowlist,
    noted,
)
from corral.integrations.telemetry.otel import instrument, record_ruling, tool_call
from corral.model.errors import ContainmentError, CorralError
from corral.model.result import SandboxResult
from corral.policy.config import SandboxConfig
from corral.sandbox import Sandbox

try:
    from minisweagent.agents.default import DefaultAgent
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError as error:
    raise missing_extra("demo", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral.integrations.gates import ToolCall

    OnStep = Callable[["Step"], object]

AGENT = "mini-swe-agent"
TOOL = "bash"  # the only tool of mini-swe-agent
TESTS = "python3 -m unittest -q"
MIN_REFUSALS = 3
TOKENS = 4000  # of output for the model
OWNERS_TESTS = Pattern(
    "owners-tests",
    r"(?:\bsed +-i|\b(?:cp|mv|rm|tee)\b|>)[^|;&]*\btests/",
    "The tests define the correct behaviour, and only the user changes them.",
    "Change shares/split.py instead.",
    argument="command",
)


@frozen
class Step(Record):
    """A command of the agent, with its thought, the ruling of the gates, and its result."""

    number: int
    thought: str
    command: str
    ruling: Ruling
    result: SandboxResult

    def to_dict(self) -> dict[str, object]:
        """Return the step as JSON-ready data."""
        result = self.result
        ruling = {name: getattr(self.ruling, name) for name in ("gate", "rule", "reason", "instead")}
        return {
            "thought": self.thought,
            "command": self.command,
            "denied": result.denied,
            **{name: value for name, value in ruling.items() if value},
            **({} if result.denied else {"exit_code": result.exit_code, "enforcement": result.enforcement}),
            "result_id": result.id,
        }


@frozen
class Report(Record):
    """The result of the demo."""

    model: str
    ending: str
    submission: str
    steps: tuple[Step, ...]
    tests: SandboxResult
    diff: tuple[str, ...]
    spans: tuple[Span, ...]
    log: history.Report
    tokens_shown: int

    @property
    def refused(self) -> tuple[Step, ...]:
        """Return the refused steps."""
        return tuple(step for step in self.steps if step.result.denied)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return everything that is not as expected. A real model need not be refused."""
        found = {
            f"the agent ended with {self.ending or 'nothing'}": self.ending != "Submitted",
            "the tests are red": not self.tests.ok,
            "the tests were changed": any(line.startswith("+++ tests/") for line in self.diff),
            "the log is not intact": bool(self.log.problems) or self.log.lines < 2 * len(self.steps),
            f"only {len(self.refused)} calls were refused": (
                self.model == DETERMINISTIC and len(self.refused) < MIN_REFUSALS
            ),
        }
        return tuple(problem for problem, is_there in found.items() if is_there)

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-ready data."""
        return {
            "agent": AGENT,
            "model": self.model,
            "ending": self.ending,
            "submission": self.submission,
            "steps": [step.to_dict() for step in self.steps],
            "tests": {"exit_code": self.tests.exit_code, "enforcement": self.tests.enforcement},
            "diff": list(self.diff),
            "spans": [span.to_dict() for span in self.spans],
            "log": {"lines": self.log.lines, "problems": list(self.log.problems)},
            "tokens_shown": self.tokens_shown,
            "problems": list(self.problems),
        }


class _ReportingEnvironment(CorralEnvironment):
    """The environment of mini-swe-agent. Reports each command as a step. `events` receives its ruling and its result."""

    def __init__(self, box: GatedSandbox, events: list[Any], on_step: OnStep) -> None:
        super().__init__(box=box)
        self.thought = ""
        self.steps: list[Step] = []
        self._events = events
        self._on_step = on_step

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command for mini-swe-agent and return the observation unchanged."""
        self._events.clear()
        observation: dict[str, Any] = {}
        try:
            with tool_call(str(action.get("tool_call_id", ""))):
                observation = super().execute(action, cwd, timeout=timeout)
        finally:
            self._report(str(action.get("command", "")), observation)
        return observation

    def _report(self, command: str, observation: dict[str, Any]) -> None:
        found = {type(item): item for item in self._events}
        if SandboxResult not in found:
            raise ContainmentError(observation.get("exception_info", "the sandbox could not run a command"))
        step = Step(len(self.steps) + 1, self.thought, command, found[Ruling], found[SandboxResult])
        self.thought = ""
        self.steps.append(step)
        self._on_step(step)


class _Agent(DefaultAgent):  # type: ignore[misc]  # as in model.py
    """The agent of mini-swe-agent. Keeps its thought for the next step."""

    def query(self) -> dict[str, Any]:
        message: dict[str, Any] = super().query()
        self.env.thought = str(message.get("content") or "")
        return message


def run_demo(model_name: str, on_step: OnStep, *gates: Pattern) -> Report:
    """Let the agent fix the repository, report each step as it ends, and delete everything. `gates` replace OWNERS_TESTS."""
    model, settings = open_model(model_name)
    with tempfile.TemporaryDirectory(prefix="corral-demo-", dir=process_temp_dir()) as place, state_dirs_in(place):
        root = os.path.join(os.path.realpath(place), "project")
        repository.write(root)
        config = SandboxConfig(root, profile="workspace")
        events: list[Any] = []
        log, rulings = audit_log.Log(config), noted(audit_log.Log(config, event="gate"))

        def on_result(result: SandboxResult) -> None:
            events.append(result)
            log.result(result)

        def on_ruling(ruling: Ruling) -> None:
            events.append(ruling)
            rulings(ruling)
            record_ruling(ruling)

        spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(spans))
        ledger = ObservationLedger(Budget(total=TOKENS))
        chain = (
            ToolAllowlist(TOOL),
            Patterns(*(gates or (OWNERS_TESTS,))),
            Recency(FileStates(root), must_read=True),
            BudgetGate(ledger, expected=_whole_files),
        )
        with GatedSandbox(
            Sandbox(config, on_result=on_result), *chain, ledger=ledger, tool=TOOL, on_ruling=on_ruling
        ) as box:
            # The spans stay in memory and are shown to the user whose content they hold.
            instrument(box, tracers, tool_name=TOOL, capture_content=True)
            environment = _ReportingEnvironment(box, events, on_step)
            attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": AGENT}
            attributes["gen_ai.request.model"] = model_name
            with tracers.get_tracer("corral.demo").start_as_current_span(
                f"invoke_agent {AGENT}", attributes=attributes
            ):
                ended = _ended(_Agent(model, environment, **settings), model_name)
            tests = box.box.run(TESTS, shell=True)  # noqa: S604  the guard parses it
        return Report(
            model_name,
            str(ended.get("exit_status", "")),
            str(ended.get("submission", "")),
            tuple(environment.steps),
            tests,
            tuple(repository.changes(root)),
            tuple(spans_of(spans.get_finished_spans())),
            history.verify(audit_log.directory(os.environ)),
            ledger.spent,
        )


def _ended(agent: Any, model_name: str) -> dict[str, Any]:
    try:
        ended: dict[str, Any] = agent.run(repository.TASK)
    except CorralError:
        raise
    except Exception as error:  # any error of the model's service
        if model_name == DETERMINISTIC:
            raise
        message = f"the model {model_name} could not be used: {error}; --model {DETERMINISTIC} needs no network"
        raise CorralError(message) from error
    return ended


def _whole_files(call: ToolCall) -> int | None:
    """Return the number of tokens that `cat` would show, None for other commands."""
    if not str(call.arguments.get("command", "")).removeprefix(ONE_STREAM).startswith("cat "):
        return None
    return sum(os.path.getsize(path) for path in call.reads if os.path.isfile(path)) // 4
