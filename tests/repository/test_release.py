"""Tests of the steps of a release: the changelog, the version, and signatures by a key made for the test."""

import subprocess
import sys
from pathlib import Path

import pytest

import corral

ROOT = Path(corral.__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
import release  # noqa: E402  a tool, not a package

CHANGELOG = """\
# Changelog

## [Unreleased]

### Added

- A thing.

## [0.1.0] - 2026-01-01

- The first.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src" / "corral").mkdir(parents=True)
    (tmp_path / "src" / "corral" / "__init__.py").write_text('"""Corral."""\n\n__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_prepare_dates_the_changelog_and_sets_the_version(project: Path) -> None:
    release.prepare(project, "0.2.0", "2026-02-03")
    assert (project / "src" / "corral" / "__init__.py").read_text().endswith('__version__ = "0.2.0"\n')
    assert release.notes(project, "0.2.0") == "### Added\n\n- A thing."
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-02-03\n\n### Added" in (project / "CHANGELOG.md").read_text()
    assert release.notes(project, "Unreleased") == ""
    assert release.notes(project, "0.1.0") == "- The first."


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0.1.0", "has a part for 0.1.0 already"),
        ("0.0.9", "older than the current version, 0.1.0"),
        ("1.2", "'1.2' is no version"),
        ("1.2.0rc1", "is no version"),
    ],
)
def test_prepare_refuses_a_wrong_version_and_changes_nothing(project: Path, version: str, why: str) -> None:
    with pytest.raises(release.ReleaseError, match=why):
        release.prepare(project, version, "2026-02-03")
    assert (project / "CHANGELOG.md").read_text() == CHANGELOG


def test_a_release_without_changes_is_refused(project: Path) -> None:
    release.prepare(project, "0.2.0", "2026-02-03")
    with pytest.raises(release.ReleaseError, match="nothing under"):
        release.prepare(project, "0.3.0", "2026-02-04")


def test_notes_of_an_unknown_version_name_the_known_ones(project: Path) -> None:
    with pytest.raises(release.ReleaseError, match=r"only for: Unreleased, 0\.1\.0"):
        release.notes(project, "9.9.9")


def test_the_changelog_of_corral_has_notes() -> None:
    assert "### Security" in release.notes(ROOT, "Unreleased") or release.notes(ROOT, corral.__version__)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, Path]:
    """Return the text of a private key, and the file of allowed signers that names it."""
    private = tmp_path / "throwaway"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "throwaway", "-f", str(private)]
    subprocess.run(make, check=True, capture_output=True)
    signers = tmp_path / "signers"
    signers.write_text(f'release@corral.example namespaces="corral-release" {Path(f"{private}.pub").read_text()}')
    return private.read_text(), signers


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "corral.whl").write_bytes(b"wheel")
    (tmp_path / "dist" / "corral.tar.gz").write_bytes(b"source")
    return tmp_path / "dist"


@pytest.mark.real
def test_signed_files_verify(dist: Path, keys: tuple[str, Path]) -> None:
    release.sign(dist, keys[0])
    assert release.verify(dist, keys[1]) == ["corral.tar.gz", "corral.whl"]
    release.sign(dist, keys[0])  # a second signature replaces the first
    assert release.verify(dist, keys[1]) == ["corral.tar.gz", "corral.whl"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("corral.whl", b"other", "changed since they were signed: corral.whl"),
        ("more.whl", b"more", "not the files that were signed: more.whl"),
        ("SHA256SUMS", b"0" * 64 + b"  corral.whl\n", "incorrect signature|verification failed"),
    ],
)
def test_changed_files_do_not_verify(dist: Path, keys: tuple[str, Path], name: str, content: bytes, why: str) -> None:
    release.sign(dist, keys[0])
    (dist / name).write_bytes(content)
    with pytest.raises(release.ReleaseError, match=why):
        release.verify(dist, keys[1])


@pytest.mark.real
def test_another_key_does_not_verify(dist: Path, keys: tuple[str, Path], tmp_path: Path) -> None:
    release.sign(dist, keys[0])
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True, capture_output=True)
    keys[1].write_text(f"release@corral.example {Path(f'{other}.pub').read_text()}")
    with pytest.raises(release.ReleaseError):
        release.verify(dist, keys[1])


@pytest.mark.real
def test_signature_for_another_purpose_does_not_verify(dist: Path, keys: tuple[str, Path], tmp_path: Path) -> None:
    release.sign(dist, keys[0])
    (dist / "SHA256SUMS.sig").unlink()
    make = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(tmp_path / "throwaway"), "-n", "file", str(dist / "SHA256SUMS")]
    subprocess.run(make, check=True, capture_output=True)
    with pytest.raises(release.ReleaseError):
        release.verify(dist, keys[1])


@pytest.mark.real
def test_text_that_is_no_key_is_refused(dist: Path) -> None:
    with pytest.raises(release.ReleaseError, match="CORRAL_RELEASE_KEY holds no private SSH key"):
        release.sign(dist, "no key")
    assert sorted(path.name for path in dist.iterdir()) == ["corral.tar.gz", "corral.whl"]


def test_nothing_to_sign_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match="make dist first"):
        release.sign(tmp_path, "a key")


def test_missing_key_says_what_the_variable_holds() -> None:
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "release.py", "sign"], check=False, capture_output=True, text=True, env=env
    )
    assert done.returncode == 1
    assert "CORRAL_RELEASE_KEY is not set" in done.stderr
