"""Starts wardens by bubblewrap, which makes the namespaces, the tree and the filter. The warden inside adds Landlock.

corral tries the whole sequence before it claims a layer, and each warden checks the layers again from within.
"""

from __future__ import annotations

import os
import stat
import sys
from errno import EIO
from fcntl import F_DUPFD_CLOEXEC, fcntl

from corral.containment import protocol
from corral.containment.backend import UnusableError
from corral.containment.kernel import capabilities, namespaces, seccomp
from corral.containment.kernel.layer import KEEPER
from corral.containment.layers import LAYERS
from corral.containment.plan import BubblewrapStart
from corral.containment.processes import bubblewrap_args
from corral.containment.processes.bubblewrap_init import FIRST_COUNTER, LIVES, METER, OUTLET, PLAN, SOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Collection, Mapping, Sequence
    from typing import NoReturn

    from corral.containment.kernel.cgroups import Group
    from corral.containment.kernel.limit_monitor import LimitMonitor
    from corral.containment.plan import Plan, WardenPlan

OLDEST = (0, 8, 0)  # the oldest version that the tests have run with
# Never PATH: a command could write there.
_PLACES = ("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin")
_KEPT = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETPCAP")  # the warden drops the last one
_ARGUMENTS, _FILTER, _INFO = 7, 8, 9  # the descriptors for bwrap, above those of the warden
_FIRST_FREE = 20
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from corral.containment.processes.bubblewrap_init import main; main()"
)
_SETTINGS = {
    "/proc/sys/user/max_user_namespaces": ("0", "raise it: sysctl user.max_user_namespaces=15000"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "allow them: sysctl kernel.unprivileged_userns_clone=1"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor allows them to named programs only: install its profile for bwrap (bwrap-userns-restrict)",
    ),
}


class Bubblewrap:
    """Starts wardens by the program bwrap. Making it builds the whole tree once, and finds out which layers hold."""

    def __init__(self, path: str, plan: Plan, known: Mapping[str, tuple[int, int]], available: Collection[str]) -> None:
        self.path = path
        self.python = (sys.executable, "-I", "-S", "-c")
        # In the keeper's own user and network namespaces, where it can make them: then all commands share one loopback.
        self.is_nested = {"user", "mount", "net"} <= {*available}
        if not self.is_nested and os.geteuid() != 0 and os.stat(path).st_mode & stat.S_ISUID:
            raise UnusableError(
                f"{path} is setuid root, and corral runs no command through such a program. "
                f"Let it work as the user: chmod u-s {path}. {_advice()}"
            )
        bubblewrap_args.prepare(plan.steps, plan.scratch, known)
        supported = {name for name, layer in LAYERS.items() if layer.is_supported()}
        for self.layers in (supported, supported - {"proc"}):
            # Around a program that does nothing.
            failed, output = _run((path, *self._arguments(plan), "--", *self.python, ""), nested=self.is_nested)
            if not failed:
                return
        raise UnusableError(f"bubblewrap cannot make a sandbox here: {output.rstrip('.')}. {_advice()}")

    def _arguments(self, plan: Plan) -> list[str]:
        found = ["--new-session", "--clearenv"]
        for name, layer in LAYERS.items():
            is_wanted = name in self.layers and name in plan.layers and not (self.is_nested and layer.stage == KEEPER)
            if is_wanted and not isinstance(layer.bubblewrap, str):
                found += layer.bubblewrap
        found += [] if "proc" in self.layers else ["--ro-bind", "/proc", "/proc"]
        if self.is_nested and os.geteuid() == 0:
            for name in _KEPT:
                found += ["--cap-add", name]
        return found + bubblewrap_args.arguments(plan.steps, plan.scratch)

    def start(
        self,
        ours: socket,
        lives: int,
        monitor: LimitMonitor,
        plan: WardenPlan,
        *,
        group: Group | None,
        is_first: bool,
        outlet: int = -1,
    ) -> tuple[int, int, int]:
        """Start a warden; return its pid, its pidfd, and the pid of bwrap, which is its parent and ends with it."""
        words = self._arguments(plan.host)
        counters = dict(enumerate(monitor.named.items(), FIRST_COUNTER))
        plan = plan.replace(expected=bubblewrap_args.expected(plan.host.steps, plan.known))
        listed = tuple((number, name, counter.word) for number, (name, counter) in counters.items())
        start = BubblewrapStart(plan, is_first, outlet >= 0, listed)
        passed = {SOCK: ours.fileno(), LIVES: lives, PLAN: protocol.sealed("plan", start.pack())}
        passed |= {number: counter.descriptor for number, (_, counter) in counters.items()}
        passed |= {METER: monitor.meter.fileno()} if monitor.meter else {}
        passed |= {OUTLET: outlet} if outlet >= 0 else {}
        if "seccomp" in plan.layers:
            passed[_FILTER] = protocol.sealed("filter", seccomp.packed(seccomp.program_for(plan, guarded=(1,))))
            words += ["--seccomp", str(_FILTER)]
        info, passed[_INFO] = os.pipe()
        words += ["--info-fd", str(_INFO)]
        passed[_ARGUMENTS] = protocol.sealed("arguments", os.fsencode("\0".join(words)) + b"\0")
        wait, go = os.pipe()
        try:
            child = os.fork()
            if child == 0:
                self._become(wait, passed)
            os.close(passed[_INFO])
            if group:
                # Before it has children, which would not be counted.
                group.take(child)
            os.write(go, b"-")
            return self._first_process(info, child)
        finally:
            protocol.close_all((info, wait, go, *(passed[n] for n in (PLAN, _FILTER, _ARGUMENTS) if n in passed)))

    def _first_process(self, pipe: int, child: int) -> tuple[int, int, int]:
        info = b""
        while part := os.read(pipe, 4096):
            info += part
            if b"}" in part:
                break
        _, known, rest = info.partition(b'"child-pid":')
        if not known:
            raise OSError(EIO, "bubblewrap exited before it started a process")
        pid = int(rest.partition(b",")[0].strip(b" \n}"))
        return pid, os.pidfd_open(pid), child

    def _become(self, wait: int, passed: dict[int, int]) -> NoReturn:
        try:
            os.read(wait, 1)
            # Here, because bwrap's children inherit both, and inside the filter refuses keyctl().
            capabilities.join_empty_keyring()
            capabilities.disable_core_dumps()
            high = {number: fcntl(given, F_DUPFD_CLOEXEC, _FIRST_FREE) for number, given in passed.items()}
            for number, descriptor in high.items():
                os.dup2(descriptor, number)
            package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
            argv = (self.path, "--args", str(_ARGUMENTS), "--", *self.python, _PROGRAM, package)
            os.execve(self.path, argv, {})  # noqa: S606  found in the system's directories
        except BaseException:  # noqa: BLE001  the last frame of this process: report to the keeper's stderr and exit
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(127)


