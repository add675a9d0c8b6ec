"""Tests git's transport to a repository on this machine: what passes, and each attack on it with its canary."""

import os
import subprocess
from itertools import product
from pathlib import Path

import pytest
from attempt import has_bubblewrap
from sampling import sampled
from transports import git, make_project, make_remote, refs, transports

from corral.broker.streams import RefusedError


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return make_remote(tmp_path / "srv" / "app.git")


@pytest.fixture
def work(project: Path, remote: Path) -> Path:
    make_project(project, str(remote))
    return project


WAYS = {
    "script": "git push -q origin work",
    "file URL": "git push -q file://{remote} work",
    "relative path": "git push -q ../srv/app.git work",
    "make": "printf 'all:\\n\\tgit push -q origin work\\n' > Makefile; make -s",
    "pipe": "echo work | xargs git push -q origin",
    "hook": "git config --global user.name x; git config --global user.email x@person.example; git init -q other; cd other; git commit -q --allow-empty -m x; mkdir -p .git/hooks; "
    "printf '#!/bin/sh\\ngit -C .. push -q origin work\\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit; "
    "git commit -q --allow-empty -m y",
}


@pytest.mark.parametrize("way", WAYS)
def test_push_reaches_the_granted_ref(work: Path, remote: Path, way: str) -> None:
    with transports(work, f"push {remote} refs/heads/work") as opened:
        result = opened.run(WAYS[way].format(remote=remote))
        assert (result.exit_code, opened.refusals()) == (0, []), result.stderr
    assert refs(remote)["refs/heads/work"] == git(work, "rev-parse", "work")


@pytest.mark.real
@pytest.mark.skipif(not has_bubblewrap(), reason="bubblewrap is not installed")
def test_bubblewrap_shows_the_broker_too(work: Path, remote: Path) -> None:
    with transports(work, f"push {remote} work", backend="bubblewrap") as opened:
        result = opened.run("git push -q origin work && command -v ssh")
        assert (result.backend, result.stdout) == ("bubblewrap", b"/run/corral/bin/ssh\n"), result.stderr
        # git fails, or a signal ends it: the broker may close the stream before git has sent everything.
        assert opened.run("git push -q origin :old").exit_code in (128, 141)
    assert refs(remote)["refs/heads/work"] == git(work, "rev-parse", "work")


def test_fetch_and_clone_work(work: Path, remote: Path) -> None:
    git(remote, "update-ref", "refs/heads/news", "refs/heads/main")
    with transports(work, f"fetch {remote}") as opened:
        result = opened.run(
            f"git fetch -q origin && git rev-parse origin/news && git clone -q file://{remote} copy && ls copy"
        )
        assert (result.exit_code, result.stderr) == (0, b"")
        assert result.stdout.decode().split() == [refs(remote)["refs/heads/main"], "a.txt"]


def test_without_a_grant_nothing_is_reached(work: Path, remote: Path, tmp_path: Path) -> None:
    other = make_remote(tmp_path / "srv" / "other.git")
    with transports(work, f"push {remote} work") as opened:
        result = opened.run(
            f"git -c remote.origin.url={other} push -q origin work; git push -q ssh://corral.local{other} work"
        )
        assert result.exit_code == 128
        assert opened.refusals() == [f"pushing to {other} is not granted"]
    assert "refs/heads/work" not in refs(other)


def test_fetch_grant_does_not_push(work: Path, remote: Path) -> None:
    with transports(work, f"fetch {remote}") as opened:
        assert opened.run("git push -q origin work").exit_code == 128
        assert opened.refusals() == [f"pushing to {remote} is not granted"]


# Pushes by their words, and the grants under which each passes. The refs words of the grants are keys of GRANTS.
GRANTS = {"named": "work", "open": "", "default named": "main", "deletion named": "-old", "tag named": "refs/tags/v2"}
PUSHES = {
    "create": ("work", {"named", "open"}),
    "create another branch": ("work:other", {"open"}),
    "update a branch": ("work:old", {"open"}),
    "force a branch": ("+apart:old", {"open"}),
    "default branch": ("work:main", {"default named"}),
    "delete": (":old", {"deletion named"}),
    "tag": ("work:refs/tags/v2", {"tag named"}),
    "delete a tag": (":v1", set()),
    "note": ("work:refs/notes/x", set()),
    "review": ("work:refs/for/main", set()),
    "two, one granted": ("work work:refs/tags/v3", set()),
}


