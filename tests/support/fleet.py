"""Runs servers and sandboxes in network namespaces of the tests, which have no connection to any other network.

Two namespaces are joined by a veth pair. One has the servers, at public, private and special addresses. In the other this program
runs commands, in sandboxes or bare. Victims answer VICTIM. As a program it reads its orders from stdin, one a line.
"""

import http.server
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from streams import read_all, read_exactly, read_head

NAMES = {
    "index.example": "93.184.216.10",
    "files.example.org": "93.184.216.11",
    "turning.example.org": "93.184.216.10",
    "evil.example": "93.184.216.66",
    "index.example.evil.example": "93.184.216.66",
    "xexample.org": "93.184.216.66",
    "example.org": "93.184.216.66",
    "loop.example.org": "127.0.0.1",
    "loop6.example.org": "::1",
    "private.example.org": "10.9.9.9",
    "meta.example.org": "169.254.169.254",
    "self.example.org": "93.184.216.1",
    "mapped.example.org": "::ffff:10.9.9.9",
    "nat64.example.org": "64:ff9b::a09:909",
    "tunnel.example.org": "2002:a09:909::1",
    "six.example.org": "2606:4700::10",
    "absent.example.org": "93.184.216.99",
}
GRANTED = [f"{host}:{port}" for host in ("index.example", "*.example.org") for port in (80, 443, 5432)]
SERVED4 = ["93.184.216.10", "93.184.216.11", "93.184.216.66", "10.9.9.9", "169.254.169.254"]
SERVED6 = ["2606:4700::10", "64:ff9b::a09:909", "2002:a09:909::1"]
OWN = ("index.example", "files.example.org", "turning.example.org", "six.example.org")
GOOD = ("93.184.216.10", "93.184.216.11", "2606:4700::10")
PORTS = (22, 80, 443, 5432)
VICTIM = b"VICTIM"
BIG = 256 * 1024 * 1024


def answer_for(host: str, path: str) -> bytes:
    """Return the answer of a server. Names outside OWN, and the path /victim, belong to a victim."""
    name = host.partition(":")[0].lower()
    return b"good " + path.encode() if name in OWN and path != "/victim" else VICTIM


def peek(request: socket.socket, count: int) -> bytes:
    """Return so many of the client's next bytes, or fewer if it hangs up before. They can be read again."""
    return request.recv(count, socket.MSG_PEEK | socket.MSG_WAITALL)


