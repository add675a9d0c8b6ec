"""No command writes a policy file, the owner's or the project's, nor the file of trust: not by the guard, not by the kernel."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import must_hold

from corral import Containment, PolicyError, Sandbox, SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call, Decision
from corral.policy.loader import load

LOOSE = 'containment.network = "on"\n'
# Each tries to leave LOOSE where sys.argv[1] says, and does not mind failing on the way.
ATTEMPTS = {
    "write": "open(path, 'w').write(text)",
    "append": "open(path, 'a').write(text)",
    "replace": "open('new', 'w').write(text); os.replace('new', path)",
    "remove and write": "os.unlink(path); open(path, 'w').write(text)",
    "move away and write": "os.rename(path, 'old'); open(path, 'w').write(text)",
    "link": "os.unlink(path); open('new', 'w').write(text); os.symlink('new', path)",
    "hard link": "os.link(path, 'alias'); open('alias', 'w').write(text)",
    "truncate": "os.truncate(path, 0)",
    "mode": "os.chmod(path, 0o666); open(path, 'w').write(text)",
    "move what holds it": "os.rename(os.path.dirname(path), os.path.dirname(path) + '.old'); os.makedirs(os.path.dirname(path)); open(path, 'w').write(text)",
    "exchange": "import ctypes; open('new', 'w').write(text); ctypes.CDLL(None).renameat2(-100, b'new', -100, path.encode(), 2)",
}
PROGRAM = "import os, sys; path, text = sys.argv[1], sys.argv[2]; os.makedirs(os.path.dirname(path), exist_ok=True); {}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    (made / ".config" / "corral").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(made))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return made


def run(box: Sandbox, attempt: str, path: Path) -> None:
    result = box.run(["python3", "-c", PROGRAM.format(attempt), str(path), LOOSE])
    if box.config.containment.backend != "none" and result.enforcement != "full":
        must_hold()


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_a_projects_file_stays_as_it_is(open_sandbox: Callable[..., Sandbox], project: Path, attempt: str) -> None:
    file = project / "corral.toml"
    file.write_text("timeout_seconds = 5\n")
    run(open_sandbox(), attempt, file)
    assert file.read_text() == "timeout_seconds = 5\n"


@pytest.mark.parametrize("attempt", [ATTEMPTS["write"], ATTEMPTS["append"], "open('new', 'w').write(text); os.rename('new', path)", "os.symlink('/dev/null', path)"])  # fmt: skip
@pytest.mark.parametrize("where", ["corral.toml", "sub/corral.toml"])
def test_a_projects_file_does_not_appear(held: Sandbox, project: Path, attempt: str, where: str) -> None:
    run(held, attempt, project / where)
    assert not os.path.lexists(project / where)


@pytest.mark.parametrize("attempt", [ATTEMPTS["write"], ATTEMPTS["replace"]], ids=["write", "replace"])
def test_uncontained_the_attempts_work_so_that_they_are_ones(loose: Sandbox, project: Path, attempt: str) -> None:
    run(loose, attempt, project / "corral.toml")
    assert (project / "corral.toml").read_text() == LOOSE


OWNERS = [".config/corral/policy.toml", ".local/state/corral/trust", ".cache/corral/policy/x"]


@pytest.mark.parametrize("where", OWNERS)
def test_what_the_owner_keeps_is_out_of_reach(home: Path, open_sandbox: Callable[..., Sandbox], where: str) -> None:
    box = open_sandbox()
    for attempt in (ATTEMPTS["write"], ATTEMPTS["replace"], ATTEMPTS["move what holds it"]):
        run(box, attempt, home / where)
    assert not (home / where).exists()


@pytest.mark.parametrize("where", OWNERS)
@pytest.mark.parametrize("existing", [True, False])
def test_what_the_owner_keeps_is_out_of_reach_where_the_project_is_their_home(
    home: Path, open_sandbox: Callable[..., Sandbox], where: str, existing: bool
) -> None:
    if existing:
        (home / where).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (home / where).write_text("timeout_seconds = 5\n")
    else:
        (home / ".config" / "corral").rmdir()
    box = open_sandbox(project_root=str(home))
    for attempt in ATTEMPTS.values():
        run(box, attempt, home / where)
    assert (home / where).read_text() == "timeout_seconds = 5\n" if existing else not os.path.lexists(home / where)


@pytest.mark.parametrize("profile", ["strict", "workspace"])
@pytest.mark.parametrize(
    "command",
    [
        "echo x > corral.toml",
        "echo x >> ./corral.toml",
        "tee corral.toml < x",
        "cp x corral.toml",
        "mv x corral.toml",
        "rm corral.toml",
        "sed -i s/a/b/ corral.toml",
        "ln -sf x corral.toml",
        "echo x > sub/corral.toml",
        "echo x > .corral/policy.toml",
        "echo x > ~/.config/corral/policy.toml",
        "echo x > ~/.local/state/corral/trust",
        "rm -rf ~/.config/corral",
        "cat ~/.config/corral/policy.toml",
        "cat ~/.local/state/corral/audit/log.jsonl",
        "cd ~ && echo x > .config/corral/policy.toml",
        "echo x > ~/.cache/corral/policy/x",
    ],
)
def test_the_guard_refuses_to_write_policy_files(
    project: Path, profile: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/owner")  # one in /tmp is the commands' own
    config = SandboxConfig(str(project), profile=profile)
    assert vet(Call(command, shell=True), config).decision is Decision.DENY


@pytest.mark.parametrize("profile", ["strict", "workspace"])
@pytest.mark.parametrize("command", ["echo x > .config/corral/policy.toml", "rm .local/state/corral/trust", "cp x .config/corral/policy.toml"])  # fmt: skip
def test_the_guard_refuses_it_where_the_project_is_the_home(home: Path, profile: str, command: str) -> None:
    config = SandboxConfig(str(home), profile=profile)
    assert vet(Call(command, shell=True), config).decision is Decision.DENY


@pytest.mark.parametrize("profile", ["strict", "workspace"])
def test_reading_the_projects_file_is_allowed(project: Path, profile: str) -> None:
    assert vet(Call("cat corral.toml", shell=True), SandboxConfig(str(project), profile=profile)).allowed


def test_no_grant_opens_them(home: Path, project: Path) -> None:
    for path in (home / ".config", home, home / ".config" / "corral"):
        box = Sandbox(SandboxConfig(str(project), profile="workspace", containment=Containment(write=(str(path),))))
        with box, pytest.raises(PolicyError):
            box.run(["true"])


def test_a_policy_that_a_home_project_planted_is_not_believed(home: Path, tmp_path: Path) -> None:
    (home / ".config" / "corral" / "policy.toml").write_text(LOOSE)
    with pytest.raises(PolicyError, match="lies inside the project"):
        load(str(home), os.environ)
