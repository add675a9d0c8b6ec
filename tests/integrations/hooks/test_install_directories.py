"""Directories that install makes for a host: uninstall removes those, and only while nothing else is in them."""

import json
import os
from pathlib import Path

import alone
import pytest

from corral.integrations.hooks.registry import HOSTS, USER, is_host_present, settings_path

NAMES = list(HOSTS)
# What corral keeps for itself, and the directories above that.
OWN = (".local", ".cache", ".config/corral")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "home"
    place.mkdir()
    return place


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "pyproject.toml").touch()
    return place


def directories(place: Path) -> set[str]:
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_dir()}
    return {name for name in found if not name.startswith(OWN)}


def changed(verb: str, name: str, home: Path, work: Path, *words: str) -> None:
    done = alone.run(verb, name, "--yes", *words, home=home, cwd=work)
    assert done.returncode == 0, done.stderr


def file_of(name: str, home: Path) -> Path:
    return Path(settings_path(HOSTS[name], USER, "", alone.environment(home)))


@pytest.mark.parametrize("name", NAMES)
def test_directories_that_install_made_go_with_it(name: str, home: Path, work: Path) -> None:
    changed("install", name, home, work)
    assert directories(home)
    # A second one, as after an upgrade, does not make them the user's.
    file = file_of(name, home)
    file.write_text(file.read_text() + "\n")
    changed("install", name, home, work)
    changed("uninstall", name, home, work)
    assert directories(home) == set()


@pytest.mark.parametrize("name", NAMES)
def test_an_upgraded_entry_still_knows_its_directories(name: str, home: Path, work: Path) -> None:
    changed("install", name, home, work)
    file = file_of(name, home)
    newest = file.read_text()
    file.write_text(newest.replace(alone.PYTHON, "/old/python"))
    assert file.read_text() != newest
    changed("install", name, home, work)
    changed("uninstall", name, home, work)
    assert directories(home) == set()


@pytest.mark.parametrize("name", NAMES)
def test_directories_of_the_project_go_too(name: str, home: Path, work: Path) -> None:
    changed("install", name, home, work, "--project")
    assert directories(work)
    changed("uninstall", name, home, work, "--project")
    assert directories(work) == set()


@pytest.mark.parametrize("name", NAMES)
def test_directories_that_were_there_stay(name: str, home: Path, work: Path) -> None:
    file_of(name, home).parent.mkdir(parents=True)
    before = directories(home)
    changed("install", name, home, work)
    changed("uninstall", name, home, work)
    assert directories(home) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_with_the_users_files_stays(name: str, home: Path, work: Path) -> None:
    changed("install", name, home, work)
    file = file_of(name, home)
    mine = file.parent / "mine.txt"
    mine.write_text("mine")
    changed("uninstall", name, home, work)
    assert (file.exists(), mine.read_text()) == (False, "mine")


def test_a_link_in_the_place_of_a_directory_stays(home: Path, work: Path, tmp_path: Path) -> None:
    changed("install", "copilot", home, work)
    folder = file_of("copilot", home).parent
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    changed("uninstall", "copilot", home, work)
    assert (folder.is_symlink(), elsewhere.is_dir()) == (True, True)


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_is_in_use_once_something_is_in_it(name: str, home: Path) -> None:
    host, environ = HOSTS[name], alone.environment(home)
    where = home / ".gemini" if name == "gemini" else Path(os.path.join(home, host.folder))
    assert not is_host_present(host, environ)
    where.mkdir(parents=True)
    assert not is_host_present(host, environ)
    (where / "settings").touch()
    assert is_host_present(host, environ)


def test_an_empty_directory_is_no_unguarded_host(home: Path, work: Path) -> None:
    for folder in (".cursor", ".copilot", ".codex"):
        (home / folder).mkdir()
    (home / ".codex" / "config.toml").touch()
    checks = json.loads(alone.run("--json", home=home, cwd=work).stdout)["checks"]
    named = [check["text"] for check in checks if check["about"] == "hooks"]
    assert named == ["Codex is installed but not guarded"]
