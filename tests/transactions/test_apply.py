"""Tests of apply and undo on a copy of a project."""

import os
import socket
import subprocess
from pathlib import Path

import pytest
from names_that_run_later import DIRECTORIES, ROWS, examples, home_examples
from worlds import World, owner, tree

from corral.model.errors import PolicyError, TransactionError
from corral.transactions import undo_store
from corral.transactions import workspace as place
from corral.transactions.undo import history, undo


def test_apply_writes_what_the_commands_saw(world: World) -> None:
    world.change()
    expected = world.expected()
    applied = world.apply()
    assert (applied.ok, applied.refused) == (True, ())
    assert tree(world.root) == expected
    assert world.changes() == {}


def test_undo_restores_contents_modes_and_times(memory: Path, state: Path) -> None:
    world = World(memory, owner(memory, state))
    world.fill()
    before = tree(world.root)
    folders = {path: path.stat().st_mtime_ns for path in (world.root, *world.root.rglob("*")) if path.is_dir()}
    world.begin()
    world.change()
    expected = world.expected()
    assert world.apply().ok
    assert tree(world.root) == expected
    done = undo(str(world.root), world.environ)
    assert (done.ok, tree(world.root)) == (True, before)
    assert {path: path.stat().st_mtime_ns for path in folders} == folders
    assert [entry.state for entry in history(str(world.root), world.environ)] == ["undone"]
    with pytest.raises(TransactionError, match="nothing to undo"):
        undo(str(world.root), world.environ)


def test_changes_have_kinds(world: World) -> None:
    world.change()
    assert world.changes() == {
        "added": "added",
        "becomes-directory": "changed",
        "becomes-directory/in": "added",
        "changed": "changed",
        "deleted": "deleted",
        "dressed": "mode",
        "emptied/old": "deleted",
        "folder": "mode",
        "link": "link",
        "made": "added",
        "made/below": "added",
        "made/below/file": "added",
        "moved-to": "renamed",
    }
    assert world.change_at("moved-to").old_path == "moved"
    assert world.change_at("emptied/old").files == 1


def test_renamed_directory_is_one_change(world: World) -> None:
    layer = Path(world.held.layer)
    (layer / "folder").rename(layer / "elsewhere")
    assert world.changes() == {"elsewhere": "renamed"}
    assert world.apply().ok
    assert sorted(path.name for path in world.root.glob("*/inner/leaf")) == ["leaf"]
    assert not (world.root / "folder").exists()


def test_part_of_the_changes_is_applied(world: World) -> None:
    world.change()
    before = tree(world.root)
    applied = world.apply(["made/below", "changed"])
    assert [change.path for change in applied.changes] == ["changed", "made/below", "made/below/file"]
    found = tree(world.root)
    assert {name for name in found if found.get(name) != before.get(name)} == {
        "changed",
        "made",
        "made/below",
        "made/below/file",
    }
    assert "changed" not in world.changes()
    expected = world.expected()
    assert world.apply().ok
    assert tree(world.root) == expected
    assert len(history(str(world.root), world.environ)) == 2


def test_path_outside_the_project_is_an_error(world: World) -> None:
    with pytest.raises(TransactionError, match="is not in the project"):
        world.apply(["../elsewhere"])


def edit(path: Path) -> None:
    path.write_text("by the owner\n")


def replace(path: Path) -> None:
    path.with_name("other").write_text("by the owner\n")
    path.with_name("other").rename(path)


OWNERS = {
    "a changed file edited": ("changed", lambda root: edit(root / "changed")),
    "a changed file replaced": ("changed", lambda root: replace(root / "changed")),
    "a changed file deleted and made again": (
        "changed",
        lambda root: ((root / "changed").unlink(), edit(root / "changed")),
    ),
    "a deleted file edited": ("deleted", lambda root: edit(root / "deleted")),
    "a deleted directory added to": ("emptied/old", lambda root: edit(root / "emptied" / "old" / "more")),
    "a deleted directory changed below": ("emptied/old/file", lambda root: edit(root / "emptied" / "old" / "file")),
    "an added file made meanwhile": ("added", lambda root: edit(root / "added")),
    "an added directory made meanwhile": ("made", lambda root: edit(root / "made")),
    "a mode changed meanwhile": ("dressed", lambda root: (root / "dressed").chmod(0o600)),
    "a link changed meanwhile": ("link", lambda root: ((root / "link").unlink(), (root / "link").symlink_to("x"))),
    "a moved file edited": ("moved", lambda root: edit(root / "moved")),
}


