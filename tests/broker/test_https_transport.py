"""Tests git's transport over https: requests of one repository alone, with a credential that commands cannot read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from https_forge import BASIC, NAME, TOKEN, Forge, https_forge
from observe import alive, eventually, unique_seconds
from transports import git, make_project, make_remote, refs, transports

from corral._lib.network.request_grants import matches
from corral.broker import git_credentials
from corral.broker.streams import RefusedError


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    made = make_remote(tmp_path / "srv" / "team" / "app.git")
    git(made, "config", "http.receivepack", "true")
    return made


@pytest.fixture
def forge(tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forge]:
    folder = tmp_path / "forge"
    folder.mkdir()
    with https_forge(folder, remote.parents[1]) as made:
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        settings = f"""
[credential "https://{NAME}:{made.port}"]
    helper = "!f() {{ echo username=person; echo password={TOKEN}; echo $1 >> {folder}/asked; }}; f"
[http]
    curloptResolve = {NAME}:{made.port}:127.0.0.1
    sslCAInfo = {folder}/ca.pem
"""
        (folder / "gitconfig").write_text(settings)
        config = Path(os.environ["HOME"]) / ".gitconfig"
        assert not config.exists()
        config.write_text(settings)
        yield made
        config.unlink()


@pytest.fixture
def work(project: Path, remote: Path, forge: Forge) -> Path:
    make_project(project, forge.url("team/app.git"))
    return project


HOSTS = (f"{NAME}=127.0.0.1",)


def test_push_fetch_and_clone_work(work: Path, remote: Path, forge: Forge) -> None:
    url = forge.url("team/app.git")
    with transports(work, f"push {url} work", hosts=HOSTS) as opened:
        result = opened.run(f"git push -q origin work && git fetch -q origin && git clone -q {url} copy && ls copy")
        assert (result.exit_code, result.stdout) == (0, b"a.txt\n"), result.stderr
    assert refs(remote)["refs/heads/work"] == git(work, "rev-parse", "work")


def test_push_of_a_large_pack_works(work: Path, remote: Path, forge: Forge) -> None:
    # Git sends it in chunks, after a first request that holds an empty list of refs.
    (work / "large").write_bytes(os.urandom(3_000_000))
    git(work, "add", "large")
    git(work, "commit", "-qm", "large")
    with transports(work, f"push {forge.url('team/app.git')} work", hosts=HOSTS) as opened:
        result = opened.run("git push -q origin work")
        assert result.exit_code == 0, (result.stderr, result.connections)
    assert refs(remote)["refs/heads/work"] == git(work, "rev-parse", "work")


def test_token_is_absent_inside(work: Path, forge: Forge) -> None:
    with transports(work, f"push {forge.url('team/app.git')} work", hosts=HOSTS) as opened:
        text = "GIT_CURL_VERBOSE=1 GIT_TRACE_CURL=1 git push origin work; env; cat /proc/*/environ /proc/*/cmdline; "
        result = opened.run(text + "cat ~/.gitconfig /run/corral/gitconfig; grep -rs stays-outside / --include=* -l "
                            "--exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=opt | head")  # fmt: skip
        said = result.stdout + result.stderr
        assert TOKEN.encode() not in said
        assert BASIC.split()[1].encode() not in said
    # Outside, git shows the helper's answer.
    assert TOKEN in git(work, "config", "--global", "--list")


SEARCH = """
import os, sys
wanted, found, read = [word[::-1].encode() for word in sys.argv[1:]], set(), 0
for pid in {*filter(str.isdigit, os.listdir("/proc"))} - {str(os.getpid())}:
    try:
        maps, memory = open(f"/proc/{pid}/maps"), open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        continue
    for line in maps:
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        try:
            memory.seek(begin)
            data = memory.read(end - begin)
        except (OSError, OverflowError):
            continue
        read += len(data)
        found |= {word for word in wanted if word in data}
