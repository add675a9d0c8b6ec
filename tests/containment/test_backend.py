"""Checks one list of facts on every backend. `none` is listed with the facts that it does not meet, and a false claim is detected."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from attempt import attempt, has_bubblewrap, must_hold
from observe import alive, seen_before_its_end, unique_seconds, with_enough_time
from sampling import sampled

from corral import Containment, Limits, Sandbox
from corral.containment.layers import LAYERS
from corral.runtime.pool import Pool
from corral.runtime.processes import WardenClient

HOLDING = ("warden", "bubblewrap")
MARKER = f"corral-contract-{os.getpid()}"
PROTECTED = {".envrc": "export A=1\n", ".git/config": "[core]\n", ".git/hooks/pre-commit": "#!/bin/sh\n"}


# Attacks that must fail in the sandbox. Each succeeds without it.
ATTACKS = {
    "reads a file outside": "return open(facts['outside'] + '/secret').read() == 'canary'",
    "lists a directory outside": "return os.listdir(facts['outside'])",
    "reaches a port outside": "return socket.create_connection(('127.0.0.1', facts['tcp']), 20)",
    "reaches a socket outside by path": "socket.socket(socket.AF_UNIX).connect(facts['socket'])\nreturn True",
    "reaches a socket outside by name": "socket.socket(socket.AF_UNIX).connect('\\0' + facts['abstract'])\nreturn True",
    "signals another process": "os.kill(facts['sleeper'], 0)\nreturn True",
    "sees another process": "return os.path.exists(f\"/proc/{facts['sleeper']}/stat\")",
    "makes a user namespace": "return libc.unshare(0x10000000) == 0",
    "makes one by clone": "pid = call(56 if X86 else 220, 0x10000011, 0, 0, 0, 0)\nif pid == 0:\n    os._exit(0)\nreturn pid > 0",
    "asks for a keyring": "return call(250 if X86 else 219, 0, -3, 1, 0, 0) >= 0",
    "takes a rare personality": "return call(135 if X86 else 92, 0x400000) >= 0",
    "makes a set-id file": "os.close(os.open('f', os.O_CREAT))\nos.chmod('f', 0o4755)\nreturn True",
    "opens by a call with hidden arguments": "return call(437, -100, b'/', struct.pack('QQQ', 0, 0, 0), 24) >= 0",
}


class Ground(NamedTuple):
    """A sandbox, and targets that the test has made."""

    box: Sandbox
    backend: str
    outside: Path
    sleeper: int
    servers: dict[str, Any]

    @property
    def project(self) -> Path:
        return Path(self.box.config.project_root)

    def cannot(self, body: str, **facts: object) -> bool:
        """Return whether an attack fails."""
        return attempt(self.box, body, **facts).startswith("held")

    def can(self, body: str, **facts: object) -> bool:
        """Return whether ordinary work succeeds."""
        return attempt(self.box, body, **facts) == "succeeded"


def fails(body: str) -> Callable[[Ground], bool]:
    """Return the fact that an attack fails."""
    return lambda ground: ground.cannot(body, outside=str(ground.outside), sleeper=ground.sleeper, **ground.servers)


def writes_nothing_outside(ground: Ground) -> bool:
    target = ground.outside / "new"
    ground.cannot("return open(facts['path'], 'w').write('x')", path=str(target))
    return not target.exists()


def follows_no_link_outside(ground: Ground) -> bool:
    (ground.project / "link").symlink_to(ground.outside)
    return ground.cannot("return open('link/secret').read() == 'canary'")


def protects_what_is_there(ground: Ground) -> bool:
    before = {name: (ground.project / name).read_text() for name in PROTECTED}
    for name in PROTECTED:
        attempt(ground.box, "return open(facts['name'], 'a').write('x')", name=name)
        attempt(ground.box, "os.unlink(facts['name'])\nreturn True", name=name)
    attempt(ground.box, "os.rename('.git', 'moved')\nos.mkdir('.git')\nreturn True")
    return all((ground.project / name).is_file() for name in PROTECTED) and before == {
        name: (ground.project / name).read_text() for name in PROTECTED
    }


def protects_a_link(ground: Ground) -> bool:
    attempt(ground.box, "os.unlink('.bashrc')\nreturn open('.bashrc', 'w').write('x')")
    return (ground.project / ".bashrc").is_symlink()


def moves_away_what_is_planted(ground: Ground) -> bool:
    attempt(ground.box, "return open('.zshrc', 'w').write('x')")
    return not (ground.project / ".zshrc").exists()


def shows_the_system_read_only(ground: Ground) -> bool:
    return ground.can("return os.statvfs('/usr').f_flag & os.ST_RDONLY and os.statvfs('/').f_flag & os.ST_RDONLY")


def has_a_tmp_of_its_own(ground: Ground) -> bool:
    path = Path(f"/tmp/{MARKER}")
    try:
        done = ground.box.run(["touch", str(path)])
        return done.ok and ground.box.run(["test", "-e", str(path)]).ok and not path.exists()
    finally:
        path.unlink(missing_ok=True)


def has_a_home_of_its_own(ground: Ground) -> bool:
    path = Path(os.environ["HOME"]) / MARKER
    try:
        body = "open(os.path.expanduser('~/') + facts['name'], 'w').close()\nreturn True"
        kept = "return os.path.exists(os.path.expanduser('~/') + facts['name'])"
        return ground.can(body, name=MARKER) and ground.can(kept, name=MARKER) and not path.exists()
    finally:
        path.unlink(missing_ok=True)


def has_a_shared_memory_of_its_own(ground: Ground) -> bool:
    path = Path(f"/dev/shm/{MARKER}")
    try:
        return ground.box.run(["touch", str(path)]).ok and not path.exists()
    finally:
        path.unlink(missing_ok=True)


def has_a_loopback(ground: Ground) -> bool:
    body = "server = socket.create_server(('127.0.0.1', 0))\nreturn socket.create_connection(server.getsockname(), 20)"
    return ground.can(body)


def shares_the_loopback_between_commands(ground: Ground) -> bool:
    (ground.project / "server.py").write_text(
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\ns.accept()[0].sendall(b'hello')\n"
    )
    with ground.box.start([sys._base_executable, "server.py"]) as server:
        port = int(next(data for name, data in server if name == "stdout"))
        body = "return socket.create_connection(('127.0.0.1', facts['port']), 20).recv(5) == b'hello'"
        return ground.can(body, port=port)


def has_no_variable_of_the_host(ground: Ground) -> bool:
    os.environ["CORRAL_TEST_SECRET"] = "canary"
    try:
        return b"canary" not in ground.box.run(["env"]).stdout
    finally:
        del os.environ["CORRAL_TEST_SECRET"]


def has_three_descriptors(ground: Ground) -> bool:
    # The fourth descriptor is that of the listing.
    return ground.can("return sorted(map(int, os.listdir('/proc/self/fd'))) == [0, 1, 2, 3]")


def cannot_end_what_holds_it(ground: Ground) -> bool:
    result = ground.box.run("kill -KILL $PPID; echo after", shell=True)
    return (result.stdout, result.violations) == (b"after\n", ())


def gains_no_right(ground: Ground) -> bool:
    body = """
