"""uninstall removes the directories that install made, and only if nothing else is in them."""

import json
import os
from pathlib import Path

import alone
import pytest
from sampling import sampled

from corral.integrations.hooks.registry import HOSTS, USER, is_host_present, settings_path

NAMES = list(HOSTS)
# Directories of corral itself, and their parents.
OWN = (".local", ".cache", ".config/corral")


def directories(place: Path) -> set[str]:
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_dir()}
    return {name for name in found if not name.startswith(OWN)}


def changed(verb: str, name: str, home: Path, work: Path, *words: str) -> None:
    done = alone.run(verb, name, "--yes", *words, home=home, cwd=work)
    assert done.returncode == 0, done.stderr


def file_of(name: str, home: Path) -> Path:
    return Path(settings_path(HOSTS[name], USER, "", alone.environment(home)))


@pytest.mark.parametrize("name", sampled(NAMES, every=3))
def test_uninstall_removes_directories_that_install_made(name: str, home: Path, work: Path) -> None:
    changed("install", name, home, work)
    assert directories(home)
    # A second install, as after an upgrade, still knows that corral made the directories.
    file = file_of(name, home)
    file.write_text(file.read_text() + "\n")
    changed("install", name, home, work)
    changed("uninstall", name, home, work)
    assert directories(home) == set()


@pytest.mark.parametrize("name", sampled(NAMES, every=3))
def test_upgrade_keeps_the_record_of_directories(name: str, home: Path, work: Path) -> None:
    changed("install", name, home, work)
    file = file_of(name, home)
    newest = file.read_text()
    file.write_text(newest.replace(alone.PYTHON, "/old/python"))
    assert file.read_text() != newest
    changed("install", name, home, work)
    changed("uninstall", name, home, work)
    assert directories(home) == set()


@pytest.mark.parametrize("name", sampled(NAMES, every=3))
def test_uninstall_removes_directories_in_the_project(name: str, home: Path, work: Path) -> None:
    changed("install", name, home, work, "--project")
    assert directories(work)
    changed("uninstall", name, home, work, "--project")
    assert directories(work) == set()


@pytest.mark.parametrize("name", sampled(NAMES, every=3))
def test_existing_directories_stay(name: str, home: Path, work: Path) -> None:
    file_of(name, home).parent.mkdir(parents=True)
    before = directories(home)
    changed("install", name, home, work)
    changed("uninstall", name, home, work)
    assert directories(home) == before


@pytest.mark.parametrize("name", sampled(NAMES, every=3))
def test_directory_with_other_files_stays(name: str, home: Path, work: Path) -> None:
    changed("install", name, home, work)
    file = file_of(name, home)
    mine = file.parent / "mine.txt"
    mine.write_text("mine")
    changed("uninstall", name, home, work)
    assert (file.exists(), mine.read_text()) == (False, "mine")


def test_link_in_place_of_a_directory_stays(home: Path, work: Path, tmp_path: Path) -> None:
    changed("install", "copilot", home, work)
    folder = file_of("copilot", home).parent
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    changed("uninstall", "copilot", home, work)
    assert (folder.is_symlink(), elsewhere.is_dir()) == (True, True)


@pytest.mark.parametrize("name", NAMES)
def test_host_is_present_when_its_directory_has_files(name: str, home: Path) -> None:
    host, environ = HOSTS[name], alone.environment(home)
    where = Path(os.path.join(home, host.folder))
    assert not is_host_present(host, environ)
    where.mkdir(parents=True)
    assert not is_host_present(host, environ)
    (where / "settings").touch()
    assert is_host_present(host, environ)


def test_empty_directory_is_not_an_unguarded_host(home: Path, work: Path) -> None:
    for folder in (".cursor", ".copilot", ".codex"):
        (home / folder).mkdir()
    (home / ".codex" / "config.toml").touch()
    checks = json.loads(alone.run("--json", home=home, cwd=work).stdout)["checks"]
    named = [check["text"] for check in checks if check["about"] == "hooks"]
    assert named == ["Codex is installed but does not ask corral"]
