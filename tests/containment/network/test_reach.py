"""Contained commands reach no metadata server, local server or docker socket of a simulated machine.

The machine consists of namespaces that the test makes. No packet leaves them.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attempt import must_hold, program

import corral

IP = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
# Runs in new namespaces: starts a second network namespace with the metadata server behind a veth, then servers on this side, then attacks.
MACHINE = """
import ctypes, json, os, socket, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
ip, path, project, attacks = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])

def serve(family, kind, address):
    server = socket.socket(family, kind)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind(address)
    if kind == socket.SOCK_DGRAM:
        def answer():
            while True:
                server.sendto(b"metadata", server.recvfrom(100)[1])
    else:
        server.listen()
        def answer():
            while True:
                with server.accept()[0] as peer:
                    peer.sendall(b"metadata")
    threading.Thread(target=answer, daemon=True).start()

ready, go = os.pipe(), os.pipe()
behind = os.fork()
if behind == 0:
    assert libc.unshare(0x40000000) == 0
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    subprocess.run(f"{ip} link set lo up && {ip} addr add 169.254.169.254/16 dev there && {ip} addr add fd00:ec2::254/64 dev there nodad && {ip} link set there up", shell=True, check=True)
    for family, address in ((socket.AF_INET, "169.254.169.254"), (socket.AF_INET6, "fd00:ec2::254")):
        serve(family, socket.SOCK_STREAM, (address, 80))
        serve(family, socket.SOCK_DGRAM, (address, 53))
    os.write(ready[1], b"x")
    threading.Event().wait()
os.read(ready[0], 1)
subprocess.run(f"{ip} link set lo up && {ip} link add here type veth peer name there && {ip} link set there netns {behind} && {ip} addr add 169.254.0.1/16 dev here && {ip} addr add fd00:ec2::1/64 dev here nodad && {ip} link set here up", shell=True, check=True)
os.write(go[1], b"x")
os.read(ready[0], 1)
subprocess.run("mount -t tmpfs tmpfs /run", shell=True, check=True)
for address in ("127.0.0.1", "169.254.0.1"):
    serve(socket.AF_INET, socket.SOCK_STREAM, (address, 8080))
serve(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 8080))
serve(socket.AF_UNIX, socket.SOCK_STREAM, "/run/docker.sock")
serve(socket.AF_UNIX, socket.SOCK_STREAM, "\\0corral-test-network")

sys.path[:0] = [part for part in path.split(":") if part]
from corral import Containment, Profile, Sandbox, SandboxConfig
from corral.model.call import Decision
from corral.guard.rules.loader import effects, profile_named
groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)
told = {}
for name, containment in (("warden", Containment("warden")), ("on", Containment("warden", network="on")), ("none", Containment("none"))):
    with Sandbox(SandboxConfig(project, profile=profile, denylist=(), interpreter_block=(), containment=containment)) as box:
        told[name] = {}
        for attack in attacks:
            result = box.run(["python3", "-S", attack, "{}"], timeout_seconds=100)
            told[name][attack] = result.stdout_text.strip() or result.stderr_text
            assert name == "none" or result.enforcement == "full", result.missing_layers
print(json.dumps(told))
os.kill(behind, 9)
"""
TCP = "s = socket.create_connection(({address!r}, {port}), 20)\nreturn s.makefile('rb').read(8) == b'metadata'"
UDP = "s = socket.socket(socket.{family}, socket.SOCK_DGRAM)\ns.settimeout(20)\ns.sendto(b'x', ({address!r}, 53))\nreturn s.recv(100) == b'metadata'"
UNIX = "s = socket.socket(socket.AF_UNIX)\ns.settimeout(20)\ns.connect({path!r})\nreturn s.makefile('rb').read(8) == b'metadata'"
ATTACKS = {
    "the metadata address": TCP.format(address="169.254.169.254", port=80),
    "the metadata address by datagram": UDP.format(family="AF_INET", address="169.254.169.254"),
    "the metadata address of the other family": TCP.format(address="fd00:ec2::254", port=80),
    "the same by datagram": UDP.format(family="AF_INET6", address="fd00:ec2::254"),
    "the metadata address, mapped": TCP.format(address="::ffff:169.254.169.254", port=80),
    "the metadata address as a number": TCP.format(address="2852039166", port=80),
    "the metadata address in the first packet": "s = socket.socket()\ns.sendto(b'x', socket.MSG_FASTOPEN, ('169.254.169.254', 80))\nreturn s.makefile('rb').read(8) == b'metadata'",
    "the metadata address by the shell": "return subprocess.run(['bash', '-c', 'exec 3<>/dev/tcp/169.254.169.254/80; head -c 8 <&3'], capture_output=True).stdout == b'metadata'",
    "the metadata address by several paths": "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\ns.settimeout(20)\ns.connect(('169.254.169.254', 80))\nreturn s.makefile('rb').read(8) == b'metadata'",
    "loopback": TCP.format(address="127.0.0.1", port=8080),
    "loopback of the other family": TCP.format(address="::1", port=8080),
    "the address that means this machine": TCP.format(address="0.0.0.0", port=8080),
    "the machine's own address": TCP.format(address="169.254.0.1", port=8080),
    "the docker socket": UNIX.format(path="/run/docker.sock"),
    "the docker socket by its other name": UNIX.format(path="/var/run/docker.sock"),
    "an abstract socket": UNIX.format(path="\0corral-test-network"),
    "the list of interfaces": "return 'here' in open('/proc/net/dev').read()",
    "the list of interfaces by name": "return 'here' in dict(map(reversed, socket.if_nameindex()))",
    "the list of sockets": "return 'corral-test-network' in open('/proc/net/unix').read()",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The outcome of every attack: contained, contained with the network on, and not contained."""
    if IP is None:
        must_hold()
    project = tmp_path_factory.mktemp("machine")
    for number, body in enumerate(ATTACKS.values()):
        (project / f"attack{number}.py").write_text(program(body))
    names = json.dumps([f"attack{number}.py" for number in range(len(ATTACKS))])
    path = ":".join([str(Path(corral.__file__).parents[1]), *[p for p in sys.path if "site-packages" in p]])
    # An ordinary user needs a user namespace for this.
    own = ["unshare", "--net", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net", "--mount"]
    done = subprocess.run(
        [*own, sys.executable, "-c", MACHINE, str(IP), path, str(project), names],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(project)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return {
        how: {attack: results[f"attack{number}.py"] for number, attack in enumerate(ATTACKS)}
        for how, results in found.items()
    }


@pytest.mark.parametrize("attack", ATTACKS)
def test_contained_command_reaches_nothing_on_the_machine(outcomes: dict[str, dict[str, str]], attack: str) -> None:
    assert outcomes["warden"][attack].startswith("held")
    assert outcomes["none"][attack] == "succeeded"


def test_network_grant_opens_no_unix_sockets(outcomes: dict[str, dict[str, str]]) -> None:
    reached = [attack for attack in ATTACKS if outcomes["on"][attack] == "succeeded"]
    assert "the metadata address" in reached
    assert not {"the docker socket", "the docker socket by its other name", "an abstract socket"} & set(reached)
