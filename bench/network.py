"""Measures downloads and connections to a granted name, with and without the proxy, and the overhead of a sandbox with grants."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from bench._place import workplace
from bench._rows import Row, Section, at_least, at_most
from bench._turns import Options, compared, in_turns
from corral import Containment, Profile, Sandbox, SandboxConfig
from corral.guard.rules.loader import effects, profile_named
from corral.model.call import Decision

AS_USER = True
BYTES = 2_000_000_000
ROUNDS = 5
FEW_ROUNDS = 30  # with fewer rounds, one sample is enough
SERVER = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
print(listener.getsockname()[1], flush=True)
zero, count = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
while True:
    client, _ = listener.accept()
    path = client.recv(65536).split(b" ")[1]
    size = count if path.endswith(b"/big") else 2
    client.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % size)
    at = 0
    while at < size:
        at += os.sendfile(client.fileno(), zero, at, size - at)
    client.close()
"""
# Reads as fast as a program can. A real client also processes the bytes, which would hide the cost of the proxy.
CLIENT = """
import os, socket, sys, time
host, port, proxy = sys.argv[1], int(sys.argv[2]), os.environ.get("HTTP_PROXY", "")
place = (proxy.rpartition("/")[2].partition(":")[0], int(proxy.rpartition(":")[2])) if proxy else (host, port)
begun = time.perf_counter()
sock = socket.create_connection(place)
target = f"http://{host}:{port}/big" if proxy else "/big"
sock.sendall(f"GET {target} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
buffer, total = bytearray(1 << 18), 0
while count := sock.recv_into(buffer):
    total += count
print(total, time.perf_counter() - begun)
"""


# Connections one after the other, each with one small request; it prints the lower quartile of their times.
CONNECTOR = """
import os, socket, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
proxy = os.environ.get("HTTP_PROXY", "") if sys.argv[4] == "proxy" else ""
place = (proxy.rpartition("/")[2].partition(":")[0], int(proxy.rpartition(":")[2])) if proxy else (host, port)
spent = []
for _ in range(count):
    begun = time.perf_counter()
    sock = socket.create_connection(place)
    if proxy:
        sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
        said = b""
        while b"\\r\\n\\r\\n" not in said:
            said += sock.recv(4096)
    sock.sendall(f"GET /small HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
    while sock.recv(4096):
        pass
    sock.close()
    spent.append(time.perf_counter() - begun)
print(sorted(spent)[count // 4])
"""
CONNECTIONS = 200


def measure(options: Options) -> Section:
    """Return the speed of a download, and the overhead of a command when destinations are granted by name."""
    rounds = ROUNDS if options.rounds >= FEW_ROUNDS else 1
    with workplace() as folder, _server(folder) as port:
        granted = Containment(network=[f"own.example:{port}"], hosts=["own.example=127.0.0.1"])
        with _box(folder, granted) as named, _box(folder, Containment()) as plain:
            direct = through = 0.0
            for _ in range(rounds):
                direct = max(direct, _speed(_bare([sys.executable, "-c", CLIENT, "127.0.0.1", str(port)])))
                through = max(through, _speed(_held(named, [sys.executable, "-c", CLIENT, "own.example", str(port)])))
            bare = 0.0
            for _ in range(rounds):
                client = ["env", "-u", "HTTP_PROXY", sys.executable, "-c", CLIENT, "own.example", str(port)]
                bare = max(bare, _speed(_held(named, client)))
            rows = [
                Row("2 GB through the proxy, against loopback", through, "GB/s", direct, goal=at_least(0.5)),
                Row(
                    "2 GB to a granted name without the proxy, against loopback",
                    bare,
                    "GB/s",
                    direct,
                    goal=at_least(0.5),
                ),
                _connections(named, port, rounds),
                _compared(named, plain, options),
            ]
        rows.append(_first(folder, granted, rounds))
    notes = (f"the best of {rounds} downloads; the client reads and drops", "a plain sandbox has no network")
    return Section("The network by name", tuple(rows), notes)


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    with (folder / "zero").open("wb") as sparse:
        sparse.truncate(BYTES)
    words = [sys.executable, "-c", SERVER, str(folder / "zero"), str(BYTES)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


def _box(folder: Path, containment: Containment) -> Sandbox:
    groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
    profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)
    config = SandboxConfig(
        str(folder), profile=profile, denylist=(), interpreter_block=(), timeout_seconds=600, containment=containment
    )
    return Sandbox(config)


def _bare(argv: list[str]) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=clean).stdout


def _held(box: Sandbox, argv: list[str]) -> str:
    result = box.run(argv)
    if not result.ok:
        raise RuntimeError(f"the download did not work: {result.stderr_text or result.hint}")
    return result.stdout_text


def _connections(named: Sandbox, port: int, rounds: int) -> Row:
    """Return the time of a connection and a request to a granted name, against a tunnel of the proxy."""
    best = {"name": float("inf"), "proxy": float("inf")}
    for turn in range(2 * rounds):
        for way in sorted(best, reverse=bool(turn % 2)):
            said = _held(named, [sys.executable, "-c", CONNECTOR, "own.example", str(port), str(CONNECTIONS), way])
            best[way] = min(best[way], float(said))
    what = "a connection to a granted name without the proxy, against a tunnel of the proxy"
    return Row(what, best["name"] * 1000, "ms", best["proxy"] * 1000, goal=at_most(1.15))


def _speed(said: str) -> float:
    total, seconds = said.split()
    if int(total) < BYTES:
        raise RuntimeError(f"only {total} of {BYTES} bytes arrived")
    return BYTES / 1e9 / float(seconds)


def _compared(named: Sandbox, plain: Sandbox, options: Options) -> Row:
    for box in (named, plain):
        box.run(["/bin/true"])
    ways = {"with": lambda: named.run(["/bin/true"]), "without": lambda: plain.run(["/bin/true"])}
    timings = in_turns(ways, options.rounds)
    what = "/bin/true with a proxy, against a sandbox without"
    return compared(what, timings["with"], timings["without"], at_most(1.1))


def _first(folder: Path, granted: Containment, rounds: int) -> Row:
    best = {True: float("inf"), False: float("inf")}
    for _ in range(rounds):
        for has_proxy in (True, False):
            begun = perf_counter()
            with _box(folder, granted if has_proxy else Containment()) as box:
                box.run(["/bin/true"])
                best[has_proxy] = min(best[has_proxy], perf_counter() - begun)
    return Row("the first command with a proxy, against one without", best[True] * 1000, "ms", best[False] * 1000)
