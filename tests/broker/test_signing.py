"""Tests signing: git inside signs commits and tags with a key outside, and nothing else can be signed with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from corral import Sandbox, SandboxConfig
from corral.audit.audit_log import directory as audit_directory
from corral.broker.broker_openings import open_broker
from corral.broker.signing import kind_of_object, signing_services
from corral.broker.streams import RefusedError
from corral.guard.evaluate import commands_of
from corral.guard.git_signatures import is_signed
from corral.guard.machine import Machine
from corral.model.call import Call
from corral.model.grant import BROKER, Grant

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGN = [Grant(BROKER, "sign/git")]
COMMIT = b"tree " + b"a" * 40 + b"\nauthor A <a@x.example> 1 +0000\ncommitter A <a@x.example> 1 +0000\n\nmessage\n"
TAG = b"object " + b"a" * 40 + b"\ntype commit\ntag v1\ntagger A <a@x.example> 1 +0000\n\nmessage\n"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@x.example")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def key(tmp_path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    return tmp_path / "key"


@pytest.fixture
def config(project: Path, key: Path) -> SandboxConfig:
    git(project, "init", "-q", "-b", "main")
    return SandboxConfig(str(project), profile="workspace", timeout_seconds=120, signing_keys=(str(key),))


@pytest.fixture
def box(config: SandboxConfig) -> Iterator[Sandbox]:
    with served(config) as made:
        yield made


@contextmanager
def served(config: SandboxConfig) -> Iterator[Sandbox]:
    opened, server = open_broker(config, SIGN, os.environ)
    assert server is not None
    try:
        with Sandbox(opened) as made:
            yield made
    finally:
        server.close()


def log_of(config: SandboxConfig) -> list[dict[str, Any]]:
    files = [path for path in Path(audit_directory(os.environ)).glob("*") if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines() if config.project_root in line]
    return [json.loads(line) for line in lines]


def test_commit_and_tag_are_signed_with_the_key_outside(box: Sandbox, project: Path, key: Path, tmp_path: Path) -> None:
    identity = "git config user.name A; git config user.email a@x.example; "
    result = box.run(f"{identity} echo x > f && git add f && git commit -qm one && git tag -s v1 -m v1", shell=True)
    assert result.exit_code == 0, result
    allowed = tmp_path / "allowed"
    allowed.write_text(f"a@x.example {key.with_suffix('.pub').read_text()}")
    verify = ("-c", f"gpg.ssh.allowedSignersFile={allowed}")
    git(project, *verify, "verify-commit", "HEAD")
    git(project, *verify, "verify-tag", "v1")
    used, ended = ([entry for entry in log_of(box.config) if name in entry] for name in ("object", "result"))
    assert [(entry["event"], entry["target"], entry["object"]) for entry in used] == [
        ("broker", "sign/git", "commit"),
        ("broker", "sign/git", "tag"),
    ]
    assert [(entry["target"], entry["result"]["exit_code"]) for entry in ended] == [("sign/git", 0)] * 2


def test_key_is_not_inside(box: Sandbox, key: Path) -> None:
    assert b"PRIVATE KEY" in key.read_bytes()
    result = box.run(f"cat {key}; ls /run/corral /run/corral/bin; env", shell=True)
    assert b"PRIVATE" not in result.stdout
    assert b"SSH_AUTH_SOCK" not in result.stdout


# What a log-in signs: the session's id, a message number 50, the user, the service, the method.
LOG_IN = b"\0\0\0\x20" + b"s" * 32 + b"\x32\0\0\0\3ann\0\0\0\x0essh-connection\0\0\0\x09publickey"
OTHER_DATA = {
    "a log-in": LOG_IN,
    "a file": b"#!/bin/sh\nid\n",
    "a push certificate": b"certificate version 0.1\npusher A <a@x.example> 1 +0000\nnonce x\n\n0 1 refs/heads/main\n",
    "nothing": b"",
    "a commit with a NUL": COMMIT + b"\0",
    "a commit without a tree": COMMIT.partition(b"\n")[2],
    "a commit with an unknown header": COMMIT.replace(b"\n\n", b"\nsession x\n\n"),
    "a commit that begins with a blank line": b"\n" + COMMIT,
    "too large": COMMIT + b"x" * (1 << 20),
}


def test_nothing_but_git_objects_is_signed(box: Sandbox, project: Path, key: Path) -> None:
    for name, data in OTHER_DATA.items():
        (project / "data").write_bytes(data)
        result = box.run("sign ssh < data", shell=True)
        assert (result.exit_code, result.stdout) == (126, b""), name
    assert {(entry["decision"], entry["result"]["exit_code"]) for entry in log_of(box.config)} == {("deny", 126)}
    # The canary: with the key at hand, ssh-keygen signs anything.
    made = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", key], input=LOG_IN, capture_output=True, check=True
    )
    assert b"SSH SIGNATURE" in made.stdout


def test_other_words_are_refused(box: Sandbox, project: Path) -> None:
    lines = ["sign", "sign gpg", "sign gpg A", "sign ''", "sign ssh -n file", "sign ssh -f /etc/passwd", "sign ssh ssh"]
    # In a file, because the guard judges words that look like another command.
    (project / "all.sh").write_text("".join(f"{line} <data; echo $?\n" for line in lines))
    (project / "data").write_bytes(COMMIT)
    assert box.run(["sh", "all.sh"]).stdout == b"126\n" * len(lines)


def test_namespace_is_always_that_of_git(box: Sandbox, project: Path, key: Path, tmp_path: Path) -> None:
    (project / "data").write_bytes(COMMIT)
    result = box.run("sign ssh < data > data.sig", shell=True)
    assert result.exit_code == 0, result
    (tmp_path / "allowed").write_text(f"a@x.example {key.with_suffix('.pub').read_text()}")
    for space, status in (("git", 0), ("file", 255)):
        words = [
            "ssh-keygen",
            "-Y",
            "verify",
            "-n",
            space,
            "-f",
            tmp_path / "allowed",
            "-I",
            "a@x.example",
            "-s",
            project / "data.sig",
        ]
        assert subprocess.run(words, input=COMMIT, capture_output=True, check=False).returncode == status


@pytest.mark.parametrize(
    ("data", "kind"), [(COMMIT, "commit"), (TAG, "tag"), (TAG + COMMIT, "tag"), (COMMIT[:-20], "")]
)
def test_kind_of_object(data: bytes, kind: str) -> None:
    assert kind_of_object(data) == kind


def test_no_key_or_no_grant_is_no_service(config: SandboxConfig) -> None:
    assert signing_services(config, [Grant(BROKER, "gh/read")], os.environ) == {}
    assert signing_services(config.replace(signing_keys=()), SIGN, os.environ) == {}
    with pytest.raises(RefusedError, match="cannot be read"):
        open_broker(config.replace(signing_keys=("/nonexistent/key",)), SIGN, os.environ)


def test_key_in_the_project_is_refused(config: SandboxConfig, project: Path, key: Path) -> None:
    for name in ("key", "key.pub"):
        (project / name).write_bytes((key.parent / name).read_bytes())
    (project / "key").chmod(0o600)
    (project / "data").write_bytes(COMMIT)
    with served(config.replace(signing_keys=(str(project / "key"),))) as box:
        result = box.run("sign ssh < data", shell=True)
    assert (result.exit_code, result.stdout) == (126, b"")


IDENTITY = "git config user.name A; git config user.email a@x.example; "


def test_call_that_commits_gets_the_signature(config: SandboxConfig, project: Path) -> None:
    (project / "commit.sh").write_text("git commit -qm hidden --allow-empty\n")
    with Sandbox(config) as box:
        signed = box.run(f"{IDENTITY} echo x > f && git add f && git commit -qm one", shell=True)
        unsigned = [box.run(words) for words in (["git", "log"], ["git", "tag"], ["sh", "commit.sh"])]
    assert signed.exit_code == 0, signed
    assert [(grant.target, grant.by) for grant in signed.grants] == [("sign/git", "policy")]
    assert [result.grants for result in unsigned] == [(), (), ()]
    assert git(project, "log", "-1", "--format=%B", "HEAD~1").strip() == "one"
    assert "gpgsig" in git(project, "cat-file", "commit", "HEAD~1")
    # A commit that no command of the call shows is not signed, and the commit is made nevertheless.
    assert "gpgsig" not in git(project, "cat-file", "commit", "HEAD")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git commit -m x", True),
        ("cd . && git -c a.b=c commit -m x", True),
        ("git rebase main", True),
        ("git tag -s v1 -m v1", True),
        ("git tag -as v1 -m v1", True),
        ("git tag --local-user=A v1", True),
        ("git tag v1", False),
        ("git tag -l 'v*'", False),
        ("git status", False),
        ("echo git commit", False),
    ],
)
def test_commands_that_sign(text: str, expected: bool, project: Path) -> None:
    config = SandboxConfig(str(project), profile="workspace")
    commands, _ = commands_of(Call(text, shell=True), Machine.of(config))
    assert any(map(is_signed, commands)) == expected


@pytest.fixture
def gpg_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a key in a keyring of its own, and return its fingerprint."""
    # A short path: it holds a socket of gpg's agent.
    home = tempfile.mkdtemp(prefix="gpg-")
    monkeypatch.setenv("GNUPGHOME", home)
    words = ["gpg", "--batch", "-q", "--passphrase", "", "--quick-gen-key", "A <a@x.example>", "ed25519", "sign"]
    try:
        subprocess.run(words, check=True, capture_output=True)
        listed = subprocess.run(["gpg", "--list-secret-keys", "--with-colons"], check=True, capture_output=True).stdout
        yield next(line.split(":")[9] for line in listed.decode().splitlines() if line.startswith("fpr:"))
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], check=False, capture_output=True)
        shutil.rmtree(home)


