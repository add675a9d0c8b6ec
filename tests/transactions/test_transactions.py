"""Tests of transactions on the real kernel: the project does not change, and containment is the same."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import must_hold
from observe import eventually

from corral import Containment, ContainmentError, Limits, Sandbox, TransactionError
from corral.containment.filesystem import persistent_scratch
from corral.transactions import stage, workspace
from corral.transactions.apply import LayerView, apply

PYTHON = sys._base_executable
GIT = ["git", "-c", "user.name=T", "-c", "user.email=t@example.org"]


def tree(root: Path) -> dict[str, object]:
    """Return everything below a directory: kinds, modes, contents and links."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        mode = path.lstat().st_mode
        found[name] = (mode, os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None)
    return found


def fill(root: Path) -> None:
    (root / "kept").write_text("kept\n")
    (root / "changed").write_text("before\n")
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "leaf").write_text("leaf\n")
    (root / "link").symlink_to("kept")


CHANGE = """
set -e
rm kept; echo after >changed; echo new >added; mkdir made; echo in >made/it
rm -r deep; mkdir deep; echo other >deep/other; ln -sf changed link; chmod 755 changed
"""


def repository(root: Path) -> None:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "file").write_text("one\n")
    subprocess.run([*GIT, "-C", str(root), "add", "."], check=True)
    subprocess.run([*GIT, "-C", str(root), "commit", "-qm", "one"], check=True)


@pytest.fixture
def in_repository(open_sandbox: Callable[..., Sandbox], project: Path) -> Sandbox:
    """A contained sandbox over a repository."""
    repository(project)
    box = open_sandbox()
    if box.run(["true"]).enforcement != "full":
        must_hold()
    return box


def test_project_does_not_change_in_a_transaction(held: Sandbox, project: Path) -> None:
    fill(project)
    before = tree(project)
    with held.transaction() as tx:
        result = tx.run(CHANGE, shell=True)
        assert (result.exit_code, result.stderr_text, result.transaction) == (0, "", tx.id)
        seen = tx.run("cat changed link added made/it deep/other; ls -A; ls deep", shell=True)
        assert seen.stdout_text.split() == [
            *("after", "after", "new", "in", "other"),
            *("added", "changed", "deep", "link", "made", "other"),
        ]
        assert tree(project) == before
        assert tx.how == "overlay"
    assert tree(project) == before
    assert held.run(["cat", "changed"]).stdout == b"before\n"


def test_canary_same_commands_change_the_project(held: Sandbox, project: Path) -> None:
    fill(project)
    before = tree(project)
    assert held.run(CHANGE, shell=True).ok
    assert tree(project) != before


def test_concurrent_commands_share_one_overlay(held: Sandbox, project: Path) -> None:
    with held.transaction() as tx, tx.start(["sh", "-c", "echo there >note; exec sleep 60"]) as server:
        eventually(lambda: tx.run(["cat", "note"]).stdout == b"there\n")
        assert server.result is None
    assert not (project / "note").exists()


def test_transactions_do_not_see_each_other(held: Sandbox, project: Path) -> None:
    with held.transaction() as one, held.transaction() as other:
        one.run(["sh", "-c", "echo one >note"])
        assert other.run(["cat", "note"]).exit_code == 1
        assert one.run(["cat", "note"]).stdout == b"one\n"


PROTECTED = {
    "a hook": "echo x >.git/hooks/pre-commit",
    "the repository renamed away": "mv .git aside && mkdir -p .git/hooks && echo x >.git/hooks/pre-commit",
    "the hooks renamed away": "mv .git/hooks .git/aside && mkdir .git/hooks",
    "the mount undone": "umount .git/hooks && echo x >.git/hooks/pre-commit",
}


@pytest.mark.parametrize("command", PROTECTED.values(), ids=PROTECTED)
def test_protected_paths_are_read_only_in_a_transaction(command: str, in_repository: Sandbox) -> None:
    with in_repository.transaction() as tx:
        result = tx.run(command, shell=True)
        assert result.exit_code != 0
        assert tx.run(["ls", ".git/hooks/pre-commit"]).exit_code != 0