@pytest.mark.parametrize(("path", "touch"), OWNERS.values(), ids=OWNERS)
def test_file_changed_by_the_user_is_never_overwritten(path: str, touch: object, world: World) -> None:
    world.change()
    assert callable(touch)
    touch(world.root)
    found = tree(world.root)
    applied = world.apply()
    assert (applied.ok, applied.changes) == (False, ())
    assert path in [conflict.path for conflict in applied.conflicts]
    assert tree(world.root) == found
    assert history(str(world.root), world.environ) == []


def test_change_by_the_user_elsewhere_is_no_conflict(world: World) -> None:
    world.change()
    edit(world.root / "kept")
    edit(world.root / "folder" / "beside")
    assert world.apply().ok
    assert (world.root / "kept").read_text() == (world.root / "folder" / "beside").read_text() == "by the owner\n"


def test_other_paths_apply_despite_a_conflict(world: World) -> None:
    world.change()
    edit(world.root / "changed")
    assert not world.apply().ok
    assert world.apply(["added", "made"]).ok
    assert (world.root / "added").exists()


def test_undo_refuses_paths_changed_since(world: World) -> None:
    world.change()
    assert world.apply().ok
    edit(world.root / "made" / "below" / "more")
    found = tree(world.root)
    done = undo(str(world.root), world.environ)
    assert [conflict.path for conflict in done.conflicts] == ["made"]
    assert tree(world.root) == found
    (world.root / "made" / "below" / "more").unlink()
    assert undo(str(world.root), world.environ).ok


PLANTED = {
    "a hook": ".git/hooks/pre-commit",
    "another configuration": ".git/config.worktree",
    "a common directory": ".git/commondir",
    "a start-up file": ".envrc",
    "an editor's tasks": "deep/.vscode/tasks.json",
    "an agent's settings": ".claude/settings.json",
    "corral's own policy": "corral.toml",
    "a name in other letters": ".Git/hooks/pre-commit",
    "a name in a letter of old prints": ".v\u017fcode/tasks.json",
    "a name with a sign that is not seen": ".g\u200bit/hooks/pre-commit",
    "a bare repository's hook": "bare/hooks/post-checkout",
    "a bare repository's configuration": "bare/config",
}


def repositories(root: Path) -> None:
    for path in (root / ".git", root / "bare"):
        (path / "objects").mkdir(parents=True)
        (path / "refs").mkdir()
        (path / "HEAD").write_text("ref: refs/heads/main\n")


