"""The commands of root do not see files of the machine that other users may not read. Those of an ordinary user see what they saw."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import has_bubblewrap, must_hold
from machines import import_path

from corral.containment.filesystem.private_files import MAX_BYTES, MAX_ENTRIES, PrivateFiles, SystemWatch

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root owns these files")

# Files of services that only root reads, with the modes that their packages give them.
PRIVATE = [
    "/etc/letsencrypt/archive/a.example/privkey1.pem", "/etc/wireguard/wg0.conf", "/etc/kubernetes/admin.conf", "/etc/kubernetes/pki/ca.key",
    "/etc/rancher/k3s/k3s.yaml", "/etc/rancher/node/password", "/etc/NetworkManager/system-connections/home.nmconnection", "/etc/mysql/debian.cnf",
    "/etc/ppp/chap-secrets", "/etc/ppp/pap-secrets", "/etc/gitlab-runner/config.toml", "/etc/openvpn/server.key", "/etc/ipsec.secrets", "/etc/crypttab.key",
    "/etc/msmtprc", "/etc/exim4/passwd.client", "/etc/postfix/sasl_passwd", "/etc/dovecot/private/key.pem", "/etc/ssl/mongodb.pem", "/etc/keydb/keydb.conf",
    "/etc/grafana/grafana.ini", "/etc/vault.d/vault.hcl", "/etc/consul.d/consul.hcl", "/etc/nomad.d/nomad.hcl", "/etc/docker/key.json", "/etc/ceph/ceph.keyring",
    "/etc/borgmatic/config.yaml", "/etc/restic/password", "/etc/cloudflared/cert.pem", "/etc/tailscale/key", "/etc/apt/auth.conf.d/90.conf", "/etc/samba/credentials",
    "/etc/bind/rndc.key", "/etc/munge/munge.key", "/etc/slurm/slurmdbd.conf", "/etc/hostapd/hostapd.conf", "/etc/wpa_supplicant/wpa.conf", "/etc/nut/upsd.users",
    "/etc/asterisk/manager.conf", "/etc/freeradius/clients.conf", "/etc/sssd/sssd.conf", "/etc/cups/subscriptions.conf", "/etc/zabbix/agent.psk", "/etc/.hidden/token",
    "/etc/default/app", "/etc/cron.d/backup", "/etc/systemd/system/app.service.d/env.conf", "/etc/environment.d/secret.conf",
    "/opt/app/config/token", "/opt/app/.env", "/opt/gitlab/etc/gitlab-secrets.json", "/opt/splunk/passwd", "/opt/deep/a/b/c/d/e/key",
    "/opt/tool/etc/key", "/opt/tool/lib/key", "/usr/local/etc/app/password", "/usr/local/etc/stunnel.pem",
]  # fmt: skip
# Readable by name for everybody, in a directory that others cannot enter or that a link leads to.
BEHIND = [
    "/etc/closed/readable",
    "/etc/closed/deeper/readable",
    "/opt/vault/readable",
    "/usr/local/share/linked/key",
    "/usr/local/share/file-key",
]
PUBLIC = [
    "/etc/app/app.conf",
    "/etc/app/enterable/by-name",
    "/opt/app/README",
    "/opt/tool/lib/data",
    "/usr/local/etc/plain.conf",
    "/opt/granted/token",
]

# Runs in its own mount namespace, with /etc, /opt and /usr/local of its own.
PROGRAM = """
import json, os, subprocess, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
project, backend = sys.argv[2], sys.argv[3]
private, behind, public = json.loads(sys.argv[4])
from corral import Containment, Sandbox, SandboxConfig
from corral.apps.unguarded import unguarded

def write(path, mode):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("canary:" + path + "\\n")
    os.chmod(path, mode)

for number, path in enumerate(private):
    write(path, (0o600, 0o640, 0o400, 0o660, 0o700, 0o711)[number % 6])
for path in (*behind, *public):
    write(path, 0o644)
os.chmod("/etc/closed", 0o750)
os.chmod("/opt/vault", 0o700)
os.chmod("/etc/app/enterable", 0o711)
os.chmod("/usr/local/share/linked/key", 0o600)
os.chmod("/usr/local/share/file-key", 0o600)
os.chmod("/opt/granted/token", 0o600)
os.symlink("/usr/local/share/linked", "/etc/linked")
os.symlink("../usr/local/share/file-key", "/etc/file-key")
os.makedirs("/etc/letsencrypt/live/a.example", exist_ok=True)
os.symlink("../../archive/a.example/privkey1.pem", "/etc/letsencrypt/live/a.example/privkey.pem")
os.makedirs("/opt/tool/bin", exist_ok=True)
with open("/opt/tool/bin/tool", "w") as file:
    file.write("#!/bin/sh\\ncat /opt/tool/lib/data\\n")