def surrender(request: socket.socket) -> None:
    """Answer VICTIM, and read on until the client hangs up: closing over unread bytes would reset the connection."""
    request.sendall(VICTIM)
    request.shutdown(socket.SHUT_WR)
    read_all(request)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    is_victim = False
    folder = ""

    def do_GET(self) -> None:
        if self.path == "/big":
            self._big()
            return
        if self.path.startswith("/files/") and not self.is_victim:
            self._file(self.path.removeprefix("/files/"))
            return
        said = VICTIM if self.is_victim else answer_for(self.headers.get("Host", ""), self.path)
        for name in ("Authorization", "X-Key"):
            said += f" {name}={self.headers[name]}".encode() if name in self.headers else b""
        self._say(said)

    do_REPORT = do_GET

    def do_TRACE(self) -> None:
        self._say(str(self.headers).encode(), "message/http")

    def do_POST(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            # Of two Content-Length headers use the last, as careless servers do.
            body = self.rfile.read(int((self.headers.get_all("Content-Length") or ["0"])[-1]))
        self._say(b"took %d" % len(body))

    def _file(self, name: str) -> None:
        path = Path(self.folder, "served", name.partition("?")[0])
        if path.is_dir():
            links = "".join(f'<a href="{child.name}">{child.name}</a>\n' for child in sorted(path.iterdir()))
            self._say(links.encode(), "text/html")
        elif path.is_file():
            self._say(path.read_bytes(), "application/json" if path.suffix == ".json" else "application/octet-stream")
        else:
            self._say(b"nothing here", status=404)

    def _big(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(BIG))
        self.end_headers()
        block = b"\0" * (1 << 20)
        for _ in range(BIG >> 20):
            self.wfile.write(block)

    def _say(self, said: bytes, kind: str = "text/plain", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


class Victim(Handler):
    is_victim = True


class Server(http.server.ThreadingHTTPServer):
    """Speaks TLS or HTTP, or echoes, depending on the client's first bytes."""

    request_queue_size = 2048
    daemon_threads = True
    context: ssl.SSLContext

    def __init__(self, address: str, port: int, handler: type[Handler], context: ssl.SSLContext) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.context = context
        super().__init__((address, port), handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        is_victim = self.RequestHandlerClass.is_victim  # type: ignore[attr-defined]
        if self.server_address[1] == 22:
            request.sendall(b"SSH-2.0-" + (VICTIM if is_victim else b"good") + b"\r\n")
        while (first := peek(request, 1)) in (b"\r", b"\n"):
            # RFC 9112 requires this of servers.
            request.recv(1)
        if first == b"\x16":
            if b"\xfe\x0d\x00\x08" in peek(request, 5 + int.from_bytes(peek(request, 5)[3:], "big")):
                surrender(request)
                return
            request = self.context.wrap_socket(request, server_side=True)
            if not is_victim and getattr(request, "asked", None) not in OWN:
                read_head(request)
                request.sendall(VICTIM)
                return
        elif first == b"P" and peek(request, 4) == b"PRI ":
            surrender(request)
            return
        elif first == b"#":
            while data := request.recv(65536):
                request.sendall(VICTIM if is_victim else data)
            return
        super().finish_request(request, client_address)

    def server_bind(self) -> None:
        # http.server looks up its own name in the DNS.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "x", self.server_address[1]

    def handle_error(self, *_: object) -> None:
        pass


def context_of(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "leaf.pem", folder / "leaf.key")

    def note(sock: Any, name: str | None, _: ssl.SSLContext) -> None:
        sock.asked = name

    context.sni_callback = note
    return context


def make_certificates(folder: Path) -> None:
    """Make a certificate authority for the tests, and one certificate for all names."""
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ",".join(f"DNS:{name}" for name in NAMES)
    for words in (
        ["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=corral test authority"],
        [
            *(
                "-keyout",
                "leaf.key",
                "-out",
                "leaf.pem",
                "-subj",
                "/CN=index.example",
                "-CA",
                "ca.pem",
                "-CAkey",
                "ca.key",
            ),
            *("-addext", f"subjectAltName={names}", "-addext", "basicConstraints=critical,CA:FALSE"),
        ],
    ):
        subprocess.run(["openssl", "req", "-x509", *new, *words], cwd=folder, check=True, capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def serve_fleet(folder: Path, told: int) -> None:
    """Run the servers in a network namespace of their own, which holds the other end of the veth pair."""
    from corral.containment.kernel.namespaces import unshare

    unshare("net")
    # The servers must not run out of descriptors before the sandbox does.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.write(told, b"u")
    while subprocess.run(["ip", "link", "show", "v1"], capture_output=True, check=False).returncode:
        pass
    ip("link", "set", "lo", "up")
    ip("link", "set", "v1", "up")
    for address in SERVED4:
        ip("addr", "add", f"{address}/32", "dev", "v1")
    for address in SERVED6:
        ip("-6", "addr", "add", f"{address}/128", "dev", "v1", "nodad")
    ip("route", "add", "93.184.216.1", "dev", "v1")
    ip("-6", "route", "add", "2606:4700::1", "dev", "v1")
    context = context_of(folder)
    for address in SERVED4 + SERVED6:
        kind = Handler if address in GOOD else Victim
        for port in PORTS:
            Server(address, port, kind, context)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("93.184.216.66", 53))
    os.write(told, b"r")
    while True:
        _, place = udp.recvfrom(100)
        udp.sendto(VICTIM, place)


def lay_cable(folder: Path) -> int:
    """Connect the two namespaces with a veth pair, and return the process of the servers."""
    ip("link", "set", "lo", "up")
    told, tell = os.pipe()
    servers = os.fork()
    if servers == 0:
        try:
            serve_fleet(folder, tell)
        finally:
            os._exit(1)
    os.close(tell)
    if os.read(told, 1) != b"u":
        raise RuntimeError("the servers did not start")
    ip("link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", str(servers))
    ip("link", "set", "v0", "up")
    ip("addr", "add", "93.184.216.1/32", "dev", "v0")
    ip("-6", "addr", "add", "2606:4700::1/128", "dev", "v0", "nodad")
    for address in SERVED4:
        ip("route", "add", address, "dev", "v0")
    for address in SERVED6:
        ip("-6", "route", "add", address, "dev", "v0")
    if os.read(told, 1) != b"r":
        raise RuntimeError("the servers did not start")
    return servers


def write_hosts(folder: Path, names: dict[str, str]) -> None:
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in names.items()))


def naive_proxy() -> None:
    """Run a naive proxy that accepts every request and lets everything through."""
    listener = socket.create_server(("127.0.0.1", 61080), backlog=256)

    def meant(text: str) -> str:
        for _ in range(2):
            text = text.partition("\0")[0].replace("%00", "\0").replace("%2e", ".").strip()
        text = text.rpartition("@")[2].partition("\\")[0].removesuffix(".")
        try:
            return socket.inet_ntoa(socket.inet_aton(text))
        except OSError:
            return text

    def pump(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def handle(client: socket.socket) -> None:
        first = read_exactly(client, 1)
        reply, forward = b"", b""
        if first == b"\x05":
            read_exactly(client, read_exactly(client, 1)[0])
            client.sendall(b"\x05\x00")
            kind = read_exactly(client, 4)[3]
            if kind == 3:
                host = read_exactly(client, read_exactly(client, 1)[0]).decode("latin-1")
            else:
                family = socket.AF_INET if kind == 1 else socket.AF_INET6
                host = socket.inet_ntop(family, read_exactly(client, 4 if kind == 1 else 16))
            number, reply = int.from_bytes(read_exactly(client, 2), "big"), b"\x05\x00\x00\x01" + b"\0" * 6
        elif first == b"\x04":
            number = int.from_bytes(read_exactly(client, 7)[1:3], "big")
            words = b""
            while words.count(b"\0") < 2 and (byte := read_exactly(client, 1)):
                words += byte
            host, reply = words.split(b"\0")[1].decode(), b"\0\x5a" + b"\0" * 6
        else:
            data = first + read_head(client)
            line = data.partition(b"\r\n")[0].decode("latin-1")
            method, target = line.split(" ", 1)[0], line.split(" ", 1)[1].rpartition(" ")[0]
            if method == "CONNECT":
                host, _, text = target.rpartition(":")
                reply = b"HTTP/1.1 200 ok\r\n\r\n"
            else:
                place = target.partition("://")[2].replace("\\", "/", 1).partition("/")[0]
                host, _, text = place.rpartition("@")[2].partition(":")
                path = "/" + target.partition("://")[2].partition("/")[2]
                forward = f"{method} {path} HTTP/1.1\r\n".encode() + data.partition(b"\r\n")[2]
            number = int(text or 80)
        server = socket.create_connection((meant(host.strip("[]")), number), 20)
        server.settimeout(20)
        client.sendall(reply) if reply else server.sendall(forward)
        threading.Thread(target=pump, args=(client, server), daemon=True).start()
        pump(server, client)
        client.close()

    def guarded(client: socket.socket) -> None:
        try:
            handle(client)
        except (OSError, ValueError, IndexError):
            client.close()

    def accept() -> None:
        while True:
            threading.Thread(target=guarded, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


class Driver:
    """Carries out the orders that the program reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boxes: dict[str, Any] = {}

    def box(self, settings: dict[str, Any]) -> Any:
        from corral import Containment, Limits, Profile, Sandbox, SandboxConfig
        from corral.guard.rules.loader import effects, profile_named
        from corral.model.call import Decision

        key = json.dumps(settings, sort_keys=True)
        if key not in self.boxes:
            project = self.folder / "project"
            project.mkdir(exist_ok=True)
            groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
            profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)
            config = SandboxConfig(
                str(project),
                profile=profile,
                denylist=(),
                interpreter_block=(),
                timeout_seconds=100,
                max_output_bytes=1 << 20,
                containment=Containment(**settings.get("containment", {})),
                limits=Limits(**settings.get("limits", {})),
            )
            self.boxes[key] = Sandbox(config)
        return self.boxes[key]

    def answer(self, order: dict[str, Any]) -> Any:
        if "hosts" in order:
            write_hosts(self.folder, NAMES | order["hosts"])
            return {}
        if "close" in order:
            for box in self.boxes.values():
                box.close()
            self.boxes.clear()
            return {}
        argv = order["argv"]
        if order.get("bare"):
            done = subprocess.run(
                argv, capture_output=True, timeout=60, check=False, env=os.environ | order.get("env", {})
            )
            return {"stdout": done.stdout.decode("latin-1"), "exit_code": done.returncode}
        os.environ.update(order.get("environ", {}))
        return self.box(order.get("settings", {})).run(argv, env=order.get("env") or None).to_dict()


def main() -> None:
    folder = Path(sys.argv[1])
    make_certificates(folder)
    write_hosts(folder, NAMES)
    subprocess.run(["mount", "--bind", str(folder / "hosts"), "/etc/hosts"], check=True)
    Handler.folder = str(folder)
    servers = lay_cable(folder)
    context = context_of(folder)
    # Victims on the sandbox's own machine, which trust every local client.
    for address in ("127.0.0.1", "::1", "93.184.216.1"):
        Server(address, 80, Victim, context)
    Server("93.184.216.1", 2375, Victim, context)
    naive_proxy()
    driver = Driver(folder)
    print("ready", flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(driver.answer(json.loads(line))), flush=True)
    finally:
        driver.answer({"close": True})
        os.kill(servers, 9)
        os.waitpid(servers, 0)


class Fleet:
    """A test's connection to the program."""

    def __init__(self, folder: Path, limits: str = "true") -> None:
        self.folder = folder
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        words = ["unshare", *user, "--net", "--mount", "--kill-child", "--fork", sys.executable, __file__, str(folder)]
        words = ["sh", "-c", f'{limits} && exec "$@"', "sh", *words]
        path = os.pathsep.join(sys.path)
        self.errors = open(folder / "errors", "w+b")  # noqa: SIM115  closed with the rest
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        self._hear("ready")

    def _hear(self, wanted: str = "") -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line or (wanted and line.strip() != wanted):
            raise RuntimeError(f"the fleet did not answer: {line!r} {Path(self.errors.name).read_text()[-2000:]}")
        return line if wanted else json.loads(line)

    def ask(self, **order: Any) -> Any:
        """Send an order, and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._hear()

    def run(self, *argv: str, env: dict[str, str] | None = None, **settings: Any) -> dict[str, Any]:
        """Run a command in a sandbox with the usual destinations granted."""
        containment = {"network": GRANTED} | settings.pop("containment", {})
        made: dict[str, Any] = self.ask(argv=argv, env=env, settings={"containment": containment, **settings})
        return made

    def bare(self, *argv: str) -> dict[str, Any]:
        """Run a command beside the servers, without a sandbox."""
        made: dict[str, Any] = self.ask(argv=argv, bare=True)
        return made

    def close(self) -> None:
        """End the program and the servers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.errors.close()


if __name__ == "__main__":
    main()
