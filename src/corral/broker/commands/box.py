"""Runs a program of the user's in a second sandbox, which has the program's credentials and nothing of the project.

The broker starts this module as a process of its own, which ends with the broker. The process lends its streams to the program.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys

from corral._lib.records import Record, frozen
from corral.containment.kernel.process_tree import set_parent_death_signal
from corral.guard.rules.loader import parse_profile
from corral.model.call import Call, Launch, Verdict
from corral.model.errors import ContainmentError, CorralError
from corral.policy.config import Containment, Limits, SandboxConfig
from corral.policy.path_grants import BOX_PROFILE
from corral.runtime import dispatch
from corral.runtime.launch import plan_launch
from corral.runtime.run_options import RunOptions
from corral.runtime.runner import open_runner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

REFUSED_STATUS = 126
_MEMORY_BYTES = 4 << 30
_PROCESSES = 512
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from corral.broker.commands.box import main; main()"
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


@frozen
class Box(Record):
    """The view of the program: its empty directory, its credentials, and its destinations."""

    directory: str
    credentials: tuple[str, ...] = ()
    network: str | tuple[str, ...] = "off"
    hosts: tuple[str, ...] = ()
    backend: str = "auto"
    accept_partial: bool = False


def launcher(argv: Sequence[str], environ: Mapping[str, str], box: Box | None) -> tuple[str, ...]:
    """Return the words that start a program by its path, in a box or else directly. It ends when this process ends.

    The words hold no credential: every user of the machine can read them.
    """
    python = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # there since 3.3
    package_parent = os.path.abspath(__file__).removesuffix("/corral/broker/commands/box.py")
    told = {
        "parent": os.getpid(),
        "argv": list(argv),
        "variables": sorted(environ),
        "box": None if box is None else box.as_dict(),
    }
    return python, "-I", "-S", "-c", _PROGRAM, package_parent, json.dumps(told)


def box_config(box: Box, variables: Sequence[str]) -> SandboxConfig:
    """Return the config of a box. Its profile allows no call: the box starts its program itself, with words that a service checked."""
    return SandboxConfig(
        box.directory,
        timeout_seconds=None,
        profile=parse_profile(BOX_PROFILE, {"needs_containment": True}),
        env_allowlist=tuple(variables),
        containment=Containment(
            backend=box.backend,
            network=box.network,
            hosts=box.hosts,
            credentials=box.credentials,
            project="read-only",
            accept_partial=box.accept_partial,
            ptrace=False,
        ),
        limits=Limits(memory_bytes=_MEMORY_BYTES, processes=_PROCESSES),
    )


def main() -> None:
    """Run the program that the broker names, and exit with its status."""
    told = json.loads(sys.argv[2])
    # Against a broker that is killed: nothing else would end the program.
    set_parent_death_signal(signal.SIGTERM)
    broker = os.pidfd_open(told["parent"])
    if os.getppid() != told["parent"]:
        sys.exit(REFUSED_STATUS)
    if told["box"] is None:
        sys.exit(_run_unboxed(told["argv"], broker))
    for number in _ENDING:
        signal.signal(number, _end)
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in told["box"].items()
    }
    try:
        status = _run(Box(**fields), told["argv"], told["variables"])
    except (CorralError, OSError) as error:
        print(f"corral: {error}", file=sys.stderr)
        status = REFUSED_STATUS
    sys.exit(status)


def _run_unboxed(argv: list[str], broker: int) -> int:
    """Run a program in this process group until it ends, and return its status. If the broker ends first, kill the whole group."""
    for number in _ENDING:
        # The program gets the signals too.
        signal.signal(number, signal.SIG_IGN)
    pid = os.posix_spawn(argv[0], argv, os.environ, setsigdef=(*_ENDING, signal.SIGPIPE, signal.SIGXFSZ))
    program = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(program, select.POLLIN)
    poller.register(broker, select.POLLIN)
    if program not in dict(poller.poll()):
        os.killpg(0, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status


def _end(number: int, _frame: object) -> None:
    # A second signal must not interrupt the end of the sandbox.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _run(box: Box, argv: list[str], variables: list[str]) -> int:
    if box.backend == "none":
        raise ContainmentError("a program with credentials only runs confined, and backend is 'none'")
    config = box_config(box, variables)
    runner = open_runner(config)
    try:
        warden = runner.pool.acquire()
        runner.state.admit(warden, config)
        options = RunOptions(Call(tuple(argv)), inherit_stdio=True)
        launch = plan_launch(options, config, runner.state.look()[0])
        if not isinstance(launch, Launch):
            raise ContainmentError(launch.message)
        return dispatch.start(runner.pool, runner.context, launch, options, Verdict(), warden=warden).wait().exit_code
    finally:
        runner.state.close()
