"""`corral run`: judges one call and runs it in the sandbox: on a pseudo-terminal, with corral's streams, or captured."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.arguments import BACKEND, REPORT, call_arguments, call_usage, check_call, own_port
from corral.apps.cli.call import call_of, config_of, machine_of, uses_terminal
from corral.apps.cli.questions.approver import Approver
from corral.apps.cli.questions.held_connections import HeldConnections
from corral.apps.cli.questions.terminal_prompt import why_nobody
from corral.apps.cli.reports.workflow_commands import guard_command, harmless_json, is_wanted
from corral.apps.cli.reports.workflow_reports import report_result
from corral.apps.cli.run_command import run_command, shares_terminal
from corral.apps.cli.run_log import RunLog, print_violations
from corral.apps.cli.shell_state import ShellState, exported_names
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.audit.audit_log import Log
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE, Call, Verdict
from corral.model.errors import AuditError, CorralError
from corral.model.grant import HOST, Yes
from corral.model.render_grant import allow_line, refusal_text
from corral.model.render_result import denial_text, exit_status, json_text, timeout_text
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.result import SandboxResult
    from corral.policy.answers.pending_calls import PendingCall
    from corral.policy.config import SandboxConfig


VERB = Verb(
    "run",
    "Run a command in the sandbox. Asks you first when a decision is yours.",
    examples="""\
corral run -- pytest -q
corral run --profile strict --shell 'pytest -q | tail -5'
corral run --json --timeout 5 -- make | jq .exit_code
corral run --tty -- bash
corral run --background --publish 3000 -- npm run dev
""",
    notes="""\
The workspace profile runs only where every layer of containment is available. The strict profile runs with the layers
that are available. The JSON result names them in "enforcement" and "missing_layers".

On a terminal, the command gets a pseudo-terminal of its own, shown in yours: colours, job control, Ctrl-C and Ctrl-Z
work, and there is no time limit unless you set --timeout. -t always creates a pseudo-terminal, -T never does. Without
one, the command uses corral's stdin, stdout and stderr. With --json, corral captures the output up to a limit and
prints one JSON object when the command has ended.
""",
    exit_codes="the command's own; 126 denied, 124 timed out, 125 corral itself failed",
    usage=call_usage("run"),
    command_after="",
    arguments=(
        *call_arguments(on_terminal=True),
        argument(
            "-t --tty",
            "Give the command a pseudo-terminal (default: only if corral itself runs on a terminal).",
            default=None,
        ),
        argument("-T --no-tty", "Give it no pseudo-terminal.", dest="tty", action="store_false"),
        argument("--no-ask", "Never ask; refuse what corral would ask about.", dest="ask", action="store_false"),
        argument(
            "--network HOST:PORT",
            "Grant a network destination for this run. Asks you on the terminal.",
            action="append",
            default=[],
        ),
        argument(
            "--local PORT",
            "Let commands reach a port of this machine's loopback for this run. Asks you on the terminal.",
            action="append",
            type=own_port,
            default=[],
        ),
        argument(
            "--publish PORT",
            "Publish a port of the sandbox on this machine's loopback for this run. Asks you on the terminal.",
            action="append",
            type=own_port,
            default=[],
        ),
        argument(
            "--agent NAME", "Use this agent's profile (default: detected from the program name; `none` disables it)."
        ),
        BACKEND,
        REPORT,
        argument("--background", "Start the command in this project's session, and do not wait for its end."),
        # For a command that a hook rewrote: the id of its entry in the log. corral then asks nobody here.
        argument("--call ID", default=""),
    ),
)


def check_arguments(options: Options, extra: list[str]) -> None:
    """Require one command."""
    if options.tty and options.json:
        raise UsageError("--tty shows the command live and --json captures it; give only one of them")
    if options.background and (options.tty or options.network or options.local or options.agent is not None):
        raise UsageError("a background command can have neither a terminal nor openings of its own, except --publish")
    check_call(options, extra)


def main(options: Options) -> int:
    """Run the call. The exit code is the command's, or 124 to 126 if corral ended or refused it."""
    if options.background:
        from corral.apps.cli.session.start_background import start_in_background  # noqa: PLC0415  few runs

        return start_in_background(options)
    from corral.apps.cli.session.own_session import run_in_own_session  # noqa: PLC0415  a rewritten command does without

    # A report needs what a command prints after a line that turns the runner's commands off.
    status = None if is_wanted(options.report, os.environ) else run_in_own_session(options)
    return run_call(options) if status is None else status


