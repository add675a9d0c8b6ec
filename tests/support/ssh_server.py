"""Starts an sshd on loopback with throwaway keys, and an agent that holds the user's key."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from observe import eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:/usr/bin")
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PubkeyAuthentication yes
StrictModes no
UsePAM no
AcceptEnv GIT_PROTOCOL
PermitRootLogin yes
PerSourceMaxStartups none
"""


class SshServer:
    """A running sshd, and how the user reaches it."""

    def __init__(self, folder: Path, port: int, environ: dict[str, str]) -> None:
        self.folder = folder
        self.port = port
        self.environ = environ  # with the agent
        self.user = getpass.getuser()
        self.command = f"ssh -F {folder}/config"  # core.sshCommand of the user

    def url(self, path: Path) -> str:
        """Return the URL of a repository."""
        return f"ssh://{self.user}@127.0.0.1:{self.port}{path}"


def make_server(folder: Path, port: int) -> list[str]:
    """Make the keys of a server and of its user, and the settings of both. Return the command that starts the server."""
    assert SSHD is not None
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(CONFIG.format(port=port, folder=folder))
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(f"UserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile /dev/null\n")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    return [SSHD, "-D", "-f", str(folder / "sshd_config")]


@contextmanager
def ssh_agent(folder: Path) -> Iterator[dict[str, str]]:
    """Start an agent that alone has the user's key; yield the environment that names it."""
    agent = folder / "agent"
    environ = dict(os.environ) | {"SSH_AUTH_SOCK": str(agent)}
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent)], stdout=subprocess.DEVNULL)
    try:
        eventually(agent.exists)
        subprocess.run(["ssh-add", "-q", str(folder / "user")], env=environ, check=True)
        (folder / "user").unlink()
        yield environ
    finally:
        process.terminate()
        process.wait()


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """Start the server and the agent, and end both."""
    port = free_port()
    process = subprocess.Popen(make_server(folder, port), stderr=subprocess.DEVNULL)
    try:
        with ssh_agent(folder) as environ:
            eventually(lambda: _answers(port))
            yield SshServer(folder, port, environ)
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