def test_git_works_in_a_transaction(in_repository: Sandbox, project: Path) -> None:
    head = (project / ".git" / "refs" / "heads").iterdir().__next__().read_text()
    script = "git rm -q file && echo two >other && git add . && git -c user.name=T -c user.email=t@e commit -qm two && git log --oneline | wc -l"
    with in_repository.transaction() as tx:
        result = tx.run(script, shell=True)
        assert (result.stdout_text.strip(), result.exit_code) == ("2", 0), result.stderr_text
    assert (project / ".git" / "refs" / "heads").iterdir().__next__().read_text() == head
    assert (
        subprocess.run(["git", "-C", str(project), "status", "--porcelain"], capture_output=True, check=True).stdout
        == b""
    )


def test_git_commits_are_applied_and_undone(in_repository: Sandbox, project: Path) -> None:
    def git(*words: str) -> str:
        return subprocess.run([*GIT, "-C", str(project), *words], capture_output=True, text=True, check=True).stdout

    script = "echo two >other && git add . && git -c user.name=T -c user.email=t@e commit -qm two && git branch more && git tag mark"
    with in_repository.transaction() as tx:
        assert tx.run(script, shell=True).ok
        applied = tx.apply()
    assert (applied.ok, applied.refused) == (True, ())
    assert git("log", "--format=%s %D").splitlines()[0].startswith("two HEAD -> ")
    assert (git("rev-parse", "more"), git("rev-parse", "mark")) == (git("rev-parse", "HEAD"),) * 2
    with in_repository.transaction() as tx:
        assert tx.run(["git", "reset", "-q", "--hard", "HEAD~1"]).ok
        assert tx.apply().refused == ()
    assert (git("log", "--format=%s"), git("status", "--porcelain")) == ("one\n", "")
    assert not (project / "other").exists()
    assert in_repository.undo().ok
    assert (git("log", "--format=%s"), git("status", "--porcelain")) == ("two\none\n", "")
    assert in_repository.undo().ok
    assert (git("log", "--format=%s"), git("status", "--porcelain"), git("fsck")) == ("one\n", "", "")


OUTSIDE = {
    "the place of the changes": "ls {place}",
    "a file beside the project": "cat {outside}/secret",
    "a write beside the project": "echo x >{outside}/planted",
    "a device": "mknod node c 1 3 && cat node",
    "a whiteout": "mknod gone c 0 0",
    "a mount": "mount -t tmpfs none .",
    "what an overlay notes": f'{sys._base_executable} -c \'import os; os.setxattr("made", "trusted.overlay.opaque", b"y")\'',
}


@pytest.mark.parametrize("command", OUTSIDE.values(), ids=OUTSIDE)
def test_containment_is_the_same_in_a_transaction(command: str, held: Sandbox, outside: Path) -> None:
    with held.transaction() as tx:
        tx.run(["mkdir", "made"])
        result = tx.run(command.format(place=tx._place.path, outside=outside), shell=True)
        assert result.exit_code != 0, result.stdout_text
    assert os.listdir(outside) == ["secret"]


def test_write_grant_is_read_only_in_a_transaction(open_sandbox: Callable[..., Sandbox], outside: Path) -> None:
    box = open_sandbox(containment=Containment(write=(str(outside),)))
    if box.run(["sh", "-c", f"echo x >{outside}/canary"]).enforcement != "full":
        must_hold()
    assert (outside / "canary").exists()
    with box.transaction() as tx:
        assert tx.run(["cat", str(outside / "secret")]).stdout == b"canary"
        assert "Read-only" in tx.run(["sh", "-c", f"echo x >{outside}/more"]).stderr_text
    assert not (outside / "more").exists()