@pytest.mark.parametrize("path", PLANTED.values(), ids=PLANTED)
def test_protected_paths_are_never_applied(path: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    repositories(world.root)
    layer = world.begin()
    (layer / path).parent.mkdir(parents=True, exist_ok=True)
    (layer / path).write_text("planted\n")
    (layer / "beside").write_text("harmless\n")
    assert world.change_at(path).protected
    applied = world.apply()
    assert applied.ok
    assert [refused.path for refused in applied.refused if path == refused.path or path.startswith(f"{refused.path}/")]
    assert not (world.root / path).exists()
    assert (world.root / "beside").exists()


def test_same_file_outside_a_repository_is_applied(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    layer = world.begin()
    (layer / "hooks").mkdir()
    (layer / "hooks" / "pre-commit").write_text("planted\n")
    assert world.apply().ok
    assert (world.root / "hooks" / "pre-commit").exists()


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_files_that_run_later_are_never_applied(directory: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    copy = world.begin()
    paths = examples(directory, [row for row in ROWS if row != "git"])
    for path in paths:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text("x")
    (copy / "ordinary").write_text("x")
    world.apply()
    assert [path for path in (*paths, "ordinary") if os.path.lexists(world.root / path)] == ["ordinary"]


def test_startup_files_are_not_applied_to_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, owner(tmp_path))
    monkeypatch.setenv("HOME", str(world.root))
    copy = world.begin()
    for path in home_examples():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text("x")
    world.apply()
    assert [path for path in home_examples() if os.path.lexists(world.root / path)] == []


@pytest.mark.parametrize("name", [".vscode", ".github", "deep/.local/state", ".VSCODE"])
def test_link_in_place_of_protected_directory_is_not_applied(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    layer = world.begin()
    (layer / "plain").mkdir()
    (layer / "plain" / "tasks.json").write_text("planted\n")
    (layer / name).parent.mkdir(parents=True, exist_ok=True)
    (layer / name).symlink_to(layer / "plain")
    assert [refused.path for refused in world.apply().refused] == [name]
    assert not os.path.lexists(world.root / name)
    assert (world.root / "plain" / "tasks.json").exists()


LEADING = {
    "the message of a commit": ".git/COMMIT_EDITMSG",
    "what was fetched": ".git/FETCH_HEAD",
    "references": ".git/packed-refs",
    "the log of a branch": ".git/logs/refs/heads/main",
    "all logs": ".git/logs",
    "a name that git does not know": ".git/other",
    "a submodule's": ".git/modules/sub/COMMIT_EDITMSG",
    "a bare repository's": "bare/FETCH_HEAD",
    "in a repository that a call made": "new/.git/COMMIT_EDITMSG",
}


@pytest.mark.parametrize("path", LEADING.values(), ids=LEADING)
def test_link_among_files_that_git_writes_is_not_applied(path: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    repositories(world.root)
    layer = world.begin()
    (layer / path).parent.mkdir(parents=True, exist_ok=True)
    (layer / path).symlink_to(tmp_path / "victim")
    (layer / "beside").symlink_to(tmp_path / "victim")
    changed = world.changes()
    assert path not in changed or world.change_at(path).protected
    assert world.apply().ok
    assert not os.path.lexists(world.root / path)
    assert (world.root / "beside").is_symlink()


def test_canary_commit_writes_through_such_a_link(tmp_path: Path) -> None:
    words = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*words, "init", "-q"], check=True)
    (tmp_path / "victim").write_text("the owner's\n")
    (tmp_path / ".git" / "COMMIT_EDITMSG").symlink_to(tmp_path / "victim")
    subprocess.run([*words, "commit", "-q", "--allow-empty", "-m", "a message"], check=True)
    assert (tmp_path / "victim").read_text() == "a message\n"


@pytest.mark.parametrize("gone", ["folder/hooks/post-checkout", "folder/hooks"], ids=["a file", "a directory"])
def test_undo_does_not_restore_a_file_that_is_a_hook_now(gone: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / "folder" / "hooks").mkdir(parents=True)
    (world.root / "folder" / "hooks" / "post-checkout").write_text("no hook yet\n")
    layer = world.begin()
    subprocess.run(["rm", "-r", str(layer / gone)], check=True)
    assert world.apply().ok
    # A repository without hooks and configuration is harmless, so commands may make one.
    subprocess.run(["git", "init", "-q", "--bare", "--template=", str(world.root / "folder")], check=True)
    done = undo(str(world.root), world.environ)
    assert [refused.path for refused in done.conflicts] in (["folder/hooks"], [gone])
    assert not (world.root / "folder" / "hooks" / "post-checkout").exists()
    assert [entry.state for entry in history(str(world.root), world.environ)] == ["applied"]


def test_undo_restores_a_hooks_directory_outside_repositories(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / "folder" / "hooks").mkdir(parents=True)
    (world.root / "folder" / "hooks" / "post-checkout").write_text("no hook yet\n")
    layer = world.begin()
    subprocess.run(["rm", "-r", str(layer / "folder" / "hooks")], check=True)
    assert world.apply().ok
    assert undo(str(world.root), world.environ).ok
    assert (world.root / "folder" / "hooks" / "post-checkout").exists()


def test_directory_without_protected_entries_is_deleted(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / ".github" / "workflows").mkdir(parents=True)
    layer = world.begin()
    subprocess.run(["rm", "-r", str(layer / ".github")], check=True)
    assert world.apply().refused == ()
    assert not (world.root / ".github").exists()


@pytest.mark.parametrize("top", ["", "deep/"], ids=["the project itself", "a directory in it"])
@pytest.mark.parametrize("last", ["config", "HEAD", "objects", "refs"])
def test_directory_does_not_become_a_repository(top: str, last: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / top).mkdir(exist_ok=True)

    def plant(at: Path, names: set[str]) -> None:
        for name in names & {"objects", "refs"}:
            (at / top / name / "heads").mkdir(parents=True)
        for name, text in (("HEAD", "ref: refs/heads/main\n"), ("config", "[core]\n\tfsmonitor = touch it\n")):
            if name in names:
                (at / top / name).write_text(text)

    everything = {"config", "HEAD", "objects", "refs"}
    # The missing entry comes with a transaction.
    plant(world.root, everything - {last})
    plant(world.begin(), {last})
    world.apply()
    assert not (world.root / top / last).exists()
    plant(world.root, {last})
    asked = subprocess.run(
        ["git", "config", "core.fsmonitor"], cwd=world.root / top, capture_output=True, text=True, check=False
    )
    assert asked.stdout == "touch it\n"


def test_directory_with_protected_entries_is_not_deleted(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    repositories(world.root / "nested")
    layer = world.begin()
    subprocess.run(["rm", "-r", str(layer / "nested")], check=True)
    (world.root / "nested" / ".git" / "config").touch()
    applied = world.apply()
    assert [(refused.path, "protected" in refused.why) for refused in applied.refused] == [("nested", True)]
    assert (world.root / "nested" / ".git" / "HEAD").exists()


def test_paths_protected_at_the_start_stay_protected(world: World) -> None:
    world.change()
    with world.look(kept=(str(world.root / "changed"),)) as look:
        assert look.is_protected("changed")
        assert not look.is_protected("changed-not")


def test_new_repository_is_applied_without_hooks_and_config(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    layer = world.begin()
    subprocess.run(["git", "init", "-q", str(layer / "new")], check=True)
    (layer / "new" / ".git" / "hooks" / "post-commit").write_text("planted\n")
    subprocess.run(["git", "init", "-q", str(layer / "bad")], check=True)
    subprocess.run(["git", "-C", str(layer / "bad"), "config", "core.fsmonitor", "planted"], check=True)
    applied = world.apply()
    assert [refused.path for refused in applied.refused] == ["bad/.git"]
    for name in ("new", "bad"):
        assert not list((world.root / name / ".git").glob("hooks/*"))
        assert b"fsmonitor" not in (world.root / name / ".git" / "config").read_bytes()


def test_hard_links_stay_one_file(world: World) -> None:
    layer = Path(world.held.layer)
    (layer / "one").write_text("same\n")
    os.link(layer / "one", layer / "two")
    os.link(layer / "kept", layer / "also-kept")
    assert world.changes()["kept"] == "link"
    assert world.apply().ok
    assert (world.root / "one").stat().st_ino == (world.root / "two").stat().st_ino
    assert (world.root / "kept").stat().st_ino == (world.root / "also-kept").stat().st_ino


def test_links_out_of_the_layer_are_not_followed(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("canary")
    layer = Path(world.held.layer)
    subprocess.run(["rm", "-r", str(layer / "folder")], check=True)
    (layer / "folder").symlink_to(secret)
    (layer / "leads-out").symlink_to(secret / "file")
    assert "canary" not in world.diff()
    assert world.apply().ok
    assert os.readlink(world.root / "folder") == str(secret)
    assert (secret / "file").read_text() == "canary"
    assert not (secret / "inner").exists()


def test_link_in_the_project_is_not_followed(world: World, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    layer = Path(world.held.layer)
    (layer / "folder" / "inner" / "new").write_text("by a call\n")
    (world.root / "folder").rename(aside)
    (world.root / "folder").symlink_to(aside)
    applied = world.apply()
    assert not applied.ok
    assert sorted(os.listdir(aside / "inner")) == ["leaf"]


def test_pipes_and_sockets_are_applied_without_opening_them(world: World) -> None:
    layer = Path(world.held.layer)
    os.mkfifo(layer / "pipe")
    place = os.getcwd()
    os.chdir(layer)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("sock")
    os.chdir(place)
    (layer / "changed").unlink()
    os.mkfifo(layer / "changed")
    assert world.changes() == {"pipe": "added", "sock": "added", "changed": "changed"}
    assert world.diff().count("diff --git") == 4  # the changed type is a deletion and an addition
    assert world.apply().ok
    assert (world.root / "changed").is_fifo()
    assert (world.root / "sock").is_socket()


def test_modes_without_access_are_applied(world: World) -> None:
    layer = Path(world.held.layer)
    (layer / "closed" / "in").mkdir(parents=True)
    (layer / "closed" / "in" / "file").write_text("x\n")
    (layer / "closed" / "in" / "file").chmod(0)
    (layer / "closed" / "in").chmod(0)
    (layer / "closed").chmod(0o500)
    (layer / "folder").chmod(0o500)
    (layer / "changed").write_text("y\n")
    (layer / "changed").chmod(0)
    assert world.changes()["closed/in/file"] == "added"
    assert (layer / "closed").stat().st_mode & 0o777 == 0o500
    assert world.apply().ok
    assert (world.root / "closed" / "in").stat().st_mode & 0o777 == 0
    assert (world.root / "folder").stat().st_mode & 0o777 == 0o500
    assert undo(str(world.root), world.environ).ok
    assert not (world.root / "closed").exists()


def test_undo_restores_directories_without_access(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / "closed").mkdir()
    (world.root / "closed" / "file").write_text("x\n")
    (world.root / "closed").chmod(0o555)
    (world.root / "kept").mkdir()
    (world.root / "kept" / "file").write_text("x\n")
    (world.root / "kept").chmod(0o555)
    before = tree(world.root)
    layer = world.begin()
    for name in ("closed", "kept"):
        (layer / name).chmod(0o755)
        (layer / name / "file").unlink()
    (layer / "closed").rmdir()
    (layer / "kept").chmod(0o555)
    assert world.apply().ok
    assert tree(world.root) == {"kept": (before["kept"][0], None, 0)}
    assert undo(str(world.root), world.environ).ok
    assert tree(world.root) == before
    for name in ("closed", "kept"):
        (world.root / name).chmod(0o755)


def test_scan_does_not_change_unreadable_files(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / "closed").write_text("one\n")
    (world.root / "closed").chmod(0o200)
    world.place = place.make(str(world.root), (), world.environ)
    world.place.begin()
    # An overlay: the layer has only the changed file. A copy of an unreadable file is not possible.
    layer = Path(world.place.layer)
    (layer / "closed").write_text("two\n")
    (layer / "closed").chmod(0o200)
    assert world.changes() == {"closed": "changed"}
    assert world.diff().startswith("diff --git a/closed b/closed\n")
    assert world.apply().ok
    (world.root / "closed").chmod(0o600)
    assert (world.root / "closed").read_text() == "two\n"


def test_names_may_be_any_bytes(world: World) -> None:
    layer = Path(world.held.layer)
    for name in ("\udcff\udc80", "new\nline", "-rf", " ", "\x1b[2J"):
        (layer / name).write_text("x\n")
    (layer / "changed").rename(layer / "\udcfe")
    expected = world.expected()
    assert world.apply().ok
    assert tree(world.root) == expected
    assert undo(str(world.root), world.environ).ok


def test_sparse_file_stays_sparse(tmp_path: Path, memory: Path) -> None:
    # corral copies files if the apply is partial or between two disks.
    world = World(tmp_path, owner(tmp_path, memory / "state"))
    layer = world.begin()
    with (layer / "hole").open("wb") as file:
        file.write(b"head")
        file.truncate(1 << 40)
        file.seek((1 << 40) - 4)
        file.write(b"tail")
    assert world.apply(["hole"]).ok
    made = (world.root / "hole").stat()
    assert (made.st_size, made.st_blocks * 512 < 1 << 20) == (1 << 40, True)
    with (world.root / "hole").open("rb") as file:
        assert file.read(4) == b"head"
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"tail"
    # The comparison does not read the hole.
    assert world.changes() == {}


def test_too_deep_directories_are_refused(world: World) -> None:
    at = os.open(world.held.layer, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    with pytest.raises(TransactionError, match="too deep"):
        world.changes()


def test_history_is_bounded_by_number_age_and_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo_store, "MAX_KEPT", 2)
    layer = Path(world.held.layer)
    for number in range(4):
        (layer / f"file-{number}").write_text("x\n")
        assert world.apply([f"file-{number}"]).ok
    root = str(world.root)
    assert [entry.changes[0]["path"] for entry in history(root, world.environ)] == ["file-3", "file-2"]
    monkeypatch.setattr(undo_store, "MAX_KEPT_BYTES", 1)
    (layer / "changed").write_text("x\n")
    assert world.apply(["changed"]).ok
    assert [entry.changes[0]["path"] for entry in history(root, world.environ)] == ["changed"]
    monkeypatch.setattr(undo_store, "KEPT_SECONDS", -1.0)
    (layer / "deleted").unlink()
    assert world.apply(["deleted"]).ok
    assert history(root, world.environ) == []


def test_state_directory_inside_the_project_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path, tmp_path / "project" / "state"))
    layer = world.begin()
    (layer / "new").touch()
    with pytest.raises(PolicyError, match="inside the project"):
        world.apply()


def test_apply_without_changes_does_nothing(world: World) -> None:
    applied = world.apply()
    assert (applied.ok, applied.changes) == (True, ())
    assert history(str(world.root), world.environ) == []
