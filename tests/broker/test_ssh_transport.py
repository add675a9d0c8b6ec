"""Tests git's transport over ssh with a real sshd on loopback, a throwaway key and an agent."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from observe import alive, eventually
from ssh_server import SSHD, SshServer, ssh_server
from transports import git, make_project, make_remote, refs, transports

pytestmark = [pytest.mark.real, pytest.mark.skipif(SSHD is None, reason="openssh-server is not installed")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("ssh") / "server") as made:
        yield made


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return make_remote(tmp_path / "srv" / "app.git")


@pytest.fixture
def work(project: Path, remote: Path, server: SshServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_project(project, server.url(remote))
    git(project, "config", "core.sshCommand", server.command)
    monkeypatch.setenv("SSH_AUTH_SOCK", server.environ["SSH_AUTH_SOCK"])
    return project


WAYS = {
    "script": "git push -q origin work",
    "make": "printf 'all:\\n\\tgit push -q origin work\\n' > Makefile; make -s",
    "own ssh command": "git -c core.sshCommand=ssh push -q origin work",
    "options by habit": "GIT_SSH_COMMAND='ssh -o ConnectTimeout=5 -o LogLevel=ERROR' git push -q origin work",
}


@pytest.mark.parametrize("way", WAYS)
def test_push_reaches_the_granted_ref(work: Path, remote: Path, server: SshServer, way: str) -> None:
    with transports(work, f"push {server.url(remote)} work") as opened:
        result = opened.run(WAYS[way])
        assert (result.exit_code, opened.refusals()) == (0, []), result.stderr
    assert refs(remote)["refs/heads/work"] == git(work, "rev-parse", "work")


def test_fetch_clone_and_submodule_work(work: Path, remote: Path, server: SshServer) -> None:
    with transports(work, f"fetch {server.url(remote)}") as opened:
        url = server.url(remote)
        text = f"git fetch -q origin && git clone -q {url} copy && git submodule -q add {url} sub && ls copy sub"
        result = opened.run(text)
        assert (result.exit_code, result.stdout) == (0, b"copy:\na.txt\n\nsub:\na.txt\n"), result.stderr


def test_command_of_the_users_configuration_is_used(work: Path, remote: Path, server: SshServer) -> None:
    git(work, "config", "--unset", "core.sshCommand")
    git(work, "config", "--global", "core.sshCommand", server.command)
    try:
        with transports(work, f"push {server.url(remote)} work") as opened:
            assert opened.run("git push -q origin work").exit_code == 0
    finally:
        git(work, "config", "--global", "--unset", "core.sshCommand")


@pytest.mark.parametrize("push", ["work:main", ":old", "work:refs/tags/v2"])
def test_refs_without_names_exclude_default_branch_tags_and_deletion(
    work: Path, remote: Path, server: SshServer, push: str
) -> None:
    before = refs(remote)
    with transports(work, f"push {server.url(remote)}") as opened:
        assert opened.run(f"git push -q origin {push}").exit_code != 0
        assert len(opened.refusals()) == 1
        assert refs(remote) == before
        assert opened.run("git push -q origin work work:other").exit_code == 0
    # Outside, it works.
    git(work, "push", "-q", "origin", push)
    assert refs(remote) != before


def test_other_repository_of_the_host_is_refused(work: Path, remote: Path, server: SshServer, tmp_path: Path) -> None:
    other = make_remote(tmp_path / "srv" / "other.git")
    with transports(work, f"push {server.url(remote)} work") as opened:
        assert opened.run(f"git push -q {server.url(other)} work").exit_code == 128
        assert opened.run(f"git -c remote.origin.pushurl={server.url(other)} push -q origin work").exit_code == 128
        assert len(opened.refusals()) == 2
    git(work, "push", "-q", server.url(other), "work")


COMMANDS = {
    "command": "{user}@127.0.0.1 touch {proof}",
    "port and command": "-p {port} {user}@127.0.0.1 touch {proof}",
    "proxy command": "-o 'ProxyCommand=touch {proof}' -p {port} {user}@127.0.0.1 \"git-receive-pack '{remote}'\"",
    "configuration": "-F {project}/config -p {port} {user}@127.0.0.1 \"git-receive-pack '{remote}'\"",
    "second command": "-p {port} {user}@127.0.0.1 \"git-receive-pack '{remote}'; touch {proof}\"",
    "other program": "-p {port} {user}@127.0.0.1 \"touch {proof}; git-receive-pack '{remote}'\"",
}


@pytest.mark.parametrize("what", COMMANDS)
def test_other_command_is_not_run(work: Path, remote: Path, server: SshServer, tmp_path: Path, what: str) -> None:
    proof = tmp_path / "proof"
    (work / "config").write_text(f"ProxyCommand touch {proof}\n")
    words = COMMANDS[what].format(proof=proof, user=server.user, port=server.port, remote=remote, project=work)
    with transports(work, f"push {server.url(remote)} work") as opened:
        assert opened.run(f"/run/corral/bin/ssh {words} </dev/null").exit_code == 126
        assert len(opened.refusals()) == 1
    assert not proof.exists()
    # Outside, the user's ssh runs it.
    more = "" if what == "configuration" else f"-F {server.folder}/config"
    port = f"-p {server.port}" if what == "command" else ""
    subprocess.run(
        f"ssh {more} {port} {words} </dev/null", shell=True, env=server.environ, capture_output=True, check=False
    )
    assert proof.exists()


def test_key_and_agent_are_absent_inside(work: Path, remote: Path, server: SshServer) -> None:
    agent = server.environ["SSH_AUTH_SOCK"]
    with transports(work, f"push {server.url(remote)} work") as opened:
        text = f"git push -q origin work; env; cat /proc/*/environ; ls {server.folder}; cat /proc/*/cmdline; ssh-add -l"
        result = opened.run(text)
        assert result.exit_code != 0
        assert agent.encode() not in result.stdout.replace(text.encode(), b"")
        assert b"The agent has no identities" not in result.stdout + result.stderr
        assert b"SHA256" not in result.stdout
    assert b"SHA256" in subprocess.run(["ssh-add", "-l"], env=server.environ, capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    "habit", ["", "GIT_SSH_COMMAND='ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null' "]
)
def test_unknown_host_key_is_refused_without_a_question(
    work: Path, remote: Path, server: SshServer, habit: str
) -> None:
    git(work, "config", "core.sshCommand", f"ssh -F {server.folder}/other")
    (server.folder / "other").write_text("UserKnownHostsFile /dev/null\nGlobalKnownHostsFile /dev/null\n")
    with transports(work, f"push {server.url(remote)} work") as opened:
        result = opened.run(f"{habit}git push -q origin work")
        assert (result.exit_code, b"Host key verification failed" in result.stderr) == (128, True)


SSH_COMMANDS = {
    "other program": "sh -c id",
    "proxy command": "ssh -o ProxyCommand=id",
    "configuration in the project": "ssh -F {project}/config",
    "key in the project": "ssh -i {project}/key",
    "relative": "ssh -i key",
    "port": "ssh -p 22",
}


@pytest.mark.parametrize("what", SSH_COMMANDS)
def test_other_ssh_command_of_the_user_is_refused(work: Path, remote: Path, server: SshServer, what: str) -> None:
    git(work, "config", "core.sshCommand", SSH_COMMANDS[what].format(project=work))
    with transports(work, f"push {server.url(remote)} work") as opened:
        assert opened.run("git push -q origin work").exit_code == 128
        assert "core.sshCommand" in opened.refusals()[0]


def test_killed_stub_ends_ssh(work: Path, remote: Path, server: SshServer) -> None:
    with transports(work, f"push {server.url(remote)} work") as opened:
        words = f"-p {server.port} {server.user}@127.0.0.1 \"git-receive-pack '{remote}'\""
        opened.run(
            f"mkfifo in out; /run/corral/bin/ssh {words} <in >out & exec 3>in 4<out; head -c 4 <&4; kill -9 $!; wait"
        )
        eventually(lambda: len(opened.server.served()) == 1)
        assert alive(f"{server.folder}/config") == []


def test_nested_repository_does_not_run_its_ssh_command_outside(
    work: Path, remote: Path, server: SshServer, tmp_path: Path
) -> None:
    proof = tmp_path / "proof"
    with transports(work, f"push {server.url(remote)} work", f"fetch {server.url(remote)}") as opened:
        text = f"git clone -q {server.url(remote)} inner; cd inner; git config core.sshCommand 'touch {proof};'; git fetch -q; echo $?"
        assert opened.run(text).stdout == b"0\n"
    assert not proof.exists()
    canary = tmp_path / "canary"
    git(tmp_path, "clone", "-q", str(remote), str(canary))
    git(canary, "remote", "set-url", "origin", server.url(remote))
    git(canary, "config", "core.sshCommand", f"touch {proof};")
    subprocess.run(["git", "fetch", "-q"], cwd=canary, env=os.environ, capture_output=True, check=False)
    assert proof.exists()
