"""Directories are opened, made and changed without following symbolic links."""

import os
import stat
from pathlib import Path

import pytest

from corral._lib.nofollow import chmod_directory, file_identity, make_directory, open_directory


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A link to a directory that has a directory `inner`."""
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    return tmp_path / "link"


def test_open_directory_returns_the_directory(tmp_path: Path) -> None:
    descriptor = open_directory(str(tmp_path))
    assert os.path.samestat(os.fstat(descriptor), tmp_path.stat())
    os.close(descriptor)


@pytest.mark.parametrize("below", ["", "inner"], ids=["last component", "component on the way"])
def test_open_directory_refuses_links(link: Path, below: str) -> None:
    assert (link / below).is_dir()
    with pytest.raises(OSError):  # noqa: PT011  ELOOP or ENOTDIR, which depends on the flags
        open_directory(str(link / below))


def test_chmod_directory_refuses_links(link: Path) -> None:
    above = os.open(link.parent, os.O_RDONLY)
    before = link.stat().st_mode
    with pytest.raises(OSError):  # noqa: PT011  as above
        chmod_directory("link", above, 0o000)
    assert link.stat().st_mode == before
    os.close(chmod_directory("real", above, 0o710))
    assert stat.S_IMODE(link.stat().st_mode) == 0o710
    os.close(above)


def test_make_directory_keeps_an_existing_name(link: Path) -> None:
    make_directory(str(link))
    assert link.is_symlink()
    make_directory(str(link.parent / "new"))
    assert stat.S_IMODE((link.parent / "new").stat().st_mode) == 0o700


def test_identity_of_a_link_is_not_its_targets(link: Path) -> None:
    assert file_identity(str(link)) != file_identity(os.path.realpath(link))
