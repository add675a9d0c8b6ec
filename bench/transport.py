"""Measures git's transport through the broker: a push over ssh to an sshd on loopback, and the stub that a command starts."""

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep

from bench._git_place import made_repository
from bench._place import workplace
from bench._rows import Row, Section, at_most
from bench._turns import ROUNDS, Options, compared, in_turns
from corral import Sandbox, SandboxConfig
from corral.broker.server import BrokerServer, Request, stub_text
from corral.broker.transport_openings import open_transports
from corral.model.grant import TRANSPORT, Grant

AS_USER = False  # the sshd of an ordinary user logs in only that user, whose shell may be nologin
FILES = 200
PUSH, STUB = at_most(1.1), at_most(1.3)
START_SECONDS = 10.0
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
_SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
StrictModes no
UsePAM no
PermitRootLogin yes
"""


class _Nothing:
    """Ends at once."""

    def handle(self, _: Request) -> int:
        return 0


def measure(options: Options) -> Section:
    """Return the time of a stub beside an empty Python, and of a push through the broker beside a bare one."""
    rows: list[Row] = []
    notes: list[str] = []
    with workplace() as folder:
        project = made_repository(folder / "contained", FILES)
        rows.append(_stub(project, options))
        if SSHD is None:
            notes.append("openssh-server is not installed, so no push was measured")
        else:
            with _server(folder / "ssh") as (url, command):
                rows.append(_push(folder, project, url, command, options))
            notes.append("a push of one new commit; the commit is not timed")
    return Section("what the transport of git costs", tuple(rows), tuple(notes))


def _stub(project: Path, options: Options) -> Row:
    config = SandboxConfig(str(project), profile="workspace")
    server = BrokerServer(config, {"nothing": _Nothing()})
    python = stub_text().partition(" ")[0].removeprefix("#!")
    try:
        with Sandbox(config.replace(containment=config.containment.replace(broker=server.directory))) as box:
            # One call that starts many, so that the cost of a call does not hide the difference.
            times = {}
            for name, words in (("stub", "/run/corral/bin/nothing"), ("python", f"{python} -I -S -c pass")):
                text = f"for i in 1 2 3 4 5 6 7 8 9 10; do {words}; done"
                (project / name).write_text(text)
                times[name] = _timed(box, ["bash", name])
            found = in_turns(times, min(options.rounds, 20))
    finally:
        server.close()
    return compared("ten stubs beside ten empty Pythons: corral", found["stub"], found["python"], STUB)


def _timed(box: Sandbox, words: list[str]) -> Callable[[], int]:
    def run() -> int:
        begun = perf_counter_ns()
        result = box.run(words)
        spent = perf_counter_ns() - begun
        if not result.ok:
            raise RuntimeError(f"{words} failed: {result.reason or result.stderr.decode()}")
        return spent

    return run


def _push(folder: Path, project: Path, url: str, command: str, options: Options) -> Row:
    ways: dict[str, Callable[[], int]] = {}
    bare = made_repository(folder / "bare", FILES)
    remotes = {}
    for name, place in (("corral", project), ("bare", bare)):
        remote = folder / f"{name}.git"
        subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=True)
        subprocess.run(["git", "-C", str(place), "remote", "add", "origin", f"{url}{remote}"], check=True)
        subprocess.run(["git", "-C", str(place), "config", "core.sshCommand", command], check=True)
        remotes[name] = f"{url}{remote}"
    (project / "push").write_text("git push -q origin main\n")
    config = SandboxConfig(str(project), profile="workspace", timeout_seconds=60)
    grant = Grant(TRANSPORT, f"push {remotes['corral']} main")
    opened, server = open_transports(config, [grant], os.environ)
    try:
        with Sandbox(opened) as box:
            contained = _timed(box, ["bash", "push"])
            plain = _bare(bare)
            ways = {"corral": _after_commit(project, contained), "bare": _after_commit(bare, plain)}
            found = in_turns(ways, max(3, options.rounds * 30 // ROUNDS))
    finally:
        if server is not None:
            server.close()
    return compared("git push over ssh: corral", found["corral"], found["bare"], PUSH)


def _after_commit(place: Path, push: Callable[[], int]) -> Callable[[], int]:
    def run() -> int:
        subprocess.run(["git", "-C", str(place), "commit", "-q", "--allow-empty", "-m", "more"], check=True)
        return push()

    return run


def _bare(place: Path) -> Callable[[], int]:
    def run() -> int:
        begun = perf_counter_ns()
        subprocess.run(["bash", "-c", "git push -q origin main"], cwd=place, check=True)
        return perf_counter_ns() - begun

    return run


@contextmanager
def _server(folder: Path) -> Iterator[tuple[str, str]]:
    """Start an sshd, and yield the beginning of its URLs and the user's ssh command."""
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    (folder / "sshd_config").write_text(_SERVER.format(port=port, folder=folder))
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(f"UserKnownHostsFile {folder}/known_hosts\nIdentityFile {folder}/user\n")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    process = subprocess.Popen([str(SSHD), "-D", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    try:
        give_up_at = monotonic() + START_SECONDS
        while not _answers(port):
            if monotonic() > give_up_at:
                raise TimeoutError("sshd does not answer")
            sleep(0.05)
        yield f"ssh://{getpass.getuser()}@127.0.0.1:{port}", f"ssh -F {folder}/config"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
