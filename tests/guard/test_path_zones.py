"""Tests the classification of paths, with near misses of every kind of place."""

from __future__ import annotations

import pytest

from corral.guard.path_zones import classify_path, inside, is_credential_file, is_program, is_standard_device

ROOT = "/work/proj"
HOME = "/home/me"
PLACES = {
    "/work/proj": "inside", "/work/proj/a/b": "inside", "/work/proj_evil/a": "outside", "/work": "ancestor", "/": "ancestor",
    "/work/proj/.git/hooks/x": "protected", "/work/proj/.git/config": "protected", "/work/proj/.git": "protected", "/work/proj/.git/index": "protected", "/work/proj/.git/index.lock": "inside", "/work/proj/vite.config.ts": "manifest", "/work/proj/.venv/bin/x": "manifest", "/work/proj/a/.cargo/config.toml": "manifest", "/work/proj/.aws/credentials": "env", "/work/proj/x.tfstate": "env",
    "/work/proj/.git/configs": "inside", "/work/proj/sub/.git/hooks/x": "protected", "/work/proj/.gitignore": "inside", "/work/proj/.envrc": "protected",
    "/work/proj/Cargo.toml": "manifest", "/work/proj/a.pem": "inside", "/work/proj/tls.key": "env", "/work/proj/key": "inside", "/work/proj/.env": "env", "/work/proj/.env.example": "inside", "/work/proj/a/.env": "env", "/work/proj/.claude/settings.json": "protected",
    "/home/me/.ssh/id": "secret", "/home/me/.ssh": "secret", "/home/me/.sshx": "outside", "/home/me/x": "outside", "/home/other/.ssh/id": "secret",
    "/home/other/x": "outside", "/root/.bashrc": "secret", "/root/x": "outside", "/etc/shadow": "secret", "/etc/shadow-": "secret", "/etc/passwd": "system",
    "/etc": "system", "/usr/bin/ls": "system", "/usrx": "outside", "/proc/cpuinfo": "system", "/proc/1/environ": "secret", "/proc/self/mem": "secret",
    "/tmp": "scratch", "/tmp/x": "scratch", "/tmpx": "outside", "/var/tmp/x": "outside", "/dev/null": "standard", "/dev/sda": "device", "/dev/shm/x": "scratch",
    "/dev/tty": "standard", "/var/log/x": "private", "/var/log/auth.log": "secret", "/var/run/docker.sock": "secret", "/mnt/x": "outside", "/dev/fd/3": "standard",
}  # fmt: skip


@pytest.mark.parametrize(("path", "place"), PLACES.items())
def test_path_is_classified(path: str, place: str) -> None:
    assert classify_path(path, ROOT, HOME) == place


def test_inside_compares_whole_components() -> None:
    assert [inside(p, "/a/b") for p in ("/a/b", "/a/b/c", "/a/bc", "/a", "/")] == [True, True, False, False, False]


def test_is_program_compares_whole_components() -> None:
    assert [is_program(p) for p in ("/usr/bin/ls", "/bin/ls", "/binx/ls", "/home/me/bin/ls")] == [
        True,
        True,
        False,
        False,
    ]


def test_standard_devices_are_recognised_as_written() -> None:
    assert [is_standard_device(p) for p in ("/dev/null", "/dev/../etc/shadow", "/dev/fd/1", "dev/null")] == [
        True,
        False,
        True,
        False,
    ]


def test_home_inside_the_project_keeps_its_credentials() -> None:
    assert [classify_path(p, "/home", HOME) for p in ("/home/me/.ssh/id", "/home/me/x", "/home/me")] == [
        "secret",
        "inside",
        "inside",
    ]
    assert classify_path("/home/me/.ssh/id", HOME, HOME) == "secret"


def test_glob_that_spells_a_credential_counts() -> None:
    globs = (".e*", ".[e]nv", ".en?", "id_*", "*", "*.json", "src*", ".g*", ".env.example")
    assert [is_credential_file(g) for g in globs] == [True, True, True, True, False, False, False, True, False]


def test_home_below_tmp_keeps_its_credentials() -> None:
    assert classify_path("/tmp/h/.ssh/id_rsa", "/tmp/p", "/tmp/h") == "secret"
    assert classify_path("/tmp/h/notes", "/tmp/p", "/tmp/h") == "scratch"
    assert classify_path("/tmp/other/.ssh/id_rsa", "/tmp/p", "/tmp/h") == "scratch"