@pytest.fixture
def gpg_box(config: SandboxConfig, gpg_key: str) -> Iterator[Sandbox]:
    with served(config.replace(signing_keys=(f"gpg:{gpg_key}",))) as made:
        yield made


@pytest.mark.real
def test_gpg_signs_commit_and_tag_outside(gpg_box: Sandbox, gpg_key: str, project: Path) -> None:
    result = gpg_box.run(
        f"{IDENTITY} echo x > f && git add f && git commit -q -S -m one && git tag -s v1 -m v1 && git log --show-signature",
        shell=True,
    )
    assert result.exit_code == 0, result
    git(project, "verify-commit", "HEAD")
    git(project, "verify-tag", "v1")
    assert [
        (entry["event"], entry["object"], entry["key"]) for entry in log_of(gpg_box.config) if "object" in entry
    ] == [
        ("broker", "commit", f"gpg:{gpg_key}"),
        ("broker", "tag", f"gpg:{gpg_key}"),
    ]
    # The keyring is not inside, so git there says that it cannot check.
    assert "No public key" in result.stdout_text


@pytest.mark.real
def test_gpg_signs_nothing_but_git_objects(gpg_box: Sandbox, gpg_key: str, project: Path) -> None:
    for name, data in OTHER_DATA.items():
        (project / "data").write_bytes(data)
        result = gpg_box.run(f"sign gpg {gpg_key} < data", shell=True)
        assert (result.exit_code, result.stdout) == (126, b""), name
    assert {(entry["decision"], entry["result"]["exit_code"]) for entry in log_of(gpg_box.config)} == {("deny", 126)}
    # The canary: with the keyring at hand, gpg signs anything.
    made = subprocess.run(["gpg", "--batch", "-bsau", gpg_key], input=LOG_IN, capture_output=True, check=True)
    assert b"PGP SIGNATURE" in made.stdout


