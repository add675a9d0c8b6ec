"""Runs the calls of one session in one long-lived sandbox, as `corral go` and `corral run` run each in a sandbox of its own.

Only a call that needs neither a question nor an opening runs here. For any other, `start` returns None before anything has run:
the client then runs it without the session.
"""

from __future__ import annotations

import os
import stat
from _thread import RLock

from corral.apps.cli.arguments import parse
from corral.apps.cli.call import call_of, config_of
from corral.apps.cli.questions.held_connections import HeldConnections
from corral.apps.cli.run_log import RunLog
from corral.apps.cli.session.command import ClientCommand, JudgedCall
from corral.apps.cli.session.environment import client_environment, current_environment
from corral.apps.cli.session.kept_process import KeptProcess
from corral.apps.cli.session.published_ports import PublishedPorts
from corral.apps.cli.shell_state import exported_names
from corral.audit.audit_log import Log
from corral.containment.network.listening_ports import listening_ports
from corral.containment.network.proxy import PORT
from corral.model.call import Decision
from corral.model.errors import CorralError
from corral.model.grant import HOST, Yes
from corral.policy.answers.pending_calls import host_above, is_id, read_pending_call, take_pending_call
from corral.policy.user_dirs import apply_directory_options, user_directory
from corral.sandbox import Sandbox
from corral.sessions import protocol
from corral.sessions.socket_paths import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from typing import Any

    from corral.model.call import Call, Verdict
    from corral.policy.answers.pending_calls import PendingCall
    from corral.policy.config import SandboxConfig

    Process = ClientCommand | KeptProcess

MAX_KEPT = 16  # processes that stay and run, in one session
MAX_ENDED = 16  # of them that have ended and whose output can still be read
_NEW_POLICY = "the policy has changed"
_LOST_MOUNT = "a protected file was removed, and the process could have made another one"
MAX_WAIT_SECONDS = 10.0  # of a client for new output


def has_mounts(box: Sandbox) -> bool:
    """Return whether commands of a sandbox have mounts, without which there are no sessions.

    What a command changes in protected files is restored at its end, and a session's processes have no end.
    """
    warden = box._pool.acquire()
    missing = warden.missing_layers
    box._pool.release(warden)
    return "mount" not in missing