print(sorted(found), read > 1 << 20)
"""


def test_token_is_absent_from_the_memory_of_git_inside(work: Path, forge: Forge) -> None:
    # The hook runs while git holds its connection. The words are reversed, so that nothing else inside contains them.
    (work / "search.py").write_text(SEARCH)
    (work / "hooks").mkdir()
    words = " ".join(word[::-1] for word in (TOKEN, BASIC.split()[1], "held-by-git"))
    (work / "hooks" / "pre-push").write_text(f"#!/bin/sh\npython3 search.py {words} > found\n")
    (work / "hooks" / "pre-push").chmod(0o755)
    with transports(work, f"push {forge.url('team/app.git')} work", hosts=HOSTS) as opened:
        # The control is in git's memory, by the name of a configuration key.
        result = opened.run(
            "git -c core.hooksPath=hooks -c a.b=$(echo tig-yb-dleh | rev) push -q origin work; cat found"
        )
        assert (result.exit_code, result.stdout) == (0, b"[b'held-by-git'] True\n"), result.stderr


PUSHES = {
    "default branch": "work:main",
    "other branch": "work:other",
    "delete": ":old",
    "tag": "work:refs/tags/v2",
    "one of two": "work work:refs/tags/v3",
}


@pytest.mark.parametrize("what", PUSHES)
def test_other_refs_are_refused(work: Path, remote: Path, forge: Forge, what: str) -> None:
    before = refs(remote)
    with transports(work, f"push {forge.url('team/app.git')} work", hosts=HOSTS) as opened:
        assert opened.run(f"git push -q origin {PUSHES[what]}").exit_code != 0
    assert refs(remote) == before
    git(work, "push", "-q", "origin", *PUSHES[what].split())
    assert refs(remote) != before


def test_push_without_names_excludes_the_default_branch(work: Path, remote: Path, forge: Forge) -> None:
    before = refs(remote)
    with transports(work, f"push {forge.url('team/app.git')}", hosts=HOSTS) as opened:
        result = opened.run(
            "git push -q origin work:main; git push -q origin work:refs/tags/v2; git push -q origin :old"
        )
        assert (result.exit_code != 0, refs(remote)) == (True, before)
        result = opened.run("git push -q origin work work:other")
        assert result.exit_code == 0, result.stderr
    assert {*refs(remote)} == {*before, "refs/heads/work", "refs/heads/other"}


def test_fetch_grant_does_not_push(work: Path, remote: Path, forge: Forge) -> None:
    before = refs(remote)
    with transports(work, f"fetch {forge.url('team/app.git')}", hosts=HOSTS) as opened:
        assert opened.run("git fetch -q origin").exit_code == 0
        assert opened.run("git push -q origin work").exit_code != 0
    assert refs(remote) == before
    assert not [request for request in forge.requests if "receive-pack" in request[1]]


TARGETS = {
    "other repository": "/team/other.git/info/refs?service=git-upload-pack",
    "step up": "/team/app.git/../other.git/info/refs?service=git-upload-pack",
    "encoded step up": "/team/app.git/info/lfs/%2e%2e/%2e%2e/info/refs?service=git-receive-pack",
    "interface": "/api/v4/user",
    "other query": "/team/app.git/info/refs?service=git-upload-pack&x=1",
    "root": "/",
    "doubled slash": "/team/app.git//git-receive-pack",
}


@pytest.mark.parametrize("what", TARGETS)
def test_other_request_does_not_leave(work: Path, forge: Forge, what: str) -> None:
    make_remote(Path(forge.folder).parent / "srv" / "team" / "other.git")
    url = f"http://{NAME}:{forge.port}{TARGETS[what]}"
    with transports(work, f"push {forge.url('team/app.git')} work", hosts=HOSTS) as opened:
        result = opened.run(f"curl -sS --path-as-is -o /dev/null -w '%{{http_code}}' '{url}'")
        assert result.stdout == b"403"
        tunnel = opened.run(f"curl -sSk --path-as-is https://{NAME}:{forge.port}{TARGETS[what].split('?')[0]}")
        assert tunnel.exit_code != 0
        granted = opened.run(
            f"curl -sS -o /dev/null -w '%{{http_code}}' 'http://{NAME}:{forge.port}/team/app.git/info/refs?service=git-upload-pack'"
        )
        assert granted.stdout == b"200"
    assert [request[1] for request in forge.requests] == ["/team/app.git/info/refs?service=git-upload-pack"]


def test_compressed_push_is_refused(work: Path, remote: Path, forge: Forge) -> None:
    url = f"http://{NAME}:{forge.port}/team/app.git/git-receive-pack"
    with transports(work, f"push {forge.url('team/app.git')} work", hosts=HOSTS) as opened:
        for header in ("Content-Encoding: gzip", "Content_Encoding: gzip"):
            result = opened.run(f"echo 0000 | gzip | curl -sS --data-binary @- -H '{header}' {url}")
            assert b"compressed request" in result.stdout
    assert forge.requests == []


def test_refused_credential_is_not_rejected(work: Path, forge: Forge) -> None:
    with transports(work, f"push {forge.url('team/app.git')} work", hosts=HOSTS) as opened:
        opened.run("git push -q origin work; git credential reject <<< $'protocol=https\\nhost=x\\n'")
    assert (forge.folder / "asked").read_text() == "get\n"


def test_hanging_credential_helper_is_ended(work: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = unique_seconds()
    config = Path(os.environ["HOME"]) / ".gitconfig"
    config.write_text(f'[credential]\n\thelper = "!sleep {seconds};:"\n')
    monkeypatch.setattr(git_credentials, "CREDENTIAL_SECONDS", 1.0)
    with (
        pytest.raises(RefusedError, match="did not answer"),
        transports(work, f"push {forge.url('team/app.git')} work"),
    ):
        pass
    # The kernel takes a moment to end a killed process.
    eventually(lambda: not alive(seconds))


def test_configuration_of_the_project_is_not_read(work: Path, forge: Forge, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    git(work, "config", "credential.helper", f"!touch {proof};:")
    here = os.getcwd()
    os.chdir(work)
    try:
        with transports(work, f"push {forge.url('team/app.git')} work", hosts=HOSTS):
            assert not proof.exists()
    finally:
        os.chdir(here)
    git(work, "push", "-q", "origin", "work:canary")
    assert proof.exists()


PREFIX = "/team/app.git/info/lfs/*"
BELOW = {
    "objects/batch": True,
    "locks?path=a%20b": True,
    "": False,
    "../../x": False,
    "..;/x": False,
    "%2e%2e/x": False,
    "a//b": False,
    ".git/config": False,
    "a\\b": False,
    "a?b#c": False,
}


@pytest.mark.parametrize("rest", BELOW)
def test_only_plain_paths_are_below_a_prefix(rest: str) -> None:
    assert matches(PREFIX, PREFIX[:-1] + rest) == BELOW[rest]
