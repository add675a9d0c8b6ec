"""Files that a command plants in the project are quarantined before its result returns. Repositories made by git may stay."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from observe import eventually, unique_seconds

from corral import Containment, Sandbox, SandboxResult
from corral.containment.filesystem import watcher
from corral.containment.filesystem.protected import find
from corral.containment.filesystem.watcher import ProtectedNameWatcher
from golden import check

COMMIT = ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "--allow-empty"]


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[user]\n\tname = The User\n\temail = o@example.org\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def repository(project: Path) -> Path:
    """The project as a repository with one commit, a folder, and a repository to clone from."""
    for folder in (project, project / "origin"):
        folder.mkdir(exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
        git(folder, *COMMIT, "-m", "first")
    (project / "src" / "deep").mkdir(parents=True)
    return project


def planted_by(result: SandboxResult, root: Path) -> list[str]:
    """Return the planted paths of a result, relative to the project."""
    assert result.enforcement == "full", result.stderr_text
    found = [violation for violation in result.violations if violation.kind == "planted"]
    # The detail ends with the path in quarantine.
    assert all(os.path.lexists(violation.detail.rpartition(" ")[2]) and violation.instead for violation in found)
    return sorted(os.path.relpath(violation.target, root) for violation in found)


DEEP = {
    "a start-up file": ("touch src/deep/.envrc", ["src/deep/.envrc"]),
    "a start-up file in a new directory": ("mkdir -p a/b/c && touch a/b/c/.envrc", ["a/b/c/.envrc"]),
    "settings in a new directory of an editor": ("mkdir src/.vscode && touch src/.vscode/tasks.json src/.vscode/notes", ["src/.vscode/tasks.json"]),
    "a start-up file below a directory that is protected in part": ("mkdir -p .github/actions/x && touch .github/actions/x/.envrc", [".github/actions/x/.envrc"]),
    "a link in the place of an editor's settings": ("mkdir x && touch x/tasks.json && ln -s ../x src/.vscode", ["src/.vscode"]),
    "settings of an agent": ("mkdir -p src/deep/.claude/x", ["src/deep/.claude"]),
    "a directory that gets its name later": ("mkdir src/x && touch src/x/y && mv src/x src/.idea", ["src/.idea"]),
    "a tree that is moved in": ("mkdir -p /tmp/t/u && touch /tmp/t/u/.envrc && cp -r /tmp/t src/t", ["src/t/u/.envrc"]),
    "a directory that replaces another": ("mv src/deep src/old && mkdir -p src/deep/n && touch src/deep/n/.envrc", ["src/deep/n/.envrc"]),
    "a hard link": ("touch f && ln f src/.bashrc", ["src/.bashrc"]),
    "a dangling link": ("ln -s /nowhere src/.zshrc", ["src/.zshrc"]),
    "a pipe": ("mkfifo src/.mcp.json", ["src/.mcp.json"]),
    "several": ("touch src/.envrc src/deep/.envrc .profile", [".profile", "src/.envrc", "src/deep/.envrc"]),
    "a name as long as a path may be": ("d=src; for i in 1 2 3 4 5 6 7; do d=$d/$(printf %0200d 0); done; mkdir -p $d; touch $d/.envrc", ["src/" + "/".join(["0" * 200] * 7) + "/.envrc"]),
    "a repository that is a link": ("mkdir r && ln -s ../origin/.git r/.git", ["r/.git"]),
    "a pointer to a directory outside": ("mkdir r && echo 'gitdir: /etc' > r/.git", ["r/.git"]),
    "a pointer to an ordinary directory": ("mkdir r x && echo 'gitdir: ../x' > r/.git", ["r/.git"]),
}  # fmt: skip


@pytest.mark.parametrize("looks", [0, 5], ids=["first command", "inotify"])
@pytest.mark.parametrize(("text", "expected"), DEEP.values(), ids=DEEP)
def test_planted_file_is_quarantined_and_reported(
    repository: Path, open_sandbox: Callable[..., Sandbox], text: str, expected: list[str], looks: int
) -> None:
    held = open_sandbox()
    for number in range(8):
        (repository / "many" / str(number)).mkdir(parents=True)
    for _ in range(looks):
        assert held.run(["true"]).violations == ()
    result = held.run(text, shell=True)
    assert (planted_by(result, repository), result.exit_code) == (expected, 0), result.stderr_text
    assert not any(os.path.lexists(repository / name) for name in expected)
    assert held.run(["true"]).violations == ()


def test_wording_of_a_planted_file(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    (violation,) = open_sandbox().run(["touch", ".envrc"]).violations
    place = violation.detail.rpartition(" ")[2]
    text = violation.text.replace(place, "QUARANTINE").replace(str(repository), "PROJECT")
    check("violations", "planted: moved", text)


def test_planting_works_without_containment(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    loose = open_sandbox(containment=Containment(backend="none"))
    loose.run("touch src/deep/.envrc", shell=True)
    assert (repository / "src" / "deep" / ".envrc").exists()


EVERYDAY = {
    "a new repository": "git init -q r && cd r && echo 1 > f && git add f && git commit -qm one",
    "a clone": "git clone -q origin r && cd r && git checkout -qb b && echo 1 > f && git add f && git commit -qm one && git pull -q origin main && git gc -q",
    "a shallow clone by its address": "git clone -q --depth 1 file://$PWD/origin r && git -C r log --format=%s",
    "a bare clone and a mirror": "git clone -q --bare origin r && git clone -q --mirror origin s",
    "a clone with its repository elsewhere": "git clone -q --separate-git-dir=g origin r && git -C r log -1",
    "a sparse clone": "git clone -q --sparse origin r && git -C r sparse-checkout set x",
    "a worktree": "git worktree add -q w && cd w && echo 1 > f && git add f && git commit -qm one && git status",
    "a worktree of a clone": "git clone -q origin r && cd r && git worktree add -q ../w && git -C ../w commit -q --allow-empty -m one",
    "settings of a remote": "git clone -q origin r && cd r && git remote add other ../origin && git config user.name x && git branch -u origin/main",
    "a directory of an editor": "mkdir -p src/.vscode && touch src/.vscode/notes",
    "a directory without permissions": "mkdir src/shut && chmod 0 src/shut",
}


@pytest.mark.parametrize("text", EVERYDAY.values(), ids=EVERYDAY)
def test_repositories_made_by_git_may_stay(repository: Path, open_sandbox: Callable[..., Sandbox], text: str) -> None:
    held = open_sandbox()
    result = held.run(text, shell=True, timeout_seconds=60)
    assert (result.enforcement, result.exit_code) == ("full", 0), result.stderr_text
    assert {violation.kind for violation in result.violations} <= {"git"}
    assert held.run(["true"]).violations == ()


STEPS = {
    "in a directory that was renamed and back": (["mv src other", "mv other src", "touch src/.envrc"], ["src/.envrc"]),
    "below a directory that was renamed and back": (["mv src other", "mv other src", "touch src/deep/.envrc"], ["src/deep/.envrc"]),
    "in a directory that was closed": (["touch src/.envrc && chmod 0 src", "true", "chmod 755 src"], ["src/.envrc"]),
    "in a directory that had a link as a second name": (["mkdir -p a/sub c/sub", "mv a x && ln -s c a", "rm a && touch c/sub/.envrc"], ["c/sub/.envrc"]),
}  # fmt: skip


@pytest.mark.parametrize("looks", [0, 5], ids=["first command", "inotify"])
@pytest.mark.parametrize(("texts", "expected"), STEPS.values(), ids=STEPS)
def test_file_planted_in_steps_is_quarantined(
    repository: Path, open_sandbox: Callable[..., Sandbox], texts: list[str], expected: list[str], looks: int
) -> None:
    held = open_sandbox()
    for _ in range(looks):
        assert held.run(["true"]).violations == ()
    found: list[str] = []
    for text in texts:
        result = held.run(text, shell=True)
        assert result.ok, result.stderr_text
        found += planted_by(result, repository)
    assert found == expected
    assert not any(os.path.lexists(repository / name) for name in expected)
    assert held.run(["true"]).violations == ()


@pytest.mark.parametrize(("texts", "expected"), STEPS.values(), ids=STEPS)
def test_planting_in_steps_works_without_containment(
    repository: Path, open_sandbox: Callable[..., Sandbox], texts: list[str], expected: list[str]
) -> None:
    loose = open_sandbox(containment=Containment(backend="none"))
    for text in texts:
        assert loose.run(text, shell=True).ok
    assert all(os.path.lexists(repository / name) for name in expected)


def test_directory_replacing_a_busy_one_is_watched(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    held = open_sandbox()
    for _ in range(5):
        assert held.run(["true"]).violations == ()
    inside = held.start(["sleep", unique_seconds()], cwd="src/deep")
    assert held.run("rmdir src/deep && mkdir src/deep", shell=True).ok
    inside.close()
    # Only now the kernel reports that the first directory is gone.
    assert held.run(["true"]).ok
    assert planted_by(held.run(["touch", "src/deep/.envrc"]), repository) == ["src/deep/.envrc"]


def replaced(path: Path, text: str) -> None:
    """Save a file like an editor: write a new file, then rename it over the old one."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text)
    beside.rename(path)


