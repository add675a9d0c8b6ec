"""Neither guard nor kernel lets a command write a policy file or the trust file."""

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
# Each attempt tries to write LOOSE to the path in sys.argv[1].
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
def test_project_file_cannot_be_changed(open_sandbox: Callable[..., Sandbox], project: Path, attempt: str) -> None:
    file = project / "corral.toml"
    file.write_text("timeout_seconds = 5\n")
    run(open_sandbox(), attempt, file)
    assert file.read_text() == "timeout_seconds = 5\n"


@pytest.mark.parametrize("attempt", [ATTEMPTS["write"], ATTEMPTS["append"], "open('new', 'w').write(text); os.rename('new', path)", "os.symlink('/dev/null', path)"])  # fmt: skip
@pytest.mark.parametrize("where", ["corral.toml", "sub/corral.toml"])
def test_project_file_cannot_be_created(held: Sandbox, project: Path, attempt: str, where: str) -> None:
    run(held, attempt, project / where)
    assert not os.path.lexists(project / where)


@pytest.mark.parametrize("attempt", [ATTEMPTS["write"], ATTEMPTS["replace"]], ids=["write", "replace"])
def test_attempts_succeed_without_containment(loose: Sandbox, project: Path, attempt: str) -> None:
    run(loose, attempt, project / "corral.toml")
    assert (project / "corral.toml").read_text() == LOOSE


USER_FILES = [".config/corral/policy.toml", ".local/state/corral/trust", ".cache/corral/policy/x"]


@pytest.mark.parametrize("where", USER_FILES)
def test_user_files_are_unreachable(home: Path, open_sandbox: Callable[..., Sandbox], where: str) -> None:
    box = open_sandbox()
    for attempt in (ATTEMPTS["write"], ATTEMPTS["replace"], ATTEMPTS["move what holds it"]):
        run(box, attempt, home / where)
    assert not (home / where).exists()


@pytest.mark.parametrize("where", USER_FILES)
@pytest.mark.parametrize("existing", [True, False])
def test_user_files_are_unreachable_if_the_project_is_home(
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
def test_guard_refuses_to_write_policy_files(
    project: Path, profile: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/user")  # /tmp belongs to the commands
    config = SandboxConfig(str(project), profile=profile)
    assert vet(Call(command, shell=True), config).decision is Decision.DENY


@pytest.mark.parametrize("profile", ["strict", "workspace"])
@pytest.mark.parametrize("command", ["echo x > .config/corral/policy.toml", "rm .local/state/corral/trust", "cp x .config/corral/policy.toml"])  # fmt: skip
def test_guard_refuses_it_if_the_project_is_home(home: Path, profile: str, command: str) -> None:
    config = SandboxConfig(str(home), profile=profile)
    assert vet(Call(command, shell=True), config).decision is Decision.DENY


@pytest.mark.parametrize("profile", ["strict", "workspace"])
def test_reading_the_project_file_is_allowed(project: Path, profile: str) -> None:
    assert vet(Call("cat corral.toml", shell=True), SandboxConfig(str(project), profile=profile)).allowed


def test_no_grant_opens_user_files(home: Path, project: Path) -> None:
    for path in (home / ".config", home, home / ".config" / "corral"):
        box = Sandbox(SandboxConfig(str(project), profile="workspace", containment=Containment(write=(str(path),))))
        with box, pytest.raises(PolicyError):
            box.run(["true"])


def test_user_policy_inside_the_project_is_an_error(home: Path, tmp_path: Path) -> None:
    (home / ".config" / "corral" / "policy.toml").write_text(LOOSE)
    with pytest.raises(PolicyError, match=r"policy\.toml"):
        load(str(home), os.environ)