state = dict(line.split(':', 1) for line in open('/proc/self/status'))
held = 0
for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'):
    held |= int(state[name], 16)
return state['NoNewPrivs'].strip() == '1' and held & ~facts['kept'] == 0
"""
    return ground.can(body, kept=0b11011 if os.geteuid() == 0 else 0)


def kills_the_whole_tree(ground: Ground) -> bool:
    seconds = unique_seconds()
    result = ground.box.run(f"setsid sleep {seconds} & sleep {seconds} & exit 3", shell=True)
    return (result.exit_code, result.killed, alive(seconds)) == (3, 2, [])


def keeps_the_deadline(ground: Ground) -> bool:
    seconds = unique_seconds()
    text = f"echo said; setsid sleep {seconds} & sleep {seconds}"
    result = with_enough_time(
        lambda limit: seen_before_its_end(
            ground.box.start(text, shell=True, timeout_seconds=limit), lambda: len(alive(seconds)) == 2
        ),
        bool,
    )
    return (result.exit_code, result.timed_out, result.stdout, alive(seconds)) == (-101, True, b"said\n", [])


def tells_how_it_ended(ground: Ground) -> bool:
    run = ground.box.run
    ended = [run(f"exit {code}", shell=True) for code in (0, 3, 137)]
    killed, missing, refused = run("kill -TERM $$", shell=True), run(["no-such-program"]), run(["./plain"])
    return (
        [(result.exit_code, result.signal) for result in ended] == [(0, None), (3, None), (137, None)]
        and (killed.exit_code, killed.signal) == (143, signal.SIGTERM)
        and (missing.exit_code, refused.exit_code) == (127, 126)
    )


def passes_signals_on(ground: Ground) -> bool:
    handle = ground.box.start("trap 'echo got; exit 7' USR1; echo ready; while :; do :; done", shell=True)
    said = b""
    for name, data in handle:
        # A shell may report on stderr that a signal killed its child.
        said += data if name == "stdout" else b""
        if said == b"ready\n":
            handle.signal(signal.SIGUSR1)
    return (said, handle.wait().exit_code) == (b"ready\ngot\n", 7)


def gives_input_directory_and_variables(ground: Ground) -> bool:
    (ground.project / "sub").mkdir()
    result = ground.box.run("cat; pwd; echo $A", shell=True, stdin=b"in\n", cwd="sub", env={"A": "b"})
    return result.stdout_text == f"in\n{ground.project}/sub\nb\n"


def measures_use(ground: Ground) -> bool:
    result = ground.box.run([sys._base_executable, "-S", "-c", "x = bytearray(60_000_000); sum(range(2_000_000))"])
    return result.usage.peak_memory_bytes > 60_000_000 and result.usage.user_seconds > 0


def works_in_the_project(ground: Ground) -> bool:
    done = ground.box.run("mkdir -p d && echo x > d/f && mv d e && cat e/f && rm -r e && git -C . status", shell=True)
    return done.stdout.startswith(b"x\n") and not (ground.project / "e").exists()


OBSERVE = """
found = {layer: os.readlink(f'/proc/self/ns/{name}') for layer, name in facts['namespaces'].items()}
state = dict(line.split(':', 1) for line in open('/proc/self/status'))
found['seccomp'] = state['Seccomp'].strip()
found['privileges'] = state['NoNewPrivs'].strip()
found['limits'] = resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
found['proc'] = os.path.exists(f"/proc/{facts['stranger']}/stat")
libc.prctl(38, 1, 0, 0, 0)
depth = 0
try:
    while depth < 20:
        ruleset = call(444, struct.pack('Q', 1), 8, 0)
        call(446, ruleset, 0)
        os.close(ruleset)
        depth += 1