@pytest.mark.real
def test_gpg_signs_only_with_named_keys(gpg_box: Sandbox, gpg_key: str, project: Path) -> None:
    other = ["gpg", "--batch", "-q", "--passphrase", "", "--quick-gen-key", "B <b@x.example>", "ed25519", "sign"]
    subprocess.run(other, check=True, capture_output=True)
    listed = subprocess.run(["gpg", "--list-secret-keys", "--with-colons"], check=True, capture_output=True).stdout
    keys = [line.split(":")[9] for line in listed.decode().splitlines() if line.startswith("fpr:")]
    (unnamed,) = set(keys) - {gpg_key}
    (project / "data").write_bytes(COMMIT)
    for name in (gpg_key, gpg_key[-16:], f"0x{gpg_key[-16:]}!", "A <a@x.example>"):
        assert "[GNUPG:] SIG_CREATED D " in gpg_box.run(["sh", "-c", f"sign gpg '{name}' < data"]).stderr_text
    for name in (unnamed, unnamed[-16:], unnamed[-8:]):
        result = gpg_box.run(["sh", "-c", f"sign gpg {name} < data"])
        assert (result.exit_code, result.stdout) == (126, b"")
        assert unnamed[-8:] in result.stderr_text
    # A name is not passed on: the committer's name chooses no key.
    result = gpg_box.run(["sh", "-c", "sign gpg 'B <b@x.example>' < data"])
    assert gpg_key in result.stderr_text
    # The canary: outside, the other key signs.
    made = subprocess.run(["gpg", "--batch", "-bsau", unnamed], input=COMMIT, capture_output=True, check=True)
    assert b"PGP SIGNATURE" in made.stdout


@pytest.mark.real
def test_gpg_keyring_and_agent_are_not_inside(gpg_box: Sandbox, gpg_key: str) -> None:
    home = os.environ["GNUPGHOME"]
    assert os.path.exists(f"{home}/S.gpg-agent") or os.path.isdir(f"/run/user/{os.getuid()}/gnupg")
    result = gpg_box.run(f"ls {home} /run/user; env; gpg --list-secret-keys", shell=True)
    assert gpg_key not in result.stdout_text
    assert "GNUPGHOME" not in result.stdout_text
    assert "S.gpg-agent" not in result.stdout_text


@pytest.mark.real
def test_gpg_keyring_in_the_project_is_refused(
    config: SandboxConfig, gpg_key: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "data").write_bytes(COMMIT)
    shutil.copytree(os.environ["GNUPGHOME"], project / "ring", ignore=shutil.ignore_patterns("S.*"))
    monkeypatch.setenv("GNUPGHOME", str(project / "ring"))
    with served(config.replace(signing_keys=(f"gpg:{gpg_key}",))) as box:
        result = box.run(f"sign gpg {gpg_key} < data", shell=True)
    assert (result.exit_code, result.stdout) == (126, b"")
    assert "where commands can write" in result.stderr_text
