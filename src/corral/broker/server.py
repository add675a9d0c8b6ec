"""Serves the stubs of one sandbox: a socket, and a service for each program. It ends with the call.

Started by the host, in the user's namespaces. The sandbox sees its directory read-only at /run/corral.
"""

from __future__ import annotations

import os
import stat
import sys
from _socket import AF_UNIX, SHUT_RDWR, SOCK_SEQPACKET
from errno import EIO
from select import POLLIN, poll
from socket import SOCK_CLOEXEC, socket
from threading import Lock, Thread
from time import monotonic

from corral._lib.records import Record, frozen
from corral.audit.audit_log import Log
from corral.broker import protocol
from corral.broker.programs import REFUSED_STATUS, TERM_SECONDS
from corral.broker.protocol import RequestError
from corral.broker.streams import RefusedError
from corral.containment.filesystem import scratch
from corral.containment.filesystem.temp_dirs import safe_temp_dir
from corral.containment.network.proxy.relay import ByteBudget, ByteBudgetError
from corral.model.errors import AuditError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from corral.policy.config import SandboxConfig

    class Service(Protocol):
        """Does what one program is asked for."""

        def handle(self, request: Request) -> int:
            """Return the exit status. Raise RefusedError to refuse."""
            ...


MAX_AT_A_TIME = 16
MAX_REQUESTS = 256  # of one call, against a command that asks without end
REQUEST_SECONDS = 10.0  # from the connection to the request
CLOSE_SECONDS = TERM_SECONDS + 3.0
MAX_FILES = 16
MAX_FILE_BYTES = 64 << 20
_BACKLOG = 64


@frozen
class Served(Record):
    """One request, for the log."""

    program: str
    argv: tuple[str, ...]
    status: int
    refusal: str = ""  # why it was refused, or ""
    target: str = ""  # of the grant that it used, if the service has named it
    bytes_in: int = 0  # from the sandbox
    bytes_out: int = 0
    seconds: float = 0.0


class Request:
    """One call of a program by a stub. A service reads the words, and runs a program for it by `programs.run_program`."""

    def __init__(
        self, sock: socket, program: str, argv: tuple[str, ...], streams: list[int], server: BrokerServer
    ) -> None:
        self.sock = sock
        self.program = program
        self.argv = argv  # the words after the program's name
        self.target = ""  # of the grant that it uses, for the log
        self.bytes_in = 0
        self.bytes_out = 0
        self._streams = streams
        self._server = server
        self._directory = ""
        self._files = 0

    def say(self, text: str) -> None:
        """Print a line to the stub's stderr."""
        plain = "".join(letter if letter.isprintable() else "?" for letter in text)
        protocol.send(self.sock, b"say " + plain.encode("utf-8", "replace")[: protocol.MAX_SAID_BYTES])

    def directory(self) -> str:
        """Return an empty private directory of this request, on the host. The sandbox does not see it."""
        if not self._directory:
            self._directory = self._server.new_directory()
        return self._directory

    def take(self, number: int) -> int:
        """Return the stub's descriptor 0, 1 or 2, once. The caller closes it. No program may get it."""
        descriptor, self._streams[number] = self._streams[number], -1
        if descriptor < 0:
            raise ValueError("this stream was taken already")
        return descriptor

    def count(self, moved: int) -> None:
        """Count bytes against the sandbox's limit."""
        if moved:
            self._server.budget.take(moved)

    def next_signal(self) -> int:
        """Return the signal that the stub passes on, or -1 if the stub is gone."""
        try:
            data, given = protocol.receive(self.sock, protocol.MAX_LATER_BYTES, 0)
            protocol.close_all(given)
            return protocol.parse_signal(data) if data else -1
        except (OSError, RequestError):
            return -1

    def read_file(self, path: str) -> bytes:
        """Return a file that an argument names. The stub opens it, inside, so no path of the agent's is opened here."""
        encoded = os.fsencode(path)
        self._files += 1
        if self._files > MAX_FILES or len(encoded) > protocol.MAX_PATH_BYTES or b"\0" in encoded:
            raise RefusedError(f"{path[:80]!r}: too many files, or too long a name")
        protocol.send(self.sock, b"open " + encoded)
        data, given = self._answer()
        try:
            if data != b"file" or len(given) != 1:
                code = data.removeprefix(b"fail ")
                why = os.strerror(int(code) if code.isdigit() and len(code) < 4 else EIO)
                raise RefusedError(f"{path[:80]!r} cannot be read: {why}")
            return _content(given[0], path)
        finally:
            protocol.close_all(given)

    def pack(self, path: str) -> None:
        """Let the stub pack a directory, inside, and take the archive in place of its descriptor 0."""
        encoded = os.fsencode(path)
        if len(encoded) > protocol.MAX_PATH_BYTES or b"\0" in encoded:
            raise RefusedError(f"{path[:80]!r}: too long a name")
        protocol.send(self.sock, b"pack " + encoded)
        data, given = self._answer()
        if data != b"file" or len(given) != 1:
            protocol.close_all(given)
            raise RefusedError(f"{path[:80]!r} cannot be packed")
        os.close(self.take(0))
        self._streams[0] = given[0]

    def _answer(self) -> tuple[bytes, list[int]]:
        self.sock.settimeout(REQUEST_SECONDS)
        try:
            return protocol.receive(self.sock, protocol.MAX_LATER_BYTES, 1)
        except (OSError, RequestError) as error:
            raise RefusedError(f"the stub does not answer: {error}") from None
        finally:
            self.sock.settimeout(None)

    def close(self) -> None:
        """Close what was not taken, and remove the directory."""
        protocol.close_all([descriptor for descriptor in self._streams if descriptor >= 0])
        self._streams = []
        if self._directory:
            scratch.remove(self._directory)


