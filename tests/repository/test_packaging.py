"""Builds the wheel and the sdist from a copy, and tests the installed package without the source."""

import email
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import corral
from corral.apps.cli.completion_scripts import script
from corral.apps.cli.verb import verb_names

pytestmark = pytest.mark.real

PROJECT = Path(corral.__file__).parents[2]
PACKAGE = Path(corral.__file__).parent
COMPLETIONS = runpy.run_path(str(PROJECT / "tools" / "man_pages.py"))["COMPLETIONS"]
BUILT = ("src", "tools", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": f"{cwd}-home", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0 or not check, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the sdist, built from a copy without generated files."""
    place = tmp_path_factory.mktemp("build")
    for name in BUILT:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__", "compiled.bin"))
        else:
            shutil.copy(source, place / name)
    shutil.copy(PROJECT / ".gitignore", place)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", place / "dist", cwd=place)
    return place / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin directory of a fresh environment with the wheel and the dependencies, but without the source."""
    place = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "--disable-pip-version-check"]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=place)
    (site,) = place.glob("lib/python*/site-packages")
    for dependency in ("tree_sitter", "tree_sitter_bash"):
        (site / dependency).symlink_to(Path(sysconfig.get_paths()["platlib"]) / dependency)
    return place / "bin"


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.startswith(f"corral-{corral.__version__}.")}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_wheel_contains_only_the_package_and_its_tables(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    source = {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.suffix in (".css", ".html", ".js", ".json", ".profile", ".py", ".sh", ".toml", ".typed", ".yaml")
    }
    assert contents(wheel) == source | {"corral/guard/rules/compiled.bin"}
    assert {"corral/py.typed", "corral/model/schemas/result.schema.json", "corral/guard/rules/effects.toml"} <= source


def test_core_has_two_dependencies_and_the_rest_are_extras(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"corral-{corral.__version__}.dist-info/METADATA"))
        licence = archive.read(f"corral-{corral.__version__}.dist-info/licenses/LICENSE")
    needs = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert [re.split(r"[<>=]", need)[0] for need in needs] == ["tree-sitter-bash", "tree-sitter"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert licence == (PROJECT / "LICENSE").read_bytes()
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_release_check_knows_every_extra(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"corral-{corral.__version__}.dist-info/METADATA"))
    known = runpy.run_path(str(PROJECT / "tools" / "release_check.py"))["LEAVES"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(known)


def test_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    run("tar", "xf", sdist, cwd=tmp_path)
    (unpacked,) = tmp_path.iterdir()
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        tmp_path / "again",
        unpacked,
        cwd=tmp_path,
    )
    (first,), (second,) = built.glob("*.whl"), (tmp_path / "again").glob("*.whl")
    assert digest(second) == digest(first)


def test_second_build_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    place = built.parent
    for path in place.rglob("*"):
        os.utime(path, (1, 1))
    run(
        sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", tmp_path / "again", cwd=place
    )
    first, second = ({path.name: digest(path) for path in where.iterdir()} for where in (built, tmp_path / "again"))
    assert len(first) == 2
    assert first == second


def test_wheel_installs_a_manual_page_for_each_verb(installed: Path, tmp_path: Path) -> None:
    pages = {path.name for path in (installed.parent / "share" / "man" / "man1").iterdir()}
    assert pages == {"corral.1", *(f"corral-{name}.1" for name in verb_names())}
    for page in sorted(pages):
        done = run("groff", "-man", "-Tutf8", "-ww", installed.parent / "share/man/man1" / page, cwd=tmp_path)
        shown = " ".join(re.sub(".\x08", "", done.stdout).split())
        assert done.stderr == "", page
        assert f"{page.removesuffix('.1')} - " in shown
        assert "EXIT STATUS" in shown


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_wheel_installs_the_completions(installed: Path, shell: str) -> None:
    text = (installed.parent / "share" / COMPLETIONS[shell]).read_text(encoding="utf-8")
    assert text == script(shell)


def test_installed_package_is_not_the_source(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "python", "-c", "import corral; print(corral.__file__)", cwd=tmp_path)
    assert Path(done.stdout.strip()).is_relative_to(installed.parent)


def test_installed_program_prints_its_version(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "corral", "--version", cwd=tmp_path).stdout == f"corral {corral.__version__}\n"


@pytest.mark.parametrize(
    ("call", "status"),
    [(["--", "ls"], 0), (["--", "rm", "x"], 126), (["--shell", "ls | wc -l"], 0), (["--shell", "ls; rm x"], 126)],
    ids=["an allowed call", "a denied call", "an allowed shell string", "a denied shell string"],
)
def test_installed_program_checks_a_command(installed: Path, call: list[str], status: int, tmp_path: Path) -> None:
    done = run(installed / "corral", "check", "--profile", "strict", *call, cwd=tmp_path, check=False)
    assert done.returncode == status, done.stderr


def test_installed_program_runs_a_command(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "corral", "run", "--profile", "strict", "--", "echo", "hello", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("hello\n", "")


def test_installed_rules_were_compiled_by_the_build(installed: Path, tmp_path: Path) -> None:
    code = "import sys, corral.guard.rules.loader; print('corral.guard.rules.compiler' in sys.modules)"
    assert run(installed / "python", "-c", code, cwd=tmp_path).stdout == "False\n"