def find() -> str:
    """Return the path of bwrap, if it is installed and new enough."""
    path = next((f"{place}/bwrap" for place in _PLACES if os.access(f"{place}/bwrap", os.X_OK)), "")
    if path:
        version = _version(_run((path, "--version"))[1])
        if version >= OLDEST:
            return path
        raise UnusableError(
            f"{path} is version {_dotted(version)}, and corral needs {_dotted(OLDEST)}; "
            "install a newer package bubblewrap, or choose containment.backend 'warden'"
        )
    raise UnusableError(
        f"bubblewrap is not installed: there is no bwrap in {', '.join(_PLACES)}. Install the package bubblewrap "
        "(apt install bubblewrap, dnf install bubblewrap), or choose containment.backend 'warden', which needs no tool"
    )


def _version(said: str) -> tuple[int, ...]:
    words = said.split()
    if len(words) < 2 or words[0] != "bubblewrap" or not words[1].replace(".", "").isdigit():
        raise UnusableError(f"bwrap --version prints {said!r}, which has no version; install the package bubblewrap")
    return tuple(int(part) for part in words[1].split("."))


def _dotted(version: Sequence[int]) -> str:
    return ".".join(str(part) for part in version)


def _run(argv: tuple[str, ...], *, nested: bool = False) -> tuple[int, str]:
    """Run a program, in its own user namespace if `nested`; return its exit code and the last line of its output."""
    output = os.memfd_create("said", os.MFD_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            if nested:
                namespaces.enter_user()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execve(argv[0], argv, {})  # noqa: S606  found in the system's directories
        finally:
            os._exit(127)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    last_line = os.pread(output, 1 << 16, 0).decode("utf-8", "replace").strip().rpartition("\n")[2]
    os.close(output)
    return status, last_line or f"it exited with {status}"


def _advice() -> str:
    """Return which setting of the machine prevents user namespaces, and what to do about it."""
    for path, (value, remedy) in _SETTINGS.items():
        try:
            with open(path, encoding="utf-8") as file:
                if file.read().strip() == value:
                    return f"{path} is {value}, so bwrap cannot make user namespaces; {remedy}"
        except OSError:
            continue
    return (
        "In a container, allow what the backend 'warden' needs (`corral doctor --emit docker`), and choose it instead of "
        "'bubblewrap'; with accept_partial it also runs without"
    )
