"""`corral run`: judges one call and runs it in the sandbox: on a pseudo-terminal, with corral's streams, or captured."""

from __future__ import annotations

import argparse
import os
import sys

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.approver import Approver
from corral.apps.cli.arguments import BACKEND, call_arguments, call_usage, check_call, port_number
from corral.apps.cli.call import call_of, config_of, machine_of, uses_terminal
from corral.apps.cli.run_command import run_command
from corral.apps.cli.run_log import RunLog, print_violations
from corral.apps.cli.shell_state import ShellState, exported_names
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.audit.audit_log import Log
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE, Call, Verdict
from corral.model.errors import AuditError, CorralError, PolicyError
from corral.model.render_result import denial_text, exit_status, json_text, timeout_text
from corral.policy.pending_calls import PendingCall, take_pending_call
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig


def _own_port(text: str) -> int:
    if not port_number(text):
        raise argparse.ArgumentTypeError("0 is not a port")
    return int(text)


VERB = Verb(
    "run",
    "Run a command in the sandbox. Asks you first when a decision is yours.",
    examples="""\
corral run -- pytest -q
corral run --profile strict --shell 'pytest -q | tail -5'
corral run --json --timeout 5 -- make | jq .exit_code
corral run --tty -- bash
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
            "--publish PORT",
            "Publish a port of the sandbox on this machine's loopback for this run. Asks you on the terminal.",
            action="append",
            type=_own_port,
            default=[],
        ),
        argument(
            "--agent NAME", "Use this agent's profile (default: detected from the program name; `none` disables it)."
        ),
        BACKEND,
        # For the command line into which a hook rewrites a command. The guard refuses these options in an agent's own text.
        argument("--call ID", default=""),
        argument("--grant ID"),
        argument("--directory-file FILE"),
        argument("--exports"),
        argument("--try", dest="tries"),
    ),
)


def check_arguments(options: Options, extra: list[str]) -> None:
    """Require one command. A call that a hook left under --grant brings its own text."""
    if options.tty and options.json:
        raise UsageError("--tty shows the command live and --json captures it; give only one of them")
    if options.grant is None or extra or options.command is not None or options.shell is not None:
        check_call(options, extra)


def main(options: Options) -> int:
    """Run the call. The exit code is the command's, or 124 to 126 if corral ended or refused it."""
    config = judged = config_of(options)
    if _wants_grants(options, config):
        granted = _granted(options, config)
        if granted is None:
            print("corral: not run: you said no", file=sys.stderr)
            return NOT_EXECUTABLE_EXIT_CODE
        config = judged = granted
    pending = _take_pending(options, config)
    call = call_of(options) if pending is None else Call(pending.text, shell=True, cwd=options.cwd)  # noqa: S604  a record
    if options.exports:
        config = config.replace(env_allowlist={*config.env_allowlist, *exported_names(os.environ)})
    log = RunLog(Log(config, call=options.call), required=config.audit.required)
    # A call from a hook never asks here: its host has asked, and an agent may control the keys of the host's terminal.
    approver = Approver(judged, machine_of, may_ask=options.ask and not options.call and pending is None)

    def was_asked_by_host(_: Call, verdict: Verdict) -> bool:
        # The user agreed in the host, but only to the findings that the host showed.
        return pending is not None and {finding.rule for finding in verdict.findings} <= pending.asked

    on_ask = approver.answer if pending is None else was_asked_by_host
    with Sandbox(config=config, on_ask=on_ask, on_result=log.result) as box:
        try:
            result, state = (_run_in_transaction if options.tries else _run)(box, call, options)
        except AuditError:
            raise
        except CorralError as error:
            log.failure(call, error)
            raise
        if state is not None and not result.denied:
            state.write(options.directory_file, os.environ)
    if options.json:
        print(json_text(result.to_dict()))
        return exit_status(result)
    if result.denied:
        print(_denied(call, result, approver), file=sys.stderr)
    elif result.timed_out:
        print(timeout_text(config.timeout_seconds), file=sys.stderr)
    else:
        # Empty if the output was live. Holds the reason if the command could not be started.
        sys.stderr.buffer.write(result.stderr)
    print_violations(result)
    return exit_status(result)


def _wants_grants(options: Options, config: SandboxConfig) -> bool:
    """Return whether a run may get more than the policy grants: by its options, or because it starts a known agent."""
    if options.network or options.publish or options.agent is not None:
        return True
    if not options.command or options.call or options.grant:
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
    text = denial_text(call, result, terminal_of(sys.stderr, os.environ))
    return f"{text}\ncorral: could not ask you: {printable(approver.why_not)}" if approver.why_not else text


def _take_pending(options: Options, config: SandboxConfig) -> PendingCall | None:
    """Return the call that a hook stored under the id in its rewritten command. It can be taken once."""
    if options.grant is None:
        return None
    cwd = options.cwd or config.project_root
    pending = take_pending_call(options.grant, config.project_root, cwd, os.environ)
    if pending is None or options.command is not None or options.shell not in (None, pending.text):
        raise PolicyError("this project has no pending approval for this call, or it has expired. Repeat the call")
    return pending


def _run(box: Sandbox, call: Call, options: Options) -> tuple[SandboxResult, ShellState | None]:
    state = None if options.directory_file is None else ShellState(box, call, exports=options.exports)
    return run_command(box, call, options), state


def _run_in_transaction(box: Sandbox, call: Call, options: Options) -> tuple[SandboxResult, None]:
    """Run in a transaction and leave the changes pending. A hook uses this for commands that cannot be undone."""
    from corral.apps.cli.transactions import log_transaction  # noqa: PLC0415  most calls change the project itself
    from corral.transactions.transaction import keep_for_review  # noqa: PLC0415
    from corral.transactions.workspace import refuse_more  # noqa: PLC0415

    refuse_more(box.config.project_root, os.environ)
    with box.transaction() as tx:
        result = run_command(tx, call, options)
        if not result.denied:
            fields, text = keep_for_review(tx)
            log_transaction(box.config, fields)
            print(f"corral: {printable(text)}", file=sys.stderr)
    return result, None