os.chmod("/opt/tool/bin/tool", 0o755)
os.environ["PATH"] = "/opt/tool/bin:" + os.environ["PATH"]

LOOK = "grep -RahoE 'canary:[A-Za-z0-9./_-]+' /etc /opt /usr/local/etc /usr/local/share/linked /usr/local/share/file-key 2>/dev/null; cat /etc/app/enterable/by-name; tool; true"
found = {"plain": subprocess.run(["sh", "-c", LOOK], capture_output=True, text=True).stdout.split()}
config = SandboxConfig(project, containment=Containment(backend=backend, read=("/opt/granted",)))
with Sandbox(unguarded(config)) as box:
    def look():
        result = box.run(LOOK, shell=True)
        return (result.stdout_text or result.stderr_text).split()
    found["first"] = look()
    found["again"] = look()
    box.run(["true"])
    write("/etc/new/late-key", 0o600)
    write("/opt/app/late-key", 0o600)
    os.chmod("/etc/app/app.conf", 0o600)
    write("/etc/wireguard/next", 0o600)
    os.rename("/etc/wireguard/next", "/etc/wireguard/wg0.conf")
    found["late"] = look()
    with box.start("read -r go", shell=True, open_stdin=True) as busy:
        write("/etc/later-key", 0o600)
        found["later"] = look()
        busy.kill()
    found["usual"] = box.run("id -un && ls / > /dev/null && getent passwd root", shell=True).exit_code
print(json.dumps(found))
"""


def run_apart(project: Path, backend: str, above: Path) -> dict[str, list[str]]:
    """Run the program that sees copies of the machine's directories, and return the object that it prints."""
    (above / "opt").mkdir()
    script = f"mount --bind {above}/opt /opt && "
    for name in ("etc", "usr/local"):
        upper, work = above / "upper" / name, above / "work" / name
        upper.mkdir(parents=True)
        work.mkdir(parents=True)
        script += f"mount -t overlay overlay -o userxattr,lowerdir=/{name},upperdir={upper},workdir={work} /{name} && "
    apart = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
    words = [str(project), backend, json.dumps([PRIVATE, BEHIND, PUBLIC])]
    whole = [*apart, "sh", "-c", f'{script} exec "$@"', "sh", sys.executable, "-c", PROGRAM, import_path(), *words]
    done = subprocess.run(whole, capture_output=True, text=True, check=False)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        must_hold()
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@is_root
@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_root_sees_what_others_may_read(backend: str, project: Path, tmp_path: Path) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    found = run_apart(project, backend, tmp_path)
    shown = {f"canary:{path}" for path in PUBLIC}
    everything = shown | {f"canary:{path}" for path in (*PRIVATE, *BEHIND)}
    assert set(found["plain"]) == everything
    assert found["usual"] == 0
    assert [set(found[step]) for step in ("first", "again")] == [shown, shown]
    assert [set(found[step]) for step in ("late", "later")] == [shown - {"canary:/etc/app/app.conf"}] * 2