def test_limits_apply_in_a_transaction(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(limits=Limits(file_size_bytes=1 << 20))
    with box.transaction() as tx:
        assert tx.run("exec head -c 2000000 /dev/zero >large", shell=True).violations[0].kind == "file-size-limit"


def test_changes_survive_a_killed_keeper(held: Sandbox) -> None:
    with held.transaction() as tx:
        tx.run(["sh", "-c", "echo there >note"])
        keeper = held._pool._keeper
        assert keeper is not None
        os.kill(keeper.pid, 9)
        eventually(lambda: tx.run(["cat", "note"]).stdout == b"there\n")


def test_ended_transaction_runs_nothing(held: Sandbox) -> None:
    with held.transaction() as tx:
        pass
    with pytest.raises(TransactionError, match="has ended"):
        tx.run(["true"])


def test_discarded_transactions_leave_no_files(held: Sandbox, project: Path) -> None:
    for _ in range(3):
        with held.transaction() as tx:
            tx.run(["sh", "-c", "mkdir -p a/b; touch a/b/c; chmod 000 a/b a"])
    held.close()
    above = persistent_scratch.scratch_path(str(project), (str(project),), os.environ, make=False, kind="transactions")
    assert os.listdir(above) == []


def test_directory_of_a_killed_process_is_removed(held: Sandbox, project: Path) -> None:
    left = workspace.make(str(project), (), os.environ)
    kept = workspace.make(str(project), (), os.environ)
    kept.keep({})
    left.release()
    kept.release()
    with held.transaction():
        assert not os.path.exists(left.path)
        assert os.path.exists(kept.path)


def test_spare_is_not_used_after_protected_paths_change(in_repository: Sandbox, project: Path) -> None:
    with in_repository.transaction():
        pass
    workshop = in_repository._state.spares
    assert workshop is not None
    eventually(lambda: workshop._spare is not None)
    # git replaces the file by a rename. An overlay that has cached the old one would not see that.
    subprocess.run(["git", "-C", str(project), "config", "user.name", "Somebody"], check=True)
    with in_repository.transaction() as tx:
        assert b"Somebody" in tx.run(["cat", ".git/config"]).stdout


def test_project_with_a_mount_inside_is_copied(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    fill(project)
    inner = project / "mounted"
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(inner)], check=True)
    try:
        (inner / "file").write_text("below\n")
        box = open_sandbox()
        with box.transaction() as tx:
            result = tx.run("rm kept; cat mounted/file", shell=True)
            assert (result.stdout_text, tx.how) == ("below\n", "copy")
            assert [violation.kind for violation in result.violations] == ["copied"]
            assert tx.run(["true"]).violations == ()
        assert (project / "kept").exists()
        box.close()
    finally:
        subprocess.run(["umount", str(inner)], check=True)


def test_transaction_needs_the_mount_layer(open_sandbox: Callable[..., Sandbox]) -> None:
    box = open_sandbox(containment=Containment(backend="none"))
    with pytest.raises(ContainmentError, match="needs the layer mount"):
        box.transaction()


def test_threads_begin_transactions_at_once(held: Sandbox, project: Path) -> None:
    seen: list[bytes] = []

    def one(number: int) -> None:
        with held.transaction() as tx:
            tx.run(["sh", "-c", f"echo {number} >mine"])
            seen.append(tx.run(["cat", "mine"]).stdout)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [b"%d\n" % number for number in range(6)]
    assert not (project / "mine").exists()
    shutil.rmtree(project)


def test_overlay_is_applied_and_undone(held: Sandbox, project: Path) -> None:
    fill(project)
    before = tree(project)
    with held.transaction() as tx:
        tx.run(CHANGE, shell=True)
        changes = {change.path: change.kind for change in tx.changes()}
        assert "+after" in tx.diff()
        assert tx.apply().ok
        with pytest.raises(TransactionError, match="applied already"):
            tx.run(["true"])
    assert changes == {
        "added": "added",
        "changed": "changed",
        "deep/er": "deleted",
        "deep/other": "added",
        "kept": "deleted",
        "link": "link",
        "made": "added",
        "made/it": "added",
    }
    assert (project / "changed").read_text() == "after\n"
    assert os.listdir(project / "deep") == ["other"]
    assert not (project / "kept").exists()
    assert all("overlay" not in name for path in project.rglob("*") if path.is_file() for name in os.listxattr(path))
    (entry,) = held.history()
    assert (entry.id.partition("-")[0], entry.commands) == (tx.id, (CHANGE[:500],))
    assert held.undo().ok
    assert tree(project) == before


def test_file_changed_on_the_host_is_a_conflict(held: Sandbox, project: Path) -> None:
    fill(project)
    with held.transaction() as tx:
        tx.run(["sh", "-c", "echo mine >changed; echo mine >added"])
        (project / "changed").write_text("the owner's\n")
        applied = tx.apply()
        assert [(conflict.path, applied.ok) for conflict in applied.conflicts] == [("changed", False)]
        assert not (project / "added").exists()
        assert tx.apply(["added"]).ok
    assert (project / "changed").read_text() == "the owner's\n"
    assert (project / "added").read_text() == "mine\n"