class SessionCalls:
    """The sandbox of one session, and the commands that run in it."""

    def __init__(self, root: str, session: str) -> None:
        self.root, self.session = root, session
        self._places = places(os.environ)
        self._lock = RLock()  # for the sandboxes and their processes
        self._box: Sandbox | None = None
        self._has_mounts = True  # whether commands of the sandbox do
        self._config: SandboxConfig | None = None
        self._old: list[Sandbox] = []  # with another policy; closed once their commands have ended
        self._running: dict[Sandbox, set[Process]] = {}
        self._kept: dict[str, KeptProcess] = {}
        self._published = PublishedPorts()
        self._policy_ports: tuple[int, ...] = ()
        self._umask = _umask()
        self._owner: tuple[int, int] | None = None
        self._asked: PendingCall | None = None
        self._options = parse(["run", "--root", root, "--shell="])

    def owner(self) -> tuple[int, int] | None:
        """Return pid and start time of the agent's host, once a call of it has come."""
        return self._owner

    def keeps_running(self) -> bool:
        """Return whether a process runs that no client waits for."""
        return any(process.is_running for process in list(self._kept.values()))

    def answer(self, message: tuple[Any, ...], client: int) -> tuple[Any, ...]:
        """Answer a hook or a question about the session, or start, feed or end a process that stays."""
        kind, *rest = message
        if kind == protocol.HOOK:
            from corral.apps.cli.session.hook_answers import answer_hook  # noqa: PLC0415  only an agent's session needs it

            with client_environment(rest[-1]):
                return answer_hook(message, client, self._places)
        if kind == protocol.START:
            return self._start_kept(*rest)
        if kind == protocol.LIST:
            return (protocol.FACTS, self._facts())
        if kind == protocol.PUBLISH:
            return self._publish(*rest)
        process = self._process(str(rest[0])) if rest else None
        if process is None:
            return (protocol.REFUSED, "no process of this session has the id")
        if kind == protocol.STOP:
            process.kill()
            return (protocol.FACTS, {})
        if not isinstance(process, KeptProcess):
            return (protocol.REFUSED, "its output goes to the program that waits for it")
        if kind == protocol.LOGS:
            position, seconds = rest[1:]
            data, end, dropped = process.output.read(int(position), min(float(seconds), MAX_WAIT_SECONDS))
            # In this order: what is printed before the end is read first.
            return (protocol.FACTS, {"data": data, "position": end, "dropped": dropped, **process.facts()})
        if kind == protocol.INPUT:
            return (protocol.FACTS, {"taken": process.write(rest[1])})
        return (protocol.REFUSED, "this session does not know the request")

    def _facts(self) -> dict[str, object]:
        with self._lock:
            running = [each for some in self._running.values() for each in some]
            ended = [each for each in self._kept.values() if each not in running]
            facts = sorted((each.facts() for each in (*running, *ended)), key=lambda one: str(one["started_at"]))
        return {
            "root": self.root,
            "session": self.session,
            "pid": os.getpid(),
            "processes": facts,
            "ports": self._ports(),
            "published": self._published.facts(),
        }

    def _ports(self) -> list[int]:
        """Return the ports of the session's loopback on which processes listen, without those of corral's proxy."""
        box = self._box
        keeper = None if box is None else box._pool.keeper_pid()
        if box is None or keeper is None or box.config.containment.network == "on":
            return []  # without a network of its own, they would be those of this machine
        return [port for port in listening_ports(keeper) if port not in (PORT, *box.config.containment.local_ports)]

    def _publish(self, port: int, at: int, ends: bool) -> tuple[Any, ...]:
        """Publish a port, or end that. Only the user's own processes can ask."""
        try:
            if ends:
                return (protocol.FACTS, {"was_published": self._published.remove(int(port))})
            with client_environment(current_environment()):
                box = self._box or self._box_for(config_of(self._options))
                place, taken = self._published.add(box, int(port), int(at))
        except (CorralError, OSError) as error:
            return (protocol.REFUSED, str(error))
        return (protocol.FACTS, {"port": port, "at": place, "taken": taken})

    def _process(self, name: str) -> Process | None:
        with self._lock:
            if name in self._kept:
                return self._kept[name]
            return next((each for some in self._running.values() for each in some if each.id == name), None)

    def start(self, message: tuple[Any, ...], client: int, streams: list[int]) -> ClientCommand | None:
        """Start a call, if it can run in the session. Its client has these three streams."""
        kind, *rest, environ, umask = message
        with client_environment(environ):
            if kind == protocol.RUN_PENDING:
                return self._start_pending(*rest, umask=umask, client=client, streams=streams)
            try:
                judged = self._judge_own(rest[0], umask)
            except (CorralError, OSError):
                # The client meets the same error without the session, and says so.
                return None
            if judged is None:
                return None
            command = ClientCommand(*judged, self.ended)
            self._add(command)
            command.start(streams)
            self._follow()
            return command

    def _start_pending(
        self, name: str, text: bytes | None, *, umask: int, client: int, streams: list[int]
    ) -> ClientCommand | None:
        """Start a call that a hook stored under an id."""
        call = read_pending_call(name, os.environ) if is_id(name) else None
        host = None if call is None else host_above(call, client)
        if call is None or host is None or (text is not None and text != call.text.encode()):
            return None
        if call.in_transaction or call.root != self.root:
            return None
        if call.directories:
            apply_directory_options(list(call.directories), os.environ)
        if not self._has_attributes(umask):
            return None
        try:
            where = {"root": call.root, "cwd": call.cwd, "call": call.log_id, "timeout": 0.0}
            judged = self._judge(_with(self._options, **where, shell=call.text), call)
            # Of several clients with one id, one gets the call.
            if judged is None or take_pending_call(name, os.environ) is None:
                return None
        except (CorralError, OSError):
            # The client meets the same error without the session, and says so.
            return None
        self._owner = self._owner or host
        command = ClientCommand(*judged, self.ended)
        self._add(command)
        command.start(streams, f"{user_directory('state', os.environ)}/pending/{name}")
        self._follow()
        return command

    def _judge_own(self, wanted: Mapping[str, Any], umask: int) -> tuple[Sandbox, JudgedCall] | None:
        """Judge a call that the user's own `corral run` asks for."""
        if not self._has_attributes(umask):
            return None
        names = ("shell", "command", "cwd", "timeout")
        return self._judge(_with(self._options, root=self.root, **{name: wanted.get(name) for name in names}))

    def _start_kept(self, wanted: Mapping[str, Any], environ: dict[bytes, bytes], umask: int) -> tuple[Any, ...]:
        with client_environment(environ):
            if sum(each.is_running for each in self._kept.values()) >= MAX_KEPT:
                return (protocol.REFUSED, f"{MAX_KEPT} processes run in the background already; end one: corral stop")
            try:
                judged = self._judge_own(wanted, umask)
            except (CorralError, OSError) as error:
                return (protocol.REFUSED, str(error))
            if judged is None:
                return (protocol.NOT_HERE,)
            process = KeptProcess(*judged, self)
            self._add(process)
            with self._lock:
                self._kept[process.id] = process
                for old in [name for name, each in self._kept.items() if not each.is_running][:-MAX_ENDED]:
                    del self._kept[old]
            process.start()
            self._follow()
            return (protocol.STARTED, process.id)

    def _has_attributes(self, umask: object) -> bool:
        """Return whether the client has the same places of files, and the same umask, as the session."""
        if self._box is None and isinstance(umask, int):
            # Commands get that of the keeper, which starts with the first one.
            self._umask = stat.S_IMODE(umask)
            os.umask(self._umask)
        return umask == self._umask and places(os.environ) == self._places

    def _judge(self, options: Namespace, pending: PendingCall | None = None) -> tuple[Sandbox, JudgedCall] | None:
        """Judge a call. Return it with its sandbox; None if it cannot run in the session."""
        config, call = config_of(options), call_of(options)
        keeps = "" if pending is None else pending.keeps
        exported = exported_names(os.environ) if keeps == "exports" else []
        box = self._box_for(config)
        if not self._has_mounts:
            return None
        self._asked = pending
        verdict = box.check(call.argv, shell=call.shell, cwd=call.cwd)
        if verdict.decision != Decision.ALLOW and not self._was_asked(call, verdict):
            return None
        if verdict.grants or box._runner._signature(call):
            return None
        held = HeldConnections(call, config, is_known=True, asks_here=False, is_shown=False, host="hook")
        if held.on_hold is not None:
            return None
        warnings: list[str] = []
        log = RunLog(Log(config, call=options.call), required=config.audit.required, warn=warnings.append)
        return box, JudgedCall(call, config, log, warnings, held, keeps, tuple(exported))

    def _was_asked(self, _: Call, verdict: Verdict) -> bool | Yes:
        # The user agreed in the host, but only to the findings that the host showed.
        asked = self._asked
        if asked is None or verdict.decision != Decision.ASK or verdict.grants:
            return False
        return Yes(HOST) if {finding.rule for finding in verdict.findings} <= asked.asked else False

    def _box_for(self, config: SandboxConfig) -> Sandbox:
        """Return the sandbox under this policy. If the policy has changed, new commands get a new one."""
        # Published ports stay when the sandbox is replaced.
        own = config.replace(timeout_seconds=None, publish=())
        self._policy_ports = tuple(config.publish)
        box = self._box
        if box is not None and own == self._config and not self._is_outdated(box):
            return box
        why = _NEW_POLICY if own != self._config else _LOST_MOUNT
        self._config = own
        self._box = made = Sandbox(own, on_ask=self._was_asked)
        self._has_mounts = has_mounts(made)
        if box is not None:
            with self._lock:
                self._old.append(box)
                for process in [each for each in self._kept.values() if each.box is box and each.is_running]:
                    # It is judged again there. What it was allowed before may be refused now.
                    process.move(made, why)
                self._close_old()
        return made

    def _is_outdated(self, box: Sandbox) -> bool:
        """Return whether a protected path has lost its mount while commands run, and cannot get it back there."""
        if not self._running.get(box):
            return False
        return bool(box._holding.project_error() or (box._holding.replaced() and self._unrepaired(box)))

    def _unrepaired(self, box: Sandbox) -> str:
        with client_environment(current_environment()):
            return box._state.renew(in_transaction=False)

    def look(self) -> None:
        """Have protected paths that the user has replaced made read-only again for the commands that run."""
        with self._lock:
            boxes = [box for box, running in self._running.items() if running]
        for box in boxes:
            if box._holding.replaced():
                self._unrepaired(box)
        self._follow()

    def _follow(self) -> None:
        """Have the ports published in the present sandbox."""
        box = self._box
        if (
            box is not None
            and box._pool.keeper_pid() is not None
            and (self._policy_ports or not self._published.is_empty)
        ):
            self._published.follow(box, self._policy_ports)

    def _add(self, process: Process) -> None:
        with self._lock:
            taken = {each.id for some in self._running.values() for each in some} | set(self._kept)
            while not process.id or process.id in taken:
                process.id = os.urandom(2).hex()
            self._running.setdefault(process.box, set()).add(process)

    def ended(self, process: Process) -> None:
        """Forget a process that has ended."""
        with self._lock:
            self._running.get(process.box, set()).discard(process)
            self._close_old()

    def moved(self, process: KeptProcess, box: Sandbox) -> None:
        """Note that a process was ended, and starts again in another sandbox."""
        with self._lock:
            self._running.get(process.box, set()).discard(process)
            self._running.setdefault(box, set()).add(process)
            process.box = box
            self._close_old()

    def _close_old(self) -> None:
        for box in [each for each in self._old if not self._running.get(each)]:
            self._old.remove(box)
            self._running.pop(box, None)
            box.close()

    def close(self) -> None:
        """End everything."""
        self._published.close()
        with self._lock:
            for box in (*self._old, *([] if self._box is None else [self._box])):
                box.close()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _with(options: Namespace, **changes: object) -> Namespace:
    copied = type(options)(**vars(options))
    vars(copied).update(changes)
    return copied