@pytest.mark.parametrize("looks", [1, 5], ids=["second command", "inotify"])
@pytest.mark.parametrize("name", ["src/.envrc"])
def test_file_the_user_replaced_is_still_protected(
    repository: Path, open_sandbox: Callable[..., Sandbox], looks: int, name: str
) -> None:
    (repository / "src" / ".envrc").write_text("first\n")
    held = open_sandbox()
    for _ in range(looks):
        assert held.run(["true"]).violations == ()
    text = (repository / name).read_text() + "# the user's\n"
    replaced(repository / name, text)
    result = held.run(f"echo x >> {name}", shell=True)
    assert (result.ok, [violation.kind for violation in result.violations]) == (False, ["protected"])
    assert (repository / name).read_text() == text
    loose = open_sandbox(containment=Containment(backend="none"))
    assert loose.run(f"echo x >> {name}", shell=True).ok
    assert (repository / name).read_text() == f"{text}x\n"


def test_removed_protected_file_cannot_be_recreated(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    (repository / "src" / ".envrc").write_text("first\n")
    held = open_sandbox()
    assert held.run(["true"]).ok
    (repository / "src" / ".envrc").unlink()
    assert planted_by(held.run(["touch", "src/.envrc"]), repository) == ["src/.envrc"]


WRITES = "touch begun; while [ ! -e go ]; do sleep 0.01; done; for f in src/.en*rc .vs*/tasks.json; do (echo x >> $f) 2>/dev/null; echo $?; done"


def test_replaced_file_is_read_only_again_for_a_running_command(
    repository: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    (repository / ".vscode").mkdir()
    names = ("src/.envrc", ".vscode/tasks.json")
    for name in names:
        (repository / name).write_text("first\n")
    held = open_sandbox(containment=Containment(backend="warden"))
    (repository / "writes.sh").write_text(WRITES)
    running = held.start(["bash", "writes.sh"])
    eventually((repository / "begun").exists)
    for round_ in ("second\n", "third\n"):
        for name in names:
            replaced(repository / name, round_)
        assert held.run(["true"]).ok
    (repository / "go").touch()
    assert running.wait().stdout == b"1\n1\n"
    assert [(repository / name).read_text() for name in names] == ["third\n", "third\n"]


def test_running_command_can_write_a_replaced_file_until_it_is_noticed(
    repository: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    """The canary of the test above: without a next command nothing mounts the file again."""
    (repository / "src" / ".envrc").write_text("first\n")
    held = open_sandbox(containment=Containment(backend="warden"))
    (repository / "writes.sh").write_text(WRITES)
    running = held.start(["bash", "writes.sh"])
    eventually((repository / "begun").exists)
    replaced(repository / "src" / ".envrc", "second\n")
    (repository / "go").touch()
    assert running.wait().stdout.startswith(b"0\n")


def test_no_command_starts_beside_one_that_could_recreate_a_removed_file(
    repository: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    (repository / "src" / ".envrc").write_text("first\n")
    held = open_sandbox()
    running = held.start(["sleep", unique_seconds()])
    (repository / "src" / ".envrc").unlink()
    refused = held.run(["true"])
    assert refused.exit_code == 126
    assert "src/.envrc was replaced" in refused.stderr_text
    running.close()
    assert held.run(["true"]).ok


LATER = {
    "a worktree's pointer": ("git worktree add -q w", "echo gitdir: /etc > w/.git", ["w/.git"]),
}  # fmt: skip


@pytest.mark.parametrize("looks", [0, 5], ids=["first command", "inotify"])
@pytest.mark.parametrize("case", LATER.values(), ids=LATER)
def test_harmless_directory_is_judged_again_on_change(
    repository: Path, open_sandbox: Callable[..., Sandbox], case: tuple[str, str, list[str]], looks: int
) -> None:
    first, then, expected = case
    held = open_sandbox()
    for _ in range(looks):
        held.run(["true"])
    assert held.run(first, shell=True).violations == ()
    assert planted_by(held.run(then, shell=True), repository) == expected


@pytest.mark.parametrize("mode", ["111", "000"])
def test_unlistable_directory_hides_nothing(repository: Path, open_sandbox: Callable[..., Sandbox], mode: str) -> None:
    result = open_sandbox().run(f"mkdir src/x && touch src/x/.envrc && chmod {mode} src/x src", shell=True)
    assert planted_by(result, repository) == ["src/x/.envrc"]
    assert not (repository / "src" / "x" / ".envrc").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("touch src/.envrc && chmod 555 src", "src/.envrc"),
        ("mkdir -p src/.claude/x && chmod 500 src/.claude/x src/.claude src", "src/.claude"),
        ("mkdir -p src/.idea && chmod 0 src/.idea", "src/.idea"),
    ],
)
def test_read_only_planted_file_is_quarantined(
    repository: Path, open_sandbox: Callable[..., Sandbox], text: str, expected: str
) -> None:
    assert planted_by(open_sandbox().run(text, shell=True), repository) == [expected]
    assert not (repository / expected).exists()


def test_many_planted_files_are_quarantined_and_counted(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    result = open_sandbox().run("for i in $(seq 50); do mkdir d$i; touch d$i/.envrc; done", shell=True)
    assert len(result.violations) == watcher.MAX_VIOLATIONS + 1
    assert result.violations[-1].target == str(repository)
    check("violations", "planted: too many to list", result.violations[-1].text.replace(str(repository), "PROJECT"))
    assert list(repository.rglob(".envrc")) == []


def test_planted_file_is_found_after_inotify_overflow(repository: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    held = open_sandbox()
    for number in range(8):
        (repository / "many" / str(number)).mkdir(parents=True)
    for _ in range(4):
        assert held.run(["true"]).violations == ()
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        count = int(file.read()) // 2 + 100
    if count > 50_000:
        pytest.skip("the inotify queue is too long for a test")
    text = f"cd many && seq {count} | sed 's,$,/a,' | head -0; for i in $(seq {count}); do : > $((i % 8))/f$i; : > $(((i + 1) % 8))/g$i; done; touch 3/.envrc"
    assert planted_by(held.run(text, shell=True, timeout_seconds=100), repository) == ["many/3/.envrc"]


TAKE_INSTANCES = """
import ctypes, errno, time
libc = ctypes.CDLL(None, use_errno=True)
taken = 0
while libc.inotify_init1(0) >= 0:
    taken += 1
assert ctypes.get_errno() == errno.EMFILE
print(taken, flush=True)
time.sleep(60)
"""
WITHOUT_INSTANCES = """
import os, sys
from corral import Containment, Profile, Sandbox, SandboxConfig
from corral.containment.kernel.inotify import InotifyWatches
from corral.guard.rules.loader import effects, profile_named
from corral.model.call import Decision
groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)
config = SandboxConfig(sys.argv[1], profile=profile, denylist=(), interpreter_block=())
for name in "abcdef":
    os.makedirs(f"{sys.argv[1]}/{name}/deep")
with open("/proc/sys/user/max_inotify_instances", "w") as file:
    file.write("20")
with Sandbox(config) as box, Sandbox(config) as other:
    for each in (box, other):
        each.run(["true"])
    taking = box.start(["python3", "take.py"])
    next(iter(taking))
    try:
        InotifyWatches().close()
        print("an instance is left")
    except OSError as error:
        print(error.errno)
    for number, each in enumerate((box, other)):
        for _ in range(4):
            assert each.run(["true"]).violations == ()
        found = each.run(["touch", f"a/deep/{number}", f"{'bc'[number]}/deep/.envrc"])
        print(found.enforcement, [os.path.relpath(v.target, sys.argv[1]) for v in found.violations])
    taking.kill()
"""


def test_planted_file_is_found_without_inotify_instances(project: Path) -> None:
    (project / "take.py").write_text(TAKE_INSTANCES)
    # The limit of the instances is that of a user namespace, so that other tests keep theirs.
    words = [
        "unshare",
        "--user",
        "--map-current-user",
        "--keep-caps",
        sys.executable,
        "-c",
        WITHOUT_INSTANCES,
        str(project),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == "24\nfull ['b/deep/.envrc']\nfull ['c/deep/.envrc']\n", done.stderr


def test_fork_of_the_host_watches_for_itself(repository: Path) -> None:
    for number in range(8):
        (repository / "many" / str(number)).mkdir(parents=True)
    watch = ProtectedNameWatcher(find(str(repository)), str(repository))
    for _ in range(4):
        assert watch.look() == ()
    child = os.fork()
    if child == 0:
        (repository / "many" / "1" / ".envrc").touch()
        found = watch.look()
        os._exit(len(found))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    (repository / "many" / "2" / ".envrc").touch()
    assert [violation.target for violation in watch.look()] == [f"{repository}/many/2/.envrc"]
    watch.close()