except OSError:
    pass
found['landlock'] = depth
open('found.json', 'w').write(json.dumps(found))
return True
"""
NAMESPACES = {name: layer.namespace for name, layer in LAYERS.items() if layer.namespace}
MOST_RULESETS = 16  # the most that the kernel accepts on one process


def layers_found(ground: Ground) -> set[str]:
    """Return the layers that a command can see, compared with this process."""
    attempt(ground.box, OBSERVE, namespaces=NAMESPACES, stranger=ground.sleeper)
    found = json.loads((ground.project / "found.json").read_text())
    here = {layer: os.readlink(f"/proc/self/ns/{name}") for layer, name in NAMESPACES.items()}
    held = {layer for layer, identity in here.items() if found[layer] != identity}
    held |= {"seccomp"} if found["seccomp"] == "2" else set()
    held |= {"privileges"} if found["privileges"] == "1" else set()
    held |= {"limits"} if found["limits"] else set()
    held |= {"proc"} if not found["proc"] else set()
    return held | ({"landlock"} if found["landlock"] < MOST_RULESETS else set())


def claims_what_is_found(ground: Ground) -> bool:
    result = ground.box.run(["true"])
    claimed = set() if result.enforcement == "none" else {*LAYERS} - {*result.missing_layers}
    whole = (result.enforcement == "full") == (claimed == {*LAYERS})
    return whole and claimed <= layers_found(ground) and result.backend == ground.backend


FACTS: dict[str, Callable[[Ground], bool]] = {f"nobody {name}": fails(body) for name, body in ATTACKS.items()} | {
    name.replace("_", " "): fact
    for name, fact in list(globals().items())
    if callable(fact) and getattr(fact, "__annotations__", {}) == {"ground": Ground, "return": bool}
}
# Without a backend the guard and the limits work and the process tree is killed, but nothing else is enforced.
NOT_KEPT_BY_NONE = {f"nobody {name}" for name in ATTACKS} | {
    "writes nothing outside",
    "follows no link outside",
    "protects what is there",
    "protects a link",
    "moves away what is planted",
    "shows the system read only",
    "has a tmp of its own",
    "has a home of its own",
    "has a shared memory of its own",
    "cannot end what holds it",
    "gains no right",
}


@pytest.fixture
def ground(
    project: Path,
    outside: Path,
    sleeper: int,
    servers: dict[str, Any],
    open_sandbox: Callable[..., Sandbox],
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], Ground]:
    """Return a function that makes a sandbox with a backend, in a project with protected files."""
    home = project.parent / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    for name, text in PROTECTED.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / ".bashrc").symlink_to("other")
    (project / "plain").write_text("no program")

    def make(backend: str) -> Ground:
        if backend == "bubblewrap" and not has_bubblewrap():
            must_hold()
        lies = backend == "lying"
        box = open_sandbox(containment=Containment(backend="none" if lies else backend))
        if lies:
            box._state.pool = box._runner.pool = LyingPool(box._holding.plan)
        elif backend != "none" and box.run(["true"]).enforcement != "full":
            must_hold()
        return Ground(box, backend, outside, sleeper, servers)

    return make


class LyingPool(Pool):
    """A backend that claims every layer and enforces none."""

    def _make(self) -> WardenClient:
        warden = super()._make()
        warden.backend, warden.enforcement, warden.missing_layers = "lying", "full", ()
        return warden


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("backend", HOLDING)
def test_backend_meets_every_fact(ground: Callable[[str], Ground], backend: str, fact: str) -> None:
    assert FACTS[fact](ground(backend))


@pytest.mark.parametrize("fact", FACTS)
def test_backend_none_meets_only_its_facts(ground: Callable[[str], Ground], fact: str) -> None:
    assert FACTS[fact](ground("none")) == (fact not in NOT_KEPT_BY_NONE)


@pytest.mark.parametrize(
    "fact", sampled(sorted({*NOT_KEPT_BY_NONE, "claims what is found"}), keep=["claims what is found"], every=6)
)
def test_backend_that_claims_too_much_is_detected(ground: Callable[[str], Ground], fact: str) -> None:
    made = ground("lying")
    assert made.box.run(["true"]).enforcement == "full"
    assert not FACTS[fact](made)


@pytest.fixture
def opened(open_sandbox: Callable[..., Sandbox]) -> Callable[..., Sandbox]:
    """Return a function that makes a sandbox by backend and containment settings."""

    def make(backend: str, *, limits: Limits | None = None, **settings: object) -> Sandbox:
        if backend == "bubblewrap" and not has_bubblewrap():
            must_hold()
        box = open_sandbox(containment=Containment(backend=backend, **settings), limits=limits or Limits())
        assert box.run(["true"]).enforcement == "full"
        return box

    return make


@pytest.mark.parametrize("backend", HOLDING)
def test_granted_network_is_the_network_of_the_host(
    opened: Callable[..., Sandbox], servers: dict[str, Any], backend: str
) -> None:
    body = ATTACKS["reaches a port outside"]
    assert attempt(opened(backend, network="on"), body, **servers) == "succeeded"
    assert attempt(opened(backend), body, **servers).startswith("held")


@pytest.mark.parametrize("backend", HOLDING)
def test_only_granted_paths_are_accessible(opened: Callable[..., Sandbox], outside: Path, backend: str) -> None:
    path = {"path": str(outside / "secret")}
    read, write = "return open(facts['path']).read() == 'canary'", "return open(facts['path'], 'a').write('')  == 0"
    readable = opened(backend, read=(str(outside),))
    assert attempt(readable, read, **path) == "succeeded"
    assert attempt(readable, write, **path).startswith("held")
    assert attempt(opened(backend, write=(str(outside),)), write, **path) == "succeeded"


@pytest.mark.parametrize("backend", HOLDING)
def test_read_only_project_cannot_be_written(opened: Callable[..., Sandbox], project: Path, backend: str) -> None:
    box = opened(backend, project="read-only")
    result = box.run(["touch", "made"])
    assert (result.ok, (project / "made").exists()) == (False, False)


FORKS = """
started = 0
try:
    for _ in range(30):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        started += 1
except OSError:
    pass
return started < 30
"""


@pytest.mark.parametrize("backend", HOLDING)
def test_limits_are_kept_by_each_backend(opened: Callable[..., Sandbox], backend: str) -> None:
    box = opened(backend, limits=Limits(processes=12, open_files=50, memory_bytes=200_000_000))
    assert attempt(box, FORKS) == "succeeded"
    assert attempt(box, "return resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 50") == "succeeded"
    eats = "try:\n    return len(bytearray(facts['bytes']))\nexcept MemoryError:\n    return False"
    assert attempt(box, eats, bytes=10_000_000) == "succeeded"
    assert attempt(box, eats, bytes=600_000_000).startswith("held:")
    assert box.run("for i in 1 2 3 4 5 6 7 8; do sleep 0.01 & done; wait", shell=True).ok