# Each push with the grants under which it passes, and some of the others.
PASSING = [(push, grant) for push, (_, passing) in PUSHES.items() for grant in passing]


@pytest.mark.parametrize(("push", "grant"), sampled(product(PUSHES, GRANTS), keep=PASSING, every=4))
def test_refs_are_compared_with_the_grant(work: Path, remote: Path, push: str, grant: str) -> None:
    words, passing = PUSHES[push]
    before = refs(remote)
    with transports(work, f"push {remote} {GRANTS[grant]}".strip()) as opened:
        result = opened.run(f"git push -q origin {words}")
        assert (result.exit_code == 0) == (grant in passing), result.stderr
        assert len(opened.refusals()) == (grant not in passing)
    assert (refs(remote) != before) == (grant in passing)


@pytest.mark.parametrize("push", PUSHES)
def test_canary_every_push_works_outside(work: Path, remote: Path, push: str) -> None:
    git(work, "push", "-q", "origin", *PUSHES[push][0].split())


def test_repository_in_the_project_is_not_served(work: Path, tmp_path: Path) -> None:
    inner = make_remote(work / "inner.git")
    proof = tmp_path / "proof"
    hook = inner / "hooks" / "pre-receive"
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)
    link = tmp_path / "link.git"
    link.symlink_to(inner)
    for path in (inner, link):
        with transports(work, f"push {path} work") as opened:
            opened.run(f"git push -q ssh://corral.local{path} work")
            assert "which commands can write" in opened.refusals()[0]
    assert not proof.exists()
    # Outside, the hook runs.
    git(work, "push", "-q", str(link), "work")
    assert proof.exists()


def test_repository_with_a_hook_in_the_project_is_not_served(work: Path, remote: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    hook = work / "tool"
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)
    (remote / "hooks" / "update").symlink_to(hook)
    with transports(work, f"push {remote} work") as opened:
        opened.run("git push -q origin work")
        assert "which commands can write" in opened.refusals()[0]
    assert not proof.exists()
    git(work, "push", "-q", "origin", "work")
    assert proof.exists()