def run_call(options: Options, pending: PendingCall | None = None, state_file: str = "") -> int:
    """Run a call. `pending` is a host's call; `state_file` is for the state that the host's shell then takes over."""
    config = judged = own = config_of(options)
    if _wants_grants(options, config):
        granted = _granted(options, config)
        if granted is None:
            print("corral: not run: you said no", file=sys.stderr)
            return NOT_EXECUTABLE_EXIT_CODE
        config = judged = granted
    call = call_of(options)
    if pending is not None and pending.keeps == "exports":
        config = config.replace(output=config.output.replace(exported=exported_names(os.environ)))
    log = RunLog(Log(config, call=options.call), required=config.audit.required)
    # A call from a hook never asks here: its host has asked, and an agent may control the keys of the host's terminal.
    may_ask = options.ask and not options.call
    approver = Approver(judged, machine_of, may_ask=may_ask, host="hook" if options.call else "run")

    def was_asked_by_host(_: Call, verdict: Verdict) -> bool | Yes:
        # The user agreed in the host, but only to the findings and openings that the host showed.
        if pending is None or not {grant.opening for grant in verdict.grants} <= pending.grants:
            return False
        return Yes(HOST) if {finding.rule for finding in verdict.findings} <= pending.asked else False

    on_ask = was_asked_by_host if pending is not None and pending.asked else approver.answer
    held = HeldConnections(
        call,
        judged,
        # Not in a run with openings of its own: `corral allow` would not know them.
        is_known=judged == own,
        asks_here=may_ask and not shares_terminal(options) and not why_nobody(os.environ),
        is_shown=uses_terminal(options),
        host=approver.host,
    )
    if config.containment.publish and config.containment.network != "on":
        from corral.apps.cli import run_grants  # noqa: PLC0415  few policies publish ports

        config = run_grants.without_taken_ports(config, options.publish)
        _show_addresses(options)
    reports = not options.call and is_wanted(options.report, os.environ)
    guard = guard_command() if reports and not options.json else None
    with Sandbox(config=config, on_ask=on_ask, on_result=log.result, on_hold=held.on_hold) as box:
        _instrument(box)
        try:
            if pending is not None and pending.in_transaction:
                result, state = _run_in_transaction(box, call, options, held), None
            else:
                exports = pending.keeps == "exports" if pending is not None and pending.keeps else None
                state = None if exports is None else ShellState(box, call, exports=exports)
                result = run_command(box, call, options, held.ask_waiting)
        except AuditError:
            raise
        except CorralError as error:
            log.failure(call, error)
            raise
        if state is not None and not result.denied:
            state.write(state_file, os.environ)
    refused_later = held.save_refusal(result)
    if options.json:
        print(harmless_json(json_text(result.to_dict())) if reports else json_text(result.to_dict()))
        if approver.refusal or refused_later:
            print(f"corral: {allow_line(approver.refusal or refused_later)}", file=sys.stderr)
        if reports:
            report_result(result, guard)
        return exit_status(result)
    if result.denied:
        print(_denied(call, result, approver), file=sys.stderr)
    elif result.timed_out:
        print(timeout_text(config.timeout_seconds), file=sys.stderr)
    else:
        # Empty if the output was live. Holds the reason if the command could not be started.
        sys.stderr.buffer.write(result.stderr)
    print_violations(result)
    if result.grants and exit_status(result) and not result.denied:
        _show_unreached_ports(judged, pending)
    if refused_later:
        print(f"corral: {allow_line(refused_later)}", file=sys.stderr)
    if reports:
        report_result(result, guard)
    return exit_status(result)


def _instrument(box: Sandbox) -> None:
    """Report the call to OpenTelemetry, if its own launcher (`opentelemetry-instrument`) has started corral."""
    if "opentelemetry.sdk" in sys.modules:
        from corral.integrations.telemetry.otel import instrument  # noqa: PLC0415  loaded only under the launcher

        instrument(box)


def _show_addresses(options: Options) -> None:
    if not options.json:
        for port in dict.fromkeys(options.publish):
            print(f"corral: port {port} of the sandbox is at http://127.0.0.1:{port}", file=sys.stderr)


def _show_unreached_ports(config: SandboxConfig, pending: PendingCall | None) -> None:
    from corral.apps.cli.session.unreached_ports import unreached_ports_text  # noqa: PLC0415  few runs have openings

    if text := unreached_ports_text(config, pending):
        print(f"corral: {text}", file=sys.stderr)


def _wants_grants(options: Options, config: SandboxConfig) -> bool:
    """Return whether a run may get more than the policy grants: by its options, or because it starts a known agent."""
    if options.network or options.local or options.publish or options.agent is not None:
        return True
    if not options.command or options.call:
        return False
    return bool(config.containment.agents) or uses_terminal(options)


def _granted(options: Options, config: SandboxConfig) -> SandboxConfig | None:
    from corral.apps.cli import run_agent  # noqa: PLC0415  most runs need no more than the policy grants

    agent = run_agent.agent_of(options, config)
    granted = run_agent.config_with_grants(options, config, agent)
    if granted is None or agent is None:
        return granted
    variables = run_agent.variables_of(agent, os.environ)
    os.environ.update(variables)
    return granted.replace(env_allowlist={*granted.env_allowlist, *variables})


def _denied(call: Call, result: SandboxResult, approver: Approver) -> str:
    if approver.was_asked:
        # The prompt has just shown everything else.
        why = "you said no" if result.reason == result.verdict.reason else printable(result.reason)
        return f"corral: not run: {why}"
    if approver.declined:
        return f"corral: {printable(approver.declined)}"
    if approver.refusal and result.verdict.grants:
        return f"corral: {refusal_text(result.verdict, approver.refusal)}"
    text = denial_text(call, result, terminal_of(sys.stderr, os.environ))
    if approver.why_not:
        text = f"{text}\ncorral: could not ask you: {printable(approver.why_not)}"
    return f"{text}\n{allow_line(approver.refusal)}" if approver.refusal else text


def _run_in_transaction(box: Sandbox, call: Call, options: Options, held: HeldConnections) -> SandboxResult:
    """Run in a transaction and leave the changes pending. A hook uses this for commands that cannot be undone."""
    from corral.apps.cli.transactions import log_transaction  # noqa: PLC0415  most calls change the project itself
    from corral.transactions.transaction import keep_for_review  # noqa: PLC0415
    from corral.transactions.workspace import refuse_more  # noqa: PLC0415

    refuse_more(box.config.project_root, os.environ)
    with box.transaction() as tx:
        result = run_command(tx, call, options, held.ask_waiting)
        if not result.denied:
            fields, text = keep_for_review(tx)
            log_transaction(box.config, fields)
            print(f"corral: {printable(text)}", file=sys.stderr)
    return result