def test_file_deleted_on_the_host_is_a_conflict(held: Sandbox, project: Path) -> None:
    fill(project)
    with held.transaction() as tx:
        tx.run(["sh", "-c", "echo mine >>changed"])
        (project / "changed").unlink()
        assert [conflict.path for conflict in tx.apply().conflicts] == ["changed"]


def test_directory_deleted_on_the_host_is_a_conflict(held: Sandbox, project: Path) -> None:
    fill(project)
    with held.transaction() as tx:
        tx.run(["sh", "-c", "echo mine >>deep/er/leaf; rm kept"])
        shutil.rmtree(project / "deep")
        found = tree(project)
        assert [conflict.path for conflict in tx.apply().conflicts] == ["deep"]
    assert tree(project) == found


def test_directory_replaced_after_a_scan_is_a_conflict(held: Sandbox, project: Path) -> None:
    fill(project)
    (project / "other").mkdir()
    (project / "other" / "leaf").write_text("other\n")
    with held.transaction() as tx:
        tx.run(["sh", "-c", "echo mine >>deep/er/leaf; touch deep/er/more; echo new >new"])
        assert len(tx.changes()) == 3
        # The renames do not change the ctime of the file.
        (project / "deep" / "er").rename(project / "aside")
        (project / "other").rename(project / "deep" / "er")
        found = tree(project)
        applied = tx.apply()
        assert [conflict.path for conflict in applied.conflicts] == ["deep/er/leaf", "deep/er/more"]
        assert tree(project) == found
        assert tx.apply(["new"]).ok


def test_waiting_transaction_detects_replaced_directories(held: Sandbox, project: Path) -> None:
    fill(project)
    (project / "other").mkdir()
    (project / "other" / "leaf").write_text("other\n")
    with held.transaction() as tx:
        tx.run(["sh", "-c", "echo mine >>deep/er/leaf"])
        tx.keep()
    (project / "deep" / "er").rename(project / "aside")
    (project / "other").rename(project / "deep" / "er")
    waiting = workspace.waiting(str(project), os.environ)
    waiting.facts()
    with LayerView(str(project), waiting, ()) as look:
        assert [conflict.path for conflict in apply(look, os.environ, None, ()).conflicts] == ["deep/er/leaf"]
    waiting.remove()


def test_host_write_just_before_begin_is_no_conflict(held: Sandbox, project: Path) -> None:
    for number in range(20):
        (project / "file").write_text(f"{number}\n")
        with held.transaction() as tx:
            tx.run(["sh", "-c", "echo more >>file"])
            assert tx.apply().ok
        assert (project / "file").read_text() == f"{number}\nmore\n"


def test_hook_in_a_later_repository_is_not_applied(held: Sandbox, project: Path) -> None:
    repository(project)
    with held.transaction() as tx:
        # The repository is newer than the sandbox, so only apply protects the hook.
        assert tx.run(["sh", "-c", "echo x >.git/hooks/pre-commit; echo y >beside"]).ok
        applied = tx.apply()
    assert [refused.path for refused in applied.refused] == [".git/hooks/pre-commit"]
    assert not (project / ".git" / "hooks" / "pre-commit").exists()
    assert (project / "beside").exists()