def _content(descriptor: int, path: str) -> bytes:
    """Return the bytes of an open regular file, which a command may change meanwhile."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise RefusedError(f"{path[:80]!r} is not a regular file")
    data = b""
    try:
        while part := os.pread(descriptor, 1 << 20, len(data)):
            data += part
            if len(data) > MAX_FILE_BYTES:
                raise RefusedError(f"{path[:80]!r} is larger than {MAX_FILE_BYTES >> 20} MiB")
    except OSError as error:
        raise RefusedError(f"{path[:80]!r} cannot be read: {error.strerror}") from None
    return data


class BrokerServer:
    """A directory with a socket and stubs, and the threads that serve it."""

    def __init__(
        self, config: SandboxConfig, services: Mapping[str, Service], files: Mapping[str, str] | None = None
    ) -> None:
        """Start to serve. `files` are further files of the directory, such as a git configuration."""
        containment = config.containment
        above = safe_temp_dir((config.project_root, *containment.write), os.environ)
        self._path = f"{above}/corral-broker-{os.getuid()}-{os.urandom(8).hex()}"
        self.directory = f"{self._path}/shown"  # for `containment.broker`
        self.budget = ByteBudget(config.limits.network_bytes)
        self._services = dict(services)
        self._log = Log(config, event="broker", environ=os.environ)
        self._is_log_required = config.audit.required
        self._pid = os.getpid()
        self._lock = Lock()
        self._running: dict[Thread, socket] = {}
        self._served: list[Served] = []
        self._count = 0
        self._directories = 0
        self._listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
        self._wake_out, self._wake_in = os.pipe()
        try:
            self._make(files or {})
        except BaseException:
            self._remove()
            raise
        self._thread = Thread(target=self._serve, name="corral-broker", daemon=True)
        self._thread.start()

    def _make(self, files: Mapping[str, str]) -> None:
        for path in (self._path, self.directory, f"{self.directory}/bin"):
            os.mkdir(path, 0o700)
        for name in self._services:
            _write(f"{self.directory}/bin/{name}", stub_text(), 0o500)
        _write(f"{self.directory}/build_context.py", _own_text("commands/build_context.py"), 0o400)
        for name, text in files.items():
            _write(f"{self.directory}/{name}", text, 0o500 if name.startswith("bin/") else 0o400)
        # By descriptor: the path of a socket has at most 107 bytes.
        folder = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/broker")
        finally:
            os.close(folder)
        self._listener.listen(_BACKLOG)

    def new_directory(self) -> str:
        """Make an empty directory that the sandbox does not see."""
        with self._lock:
            self._directories += 1
            path = f"{self._path}/{self._directories}"
        os.mkdir(path, 0o700)
        return path

    def served(self) -> tuple[Served, ...]:
        """Return all requests that have ended, in order."""
        with self._lock:
            return tuple(self._served)

    def _serve(self) -> None:
        poller = poll()
        poller.register(self._listener.fileno(), POLLIN)
        poller.register(self._wake_out, POLLIN)
        while self._wake_out not in dict(poller.poll()):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                # The client has gone, or no descriptor is free.
                continue
            with self._lock:
                self._count += 1
                is_welcome = len(self._running) < MAX_AT_A_TIME and self._count <= MAX_REQUESTS
                if is_welcome:
                    thread = Thread(target=self._answer, args=(sock,), name="corral-broker-request", daemon=True)
                    self._running[thread] = sock
            if not is_welcome:
                protocol.send(sock, b"say corral: too many requests to the broker")
                protocol.send(sock, b"exit %d" % REFUSED_STATUS)
                sock.close()
                continue
            thread.start()

    def _answer(self, sock: socket) -> None:
        from threading import current_thread  # noqa: PLC0415  loaded already

        began_at = monotonic()
        request: Request | None = None
        status, refusal = REFUSED_STATUS, ""
        try:
            request = self._receive(sock)
            if self._is_log_required:
                self._log.check()
            status = self._services[request.program].handle(request)
        except (RefusedError, RequestError, AuditError) as error:
            refusal = str(error)
        except ByteBudgetError:
            refusal = "the sandbox has used up limits.network_bytes"
        except OSError as error:
            refusal = f"it failed outside: {error.strerror or error}"
        except Exception as error:  # noqa: BLE001  a service that crashes refuses
            refusal = f"it failed outside: {type(error).__name__}"
        finally:
            if request is not None:
                if refusal:
                    request.say(f"corral: {request.program}: {refusal}")
                request.close()
            served = Served("", (), status, refusal, seconds=monotonic() - began_at)
            if request is not None:
                served = served.replace(
                    program=request.program,
                    argv=request.argv,
                    target=request.target,
                    bytes_in=request.bytes_in,
                    bytes_out=request.bytes_out,
                )
            with self._lock:
                self._served.append(served)
            protocol.send(sock, b"exit %d" % (status & 255))
            self._record(served)
            with self._lock:
                sock.close()
                del self._running[current_thread()]

    def _record(self, served: Served) -> None:
        """Write a request that has ended to the audit log. The program inside does not wait for it; the end of the call does."""
        numbers = {"exit_code": served.status, "stdin_bytes": served.bytes_in, "stdout_bytes": served.bytes_out}
        fields: dict[str, object] = {
            "program": served.program,
            "target": served.target,
            "argv": [served.program, *served.argv] if served.program else [],
            "decision": "deny" if served.refusal else "allow",
            "reason": served.refusal,
            "result": numbers | {"duration_ms": round(served.seconds * 1000, 3)},
        }
        try:
            self._log.note({name: value for name, value in fields.items() if value})
        except (AuditError, OSError):
            # Where the policy requires the log, it was checked before the request was served.
            return

    def _receive(self, sock: socket) -> Request:
        sock.settimeout(REQUEST_SECONDS)
        data, streams = protocol.receive(sock, protocol.MAX_REQUEST_BYTES, protocol.STREAMS)
        sock.settimeout(None)
        try:
            program, argv = protocol.parse_request(data)
            if len(streams) != protocol.STREAMS:
                raise RequestError("a request needs the descriptors 0, 1 and 2")
            if program not in self._services:
                raise RequestError(f"there is no broker for {program[:40]!r}")
        except RequestError as error:
            protocol.close_all(streams)
            protocol.send(sock, b"say corral: " + str(error).encode("utf-8", "replace"))
            raise
        return Request(sock, program, argv, streams, self)

    def close(self) -> None:
        """End all requests and their programs, and remove the directory. A second call does nothing."""
        if self._pid != os.getpid() or self._wake_in < 0:
            return
        os.close(self._wake_in)
        self._wake_in = -1
        self._thread.join()
        with self._lock:
            running = dict(self._running)
            for sock in running.values():
                try:
                    # The thread notices it as the end of its stub.
                    sock.shutdown(SHUT_RDWR)
                except OSError:
                    continue
        give_up_at = monotonic() + CLOSE_SECONDS
        for thread in running:
            thread.join(max(0.0, give_up_at - monotonic()))
        self._remove()

    def _remove(self) -> None:
        self._listener.close()
        for descriptor in (self._wake_out, self._wake_in):
            if descriptor >= 0:
                os.close(descriptor)
        self._wake_out = self._wake_in = -1
        scratch.remove(self._path)


def stub_text() -> str:
    """Return the text of a stub, for the Python of this process, which sandboxes see."""
    python = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # there since 3.3
    return f"#!{python} -IS\n{_own_text('stub.py')}"


def _own_text(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def _write(path: str, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