def write(path: Path, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(mode)
    return path


def names(files: PrivateFiles, root: Path) -> list[str]:
    return [path.removeprefix(f"{root}/") for path in files.scan().paths]


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """A directory to search."""
    path = tmp_path / "etc"
    path.mkdir()
    return path


SEARCHES: dict[str, tuple[dict[str, int], list[str]]] = {
    "a readable file": ({"a": 0o644, "d/b": 0o604}, []),
    "a private file": ({"a": 0o600, "d/b": 0o640, "d/c": 0o644}, ["a", "d/b"]),
    "a program that others run but do not read": ({"a": 0o711}, ["a"]),
    "a file without any right": ({"a": 0}, ["a"]),
}  # fmt: skip


@pytest.mark.parametrize(("made", "expected"), SEARCHES.values(), ids=SEARCHES)
def test_search_finds_private_files(made: dict[str, int], expected: list[str], etc: Path) -> None:
    for name, mode in made.items():
        write(etc / name, mode)
    assert names(PrivateFiles(roots=[str(etc)]), etc) == expected


def test_closed_directory_is_hidden_whole_and_an_enterable_one_is_searched(etc: Path) -> None:
    write(etc / "closed" / "a", 0o644)
    write(etc / "enterable" / "b", 0o600)
    write(etc / "enterable" / "c", 0o644)
    (etc / "closed").chmod(0o744)
    (etc / "enterable").chmod(0o711)
    assert names(PrivateFiles(roots=[str(etc)]), etc) == ["closed", "enterable/b"]


def test_named_paths_are_not_searched(etc: Path) -> None:
    write(etc / "closed" / "project" / ".env")
    write(etc / "closed" / "other")
    write(etc / "venv" / "lib" / "x")
    write(etc / "venv" / "secret")
    for name in ("closed", "venv", "venv/lib"):
        (etc / name).chmod(0o700)
    files = PrivateFiles([f"{etc}/closed/project"], [f"{etc}/venv/lib"], [str(etc)])
    assert names(files, etc) == ["closed/other", "venv/secret"]


def test_what_is_beyond_the_bound_is_hidden(etc: Path) -> None:
    for number in range(MAX_ENTRIES // 100 + 10):
        folder = etc / "app" / f"{number:04}"
        folder.mkdir(parents=True)
        (folder / "deep").mkdir()
        for inner in range(100):
            (folder / f"f{inner}").touch()
    write(etc / "app" / "0000" / "deep" / "key")
    write(etc / "key")
    found = set(names(PrivateFiles(roots=[str(etc)]), etc))
    assert "key" in found
    assert found & {"app", "app/0000", "app/0000/deep", "app/0000/deep/key"}
    # An installation on PATH may be larger.
    assert names(PrivateFiles(installations=[f"{etc}/app"], roots=[str(etc)]), etc) == ["key"]


def test_many_private_files_hide_their_directory(etc: Path) -> None:
    for number in range(60):
        write(etc / "archive" / f"{number}")
        write(etc / "named" / f"{number}")
    files = PrivateFiles([f"{etc}/named/0"], roots=[str(etc)])
    assert names(files, etc) == ["archive", *sorted(f"named/{number}" for number in range(1, 60))]


def test_paths_fit_into_a_message(etc: Path) -> None:
    for number in range(400):
        write(etc / f"{number % 20}" / f"{number}-{'x' * 100}" / "key")
    found = PrivateFiles(roots=[str(etc)]).scan().paths
    assert 0 < sum(map(len, found)) <= MAX_BYTES
    hidden = [
        path
        for path in etc.rglob("key")
        if not any(str(path).startswith(f"{mask}/") or str(path) == mask for mask in found)
    ]
    assert hidden == []


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda etc: write(etc / "d" / "new"),
    "a changed mode": lambda etc: (etc / "d" / "plain").chmod(0o600),
    "a renamed file": lambda etc: (etc / "d" / "plain").rename(etc / "d" / "other"),
    "a new directory": lambda etc: (etc / "d" / "inner").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_watch_counts_changes(change: Callable[[Path], object], etc: Path) -> None:
    write(etc / "d" / "plain", 0o644)
    watch = SystemWatch()
    assert watch.count() == -1
    assert watch.add([str(etc / "d"), str(etc / "missing")])
    before = watch.count()
    (etc / "d" / "plain").read_bytes()
    assert watch.count() == before
    change(etc)
    assert watch.count() > before
    assert watch.count() == watch.count()


def test_fork_does_not_take_the_events_of_its_parent(etc: Path) -> None:
    watch = SystemWatch()
    assert watch.add([str(etc)])
    before = watch.count()
    write(etc / "new")
    child = os.fork()
    if child == 0:
        os._exit(0 if watch.count() == -1 and watch.add([str(etc)]) and watch.count() >= 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert watch.count() == before + 1


def test_later_sandboxes_of_a_process_see_every_change(etc: Path) -> None:
    write(etc / "app" / "key", 0o644)
    write(etc / "app" / "secret", 0o600)
    files = PrivateFiles(roots=[str(etc)])
    assert [files.recall().paths for _ in range(3)] == [(f"{etc}/app/secret",)] * 3
    assert files.recall() is files.recall()  # nothing was searched
    (etc / "app" / "key").chmod(0o600)
    assert files.recall().paths == (f"{etc}/app/key", f"{etc}/app/secret")
    write(etc / "new" / "below" / "key", 0o600)
    assert f"{etc}/new/below/key" in files.recall().paths
    (etc / "new" / "below" / "later").touch(mode=0o600)
    assert f"{etc}/new/below/later" in files.recall().paths
    (etc / "app" / "secret").unlink()
    assert f"{etc}/app/secret" not in files.recall().paths


def test_searches_for_other_paths_have_other_results(etc: Path) -> None:
    write(etc / "app" / "key", 0o600)
    found = [PrivateFiles(named, roots=[str(etc)]).recall().paths for named in ((), (f"{etc}/app/key",)) * 3]
    assert found == [(f"{etc}/app/key",), ()] * 3


def test_fork_searches_again(etc: Path) -> None:
    write(etc / "app" / "key", 0o644)
    files = PrivateFiles(roots=[str(etc)])
    for _ in range(3):
        files.recall()
    child = os.fork()
    if child == 0:
        try:
            (etc / "app" / "key").chmod(0o600)
            os._exit(7 if files.recall().paths == (f"{etc}/app/key",) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert files.recall().paths == (f"{etc}/app/key",)