def test_missing_hooks_path_is_not_applied(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    repository(project)
    subprocess.run(["git", "-C", str(project), "config", "core.hooksPath", "tools/hooks"], check=True)
    box = open_sandbox()
    if box.run(["true"]).enforcement != "full":
        must_hold()
    with box.transaction() as tx:
        assert tx.run("mkdir -p tools/hooks other && touch tools/hooks/pre-commit other/file", shell=True).ok
        applied = tx.apply()
    assert [refused.path for refused in applied.refused] == ["tools"]
    assert (project / "other" / "file").exists()
    assert not (project / "tools").exists()


def test_kept_transaction_outlives_its_sandbox(held: Sandbox, project: Path) -> None:
    with held.transaction() as tx:
        tx.run(["sh", "-c", "echo new >new"])
        tx.keep()
    held.close()
    waiting = workspace.waiting(str(project), os.environ)
    assert (waiting.id, waiting.facts()["commands"]) == (tx.id, ["sh -c echo new >new"])
    waiting.remove()
    with pytest.raises(TransactionError, match="no transaction waits"):
        workspace.waiting(str(project), os.environ)


def test_replaced_sandbox_methods_stay_in_the_transaction(held: Sandbox, project: Path) -> None:
    # Tracing replaces methods like this.
    for name in ("run", "arun", "start", "astart"):
        setattr(held, name, getattr(held, name))
    with held.transaction() as tx:
        assert tx.run(["touch", "made"]).transaction == tx.id
    assert not (project / "made").exists()


TAKE = """
import os, socket, time
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
way = socket.socket(socket.AF_UNIX)
way.bind("/tmp/way")
way.listen()
_, (taken,), _, _ = socket.recv_fds(way.accept()[0], 10, 1)
open("/tmp/taken", "w").close()
wait_for("/tmp/now")
os.pwrite(taken, b"later\\n", 0)
os.fsync(taken)
open("/tmp/written", "w").close()
wait_for("/tmp/never")
"""
GIVE = """
import os, socket, time
way = socket.socket(socket.AF_UNIX)
while way.connect_ex("/tmp/way"):
    time.sleep(0.01)
given = os.open("note", os.O_RDWR | os.O_CREAT, 0o644)
os.write(given, b"shown\\n")
socket.send_fds(way, [b"x"], [given])
while not os.path.exists("/tmp/taken"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("is_shared", [False, True], ids=["held", "canary"])
def test_file_open_for_writing_elsewhere_is_copied(
    is_shared: bool, held: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_shared:
        monkeypatch.setattr(stage, "_may_be_written", lambda _: False)
    with (
        held.transaction() as other,
        held.transaction() as one,
        other.start([PYTHON, "-c", TAKE]),
    ):
        assert one.run([PYTHON, "-c", GIVE]).ok
        assert one.apply().ok
        held.run(["touch", "/tmp/now"])
        eventually(lambda: held.run(["test", "-e", "/tmp/written"]).ok)
    assert (project / "note").read_text() == ("later\n" if is_shared else "shown\n")


def test_project_of_any_name_has_an_overlay(open_sandbox: Callable[..., Sandbox], tmp_path: Path) -> None:
    root = tmp_path / "a:b,c d\\e=f"
    root.mkdir()
    with open_sandbox(project_root=str(root)).transaction() as tx:
        assert (tx.run(["touch", "made"]).exit_code, tx.how) == (0, "overlay")
        assert tx.apply().ok
    assert (root / "made").exists()


def test_moving_an_existing_directory_copies_it(held: Sandbox, project: Path) -> None:
    fill(project)
    with held.transaction() as tx:
        program = "import os; os.rename('deep', 'moved')"
        assert "cross-device" in tx.run([sys._base_executable, "-I", "-S", "-c", program]).stderr_text
        assert tx.run(["mv", "deep", "moved"]).ok
        assert [(change.path, change.old_path, change.kind) for change in tx.changes()] == [
            ("moved", "deep", "renamed")
        ]
        assert tx.apply().ok
    assert (project / "moved" / "er" / "leaf").read_text() == "leaf\n"
    assert not (project / "deep").exists()


def test_commits_in_a_linked_worktree_are_applied(open_sandbox: Callable[..., Sandbox], tmp_path: Path) -> None:
    main, tree_ = tmp_path / "main", tmp_path / "tree"
    main.mkdir()
    repository(main)
    subprocess.run(["git", "-C", str(main), "worktree", "add", "-q", str(tree_)], check=True)
    with open_sandbox(project_root=str(tree_)).transaction() as tx:
        assert tx.run(["git", "status", "--short"]).ok
        assert tx.run([*GIT, "commit", "-qm", "two", "--allow-empty"]).ok
        assert tx.run(["rm", "file"]).ok
        assert log(main, "tree") == ["one"]
        assert tx.apply().ok
    assert (log(main, "tree"), log(main, "HEAD")) == (["two", "one"], ["one"])
    assert not (tree_ / "file").exists()
    assert (main / "file").exists()


def log(folder: Path, ref: str) -> list[str]:
    words = ["git", "-C", str(folder), "log", "--format=%s", ref]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