def test_hooks_path_in_a_granted_directory_is_not_served(work: Path, remote: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    git(remote, "config", "core.hooksPath", str(given))
    with transports(work, f"push {remote} work", write=(str(given),)) as opened:
        opened.run("git push -q origin work")
        assert "which commands can write" in opened.refusals()[0]


def test_hook_of_the_users_runs(work: Path, remote: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    hook = remote / "hooks" / "pre-receive"
    hook.write_text(f"#!/bin/sh\nenv > {proof}\n")
    hook.chmod(0o755)
    with transports(work, f"push {remote} work") as opened:
        assert opened.run("export GIT_TRACE=/x MINE=1; git push -q origin work").exit_code == 0
    assert "MINE=" not in proof.read_text()
    assert "GIT_TRACE=" not in proof.read_text()


STREAMS = {
    "half a packet": b"00a0" + b"0" * 40,
    "length 0001": b"0001",
    "length 0002": b"0002",
    "length 0003": b"0003",
    "empty packet": b"0004",
    "not a length": b"zzzz",
    "longer than a packet": b"fff5" + b"x" * 100,
    "certificate": b"0014push-cert\0 atomic",
    "shallow": b"0035shallow " + b"1" * 40 + b"\n",
    "push options": b"%04x" % (4 + 82 + 15 + 14) + b"0" * 40 + b" " + b"1" * 40 + b" refs/heads/work\0 push-options",
}


@pytest.mark.parametrize("what", sampled(STREAMS, every=3))
def test_malformed_push_is_refused(work: Path, remote: Path, what: str) -> None:
    (work / "stream").write_bytes(STREAMS[what])
    with transports(work, f"push {remote} work") as opened:
        opened.run(f"/run/corral/bin/ssh corral.local \"git-receive-pack '{remote}'\" < stream >/dev/null")
        assert len(opened.refusals()) == 1


def lines(*names: str) -> bytes:
    """Return the beginning of a push that creates refs."""
    made = [b"0" * 40 + b" " + b"1" * 40 + b" " + name.encode() for name in names]
    return b"".join(b"%04x" % (4 + len(line)) + line for line in made)


def test_ten_thousand_refs_are_refused(work: Path, remote: Path) -> None:
    (work / "stream").write_bytes(lines(*(f"refs/heads/n{number}" for number in range(10_000))) + b"0000")
    with transports(work, f"push {remote}") as opened:
        opened.run(f"/run/corral/bin/ssh corral.local \"git-receive-pack '{remote}'\" < stream >/dev/null")
        assert opened.refusals() == ["more than 4096 refs in one push"]


SHAPES = {
    "command": "corral.local id",
    "no quotes": "corral.local 'git-receive-pack {remote}'",
    "second command": "corral.local \"git-receive-pack '{remote}'; id\"",
    "command in the path": "corral.local \"git-receive-pack '{remote}'\\''; id; '\\'''\"",
    "proxy command": "-o ProxyCommand=id corral.local \"git-receive-pack '{remote}'\"",
    "other program": "corral.local \"git-upload-archive '{remote}'\"",
    "absolute program": "corral.local \"/bin/id '{remote}'\"",
    "option as host": "-oProxyCommand=id \"git-receive-pack '{remote}'\"",
    "other port": "-p 23 corral.local \"git-receive-pack '{remote}'\"",
    "two ports": "-p 22 -p 23 corral.local \"git-receive-pack '{remote}'\"",
    "end of options": "-- corral.local \"git-receive-pack '{remote}'\"",
    "user": "root@corral.local \"git-receive-pack '{remote}'\"",
    "nothing": "",
    "other path": "corral.local \"git-receive-pack '{remote}/../other.git'\"",
    "longer path": "corral.local \"git-receive-pack '{remote}/'\"",
}


@pytest.mark.parametrize("what", sampled(SHAPES, every=3))
def test_other_shape_is_refused(work: Path, remote: Path, what: str) -> None:
    with transports(work, f"push {remote} work", f"fetch {remote}") as opened:
        result = opened.run(f"/run/corral/bin/ssh {SHAPES[what].format(remote=remote)} </dev/null")
        assert (result.exit_code, result.stdout, len(opened.refusals())) == (126, b"", 1)


PROGRAMS = {
    "receive-pack": "git push -q --receive-pack='touch {proof}; git-receive-pack' origin work",
    "exec": "git push -q --exec=/bin/id origin work",
    "upload-pack": "git fetch -q --upload-pack='touch {proof}; git-upload-pack' origin",
    "ssh command": "git -c core.sshCommand='touch {proof};' push -q origin work",
    "helper": "git push -q 'ext::sh -c touch% {proof}' work",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_program_of_the_agents_does_not_run_outside(work: Path, remote: Path, tmp_path: Path, what: str) -> None:
    proof = tmp_path / "proof"
    with transports(work, f"push {remote} work", f"fetch {remote}") as opened:
        opened.run(PROGRAMS[what].format(proof=proof) + "; true")
    assert not proof.exists()
    # It runs where git runs, so outside it would run outside.
    url = str(remote) if what != "ssh command" else f"ssh://x.example{remote}"
    git(work, "remote", "set-url", "origin", url)
    env = os.environ | {"GIT_ALLOW_PROTOCOL": "ext:file:ssh"}
    subprocess.run(PROGRAMS[what].format(proof=proof), shell=True, cwd=work, env=env, capture_output=True, check=False)
    assert proof.exists() or what == "exec"


def test_grant_of_another_kind_of_url_is_refused(work: Path) -> None:
    for url in (
        "ext::sh",
        "http://a.example/x",
        "git://a.example/x",
        "ssh://-oProxyCommand=id/x",
        "-x:y",
        "ssh://a/x'y",
        "https://a/../x",
    ):
        with pytest.raises(RefusedError), transports(work, f"push {url} work"):
            pass
