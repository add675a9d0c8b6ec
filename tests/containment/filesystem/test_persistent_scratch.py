"""Persistent scratch is shared by the commands of a project, private to the user, and removed when unused."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from observe import unique_seconds
from sampling import sampled

from corral import Containment, Sandbox, SandboxConfig
from corral.containment.filesystem import persistent_scratch
from corral.guard.git_signatures import SIGNATURE
from corral.model.grant import BROKER, TRANSPORT, Grant
from corral.policy.config import DEFAULT_ENV_ALLOWLIST

WEEK_AGO = time.time() - persistent_scratch.KEPT_SECONDS - 60


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory for this test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return path


def corral(project: Path, text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", "run", "--root", str(project), "--shell", text]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def test_next_run_reads_scratch_of_the_last_run(held: Sandbox, project: Path, cache: Path) -> None:
    first = corral(
        project, 'echo 1 > /tmp/x; python3 -c \'import os; open(os.path.expanduser("~/y"), "w").write("2")\''
    )
    assert (first.returncode, first.stderr) == (0, "")
    then = corral(project, "cat /tmp/x; python3 -c 'import os; print(open(os.path.expanduser(\"~/y\")).read())'")
    assert (then.returncode, then.stdout) == (0, "1\n2\n")
    tmp, home = sorted((cache / "corral" / "scratch").glob("[0-9a-f]*"))
    assert home.name.startswith(f"{tmp.name}-")
    assert [oct(path.stat().st_mode)[-4:] for path in (tmp, home, tmp.parent, tmp.parent.parent)] == ["0700"] * 4
    assert list(project.iterdir()) == []


def test_each_project_has_its_own_scratch(held: Sandbox, project: Path, tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "link"
    other.mkdir()
    link.symlink_to(project)
    corral(project, "echo 1 > /tmp/x")
    assert corral(other, "cat /tmp/x").returncode == 1
    assert corral(link, "cat /tmp/x").stdout == "1\n"


def test_concurrent_runs_share_scratch(held: Sandbox, open_sandbox: Callable[..., Sandbox]) -> None:
    one, two = (open_sandbox(containment=Containment(scratch="project")) for _ in range(2))
    waiting = one.start("until [ -e /tmp/go ]; do sleep 0.01; done; echo seen", shell=True)
    assert two.run("touch /tmp/go", shell=True).ok
    assert waiting.wait().stdout == b"seen\n"
    two.close()
    assert one.run("ls /tmp/go", shell=True).ok


KEPT = Containment(scratch="project")
RIGHTS: dict[str, Callable[[Path], dict[str, object]]] = {
    "the whole network": lambda _: {"containment": KEPT.replace(network="on")},
    "a destination": lambda _: {"containment": KEPT.replace(network=("index.example:443",))},
    "a variable": lambda _: {"env_allowlist": {*DEFAULT_ENV_ALLOWLIST, "GRANTED"}},
    "a path to read": lambda path: {"containment": KEPT.replace(read=(str(path),))},
    "a path to write": lambda path: {"containment": KEPT.replace(write=(str(path),))},
    "another right to the project": lambda _: {"containment": KEPT.replace(project="read-only")},
}
# An interactive shell runs the file, though the call does not name it.
RUN_START_UP = "bash -ic true 2>&1"


@pytest.mark.parametrize("right", sampled(RIGHTS.values(), every=3), ids=RIGHTS)
def test_home_is_kept_apart_by_what_a_run_is_granted(
    held: Sandbox,
    open_sandbox: Callable[..., Sandbox],
    outside: Path,
    right: Callable[[Path], dict[str, object]],
) -> None:
    granted = {"containment": KEPT, **right(outside)}
    with open_sandbox(containment=KEPT) as box:
        assert box.run("echo 'echo RAN' >~/.bashrc; touch /tmp/shared", shell=True).ok
        assert b"RAN" in box.run(RUN_START_UP, shell=True).stdout
    with open_sandbox(**granted) as box:
        assert b"RAN" not in box.run(RUN_START_UP, shell=True).stdout
        assert not box.run("ls ~/.bashrc", shell=True).ok
        assert box.run("ls /tmp/shared", shell=True).ok
        assert box.run("touch ~/of-the-granted", shell=True).ok
    with open_sandbox(containment=KEPT) as box:
        assert b"RAN" in box.run(RUN_START_UP, shell=True).stdout
        assert not box.run("ls ~/of-the-granted", shell=True).ok
    with open_sandbox(**granted) as box:
        assert box.run("ls ~/of-the-granted", shell=True).ok


def test_order_of_grants_does_not_change_home(project: Path) -> None:
    def path(*names: str) -> str:
        containment = Containment(network=names, read=tuple(f"/{name}" for name in names))
        return persistent_scratch.home_path("/s", SandboxConfig(project, env_allowlist=names, containment=containment))

    assert path("a:1", "b:2") == path("b:2", "a:1") != path("a:1")


def test_home_of_brokered_calls_depends_on_their_grants(project: Path) -> None:
    def path(broker: str, *grants: Grant) -> str:
        return persistent_scratch.home_path(
            "/s", SandboxConfig(project, grants=grants, containment=Containment(broker=broker))
        )

    push, fetch = (Grant(TRANSPORT, f"{verb} ssh://a.example/x") for verb in ("push", "fetch"))
    assert path("/run/1", push) == path("/run/2", push) != path("/run/2", fetch)
    assert path("/run/1", Grant(BROKER, "gh/pr-create 12")) == path("/run/2", Grant(BROKER, "gh/pr-create 34"))
    assert path("/run/1", Grant(BROKER, "gh/read")) != path("/run/1", Grant(BROKER, "gh/pr-create 12"))
    # A broker that no grant describes is kept apart, and a signature gives an earlier command nothing.
    assert path("/run/1") != path("/run/2")
    assert path("/run/1", SIGNATURE) == path("")
    assert path("/run/1", SIGNATURE, push) == path("/run/2", push) != path("")


def test_unused_home_is_removed_while_the_project_is_used(
    held: Sandbox, cache: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    homes = []
    for right in ({"env_allowlist": ("PATH", "HOME", "GRANTED")}, {}):
        with open_sandbox(containment=KEPT, **right) as box:
            assert box.run("touch ~/file /tmp/file", shell=True).ok
            homes.append(Path(dict(box._holding.shown())[os.environ["HOME"]]))
    for path in (homes[0].parent, cache / "corral" / "scratch" / ".cleaned"):
        os.utime(path, (WEEK_AGO, WEEK_AGO))
    with open_sandbox(containment=KEPT) as box:
        assert box.run("ls ~/file /tmp/file", shell=True).ok
    assert [home.exists() for home in homes] == [False, True]


def test_scratch_of_a_sandbox_is_removed_with_it(held: Sandbox, project: Path, cache: Path) -> None:
    held.close()  # it would use the project's directory
    with Sandbox(SandboxConfig(str(project), profile="workspace")) as box:
        assert box.run("echo 1 > /tmp/x", shell=True).ok
    with Sandbox(SandboxConfig(str(project), profile="workspace")) as box:
        assert not box.run("cat /tmp/x", shell=True).ok
    assert list((cache / "corral" / "scratch").iterdir()) == []


def test_unused_scratch_is_removed_after_a_week(
    held: Sandbox, project: Path, tmp_path: Path, cache: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    held.close()  # it would use the project's directory
    other = tmp_path / "other"
    other.mkdir()
    for root in (project, other):
        corral(root, "mkdir -p /tmp/a/b && echo 1 > /tmp/a/b/x && chmod 0 /tmp/a")
    scratch = cache / "corral" / "scratch"
    old, used = (
        Path(persistent_scratch.scratch_path(str(root), [], os.environ, make=False)) for root in (project, other)
    )
    box = open_sandbox(project_root=str(other), containment=Containment(scratch="project"))
    box.run(["true"])
    for path in (old, used, scratch / ".cleaned"):
        os.utime(path, (WEEK_AGO, WEEK_AGO))
    third = tmp_path / "third"
    third.mkdir()
    corral(third, "true")
    assert not old.exists()
    assert used.exists()
    assert not list(scratch.glob(".old*"))
    assert corral(project, "ls /tmp/a").returncode != 0


def test_recently_used_scratch_is_kept(held: Sandbox, project: Path, tmp_path: Path, cache: Path) -> None:
    corral(project, "echo 1 > /tmp/x")
    os.utime(cache / "corral" / "scratch" / ".cleaned", (WEEK_AGO, WEEK_AGO))
    other = tmp_path / "other"
    other.mkdir()
    corral(other, "true")
    assert corral(project, "cat /tmp/x").stdout == "1\n"


def path_for(project: Path, writable: tuple[Path, ...] = (), **environ: str) -> str:
    return persistent_scratch.scratch_path(str(project), [str(project), *map(str, writable)], environ, make=True)


def test_scratch_is_never_where_a_command_can_write(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "home" / ".cache"
    inside, outside = str(project / "cache"), str(tmp_path / "fine")
    home = str(tmp_path / "home")
    assert path_for(project, XDG_CACHE_HOME=outside).startswith(outside)
    assert path_for(project, XDG_CACHE_HOME=inside, HOME=home).startswith(str(other))
    assert not Path(inside).exists()
    fallback = f"/var/tmp/corral-{os.geteuid()}/scratch/"
    assert path_for(project, (tmp_path / "home",), XDG_CACHE_HOME=inside, HOME=home).startswith(fallback)
    assert path_for(project, (tmp_path / "home", Path("/var")), XDG_CACHE_HOME=inside, HOME=home) == ""
    (tmp_path / "led").symlink_to(project)
    assert not path_for(project, XDG_CACHE_HOME=str(tmp_path / "led")).startswith(str(project))


@pytest.mark.parametrize("fault", ["a link", "open to others", "a file", "below a directory that others can write"])
def test_directory_that_others_could_change_is_not_used(project: Path, tmp_path: Path, fault: str) -> None:
    base = tmp_path / "base"
    base.mkdir()
    if fault == "a link":
        (tmp_path / "elsewhere").mkdir()
        (base / "corral").symlink_to(tmp_path / "elsewhere")
    elif fault == "open to others":
        (base / "corral").mkdir()
        (base / "corral").chmod(0o777)
    elif fault == "a file":
        (base / "corral").touch()
    else:
        base.chmod(0o777)
    assert not path_for(project, XDG_CACHE_HOME=str(base)).startswith(str(base))
    assert not (tmp_path / "elsewhere" / "scratch").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_another_user_is_not_used(project: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "corral").mkdir(parents=True, mode=0o700)
    os.chown(base / "corral", 1234, 1234)
    assert not path_for(project, XDG_CACHE_HOME=str(base)).startswith(str(base))


def test_scratch_moved_while_locking_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "scratch"
    first = persistent_scratch.acquire(str(path))
    path.rename(tmp_path / "old")
    second = persistent_scratch.acquire(str(path))
    assert path.is_dir()
    assert not os.path.samestat(os.fstat(first), os.fstat(second))
    os.close(first)
    os.close(second)


def test_scratch_of_home_directory_project_is_in_var_tmp(
    held: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert corral(home, "echo 1 > /tmp/x").returncode == 0
    assert corral(home, "cat /tmp/x").stdout == "1\n"
    assert list(home.iterdir()) == []
    kept = persistent_scratch.scratch_path(str(home), [str(home)], os.environ, make=False)
    assert kept.startswith("/var/tmp/")
    subprocess.run(["rm", "-rf", kept], check=True)


def test_link_left_in_scratch_stops_the_start(
    held: Sandbox, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, home = tmp_path / "victim", Path(f"/tmp/corral-test-{unique_seconds()}/home")
    victim.mkdir()
    assert corral(project, f'python3 -c \'import os; os.symlink("{victim}", "{home.parent}")\'').returncode == 0
    home.mkdir(parents=True)
    try:
        monkeypatch.setenv("HOME", str(home))
        done = corral(project, "true")
    finally:
        home.rmdir()
        home.parent.rmdir()
    assert (done.returncode, str(home.parent) in done.stderr) == (125, True)
    assert list(victim.iterdir()) == []


def test_guard_resolves_links_in_persistent_scratch(held: Sandbox, project: Path) -> None:
    corral(project, 'python3 -c \'import os; os.symlink("/etc/shadow", "/tmp/leak")\'')
    assert "path-read-secret" in corral(project, "cat /tmp/leak").stderr
    check = [sys.executable, "-m", "corral", "check", "--root", str(project), "--", "cat", "/tmp/leak"]
    assert subprocess.run(check, capture_output=True, check=False, cwd="/").returncode == 126
