"""Builds the Debian package, lets dpkg install it into an empty root, and runs it from an overlay of /usr."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import corral

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts over /usr")]

PROJECT = Path(corral.__file__).parents[2]
TOOL = PROJECT / "tools" / "debian_package.py"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package, built from the wheel of a copy of the source."""
    place = tmp_path_factory.mktemp("source")
    for name in ("src", "tools"):
        shutil.copytree(PROJECT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "compiled.bin"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(PROJECT / name, place)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", place / "dist", cwd=place)
    return Path(run(sys.executable, TOOL, place / "dist").strip())


@pytest.fixture(scope="module")
def root(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root directory into which dpkg has installed the package, and nothing else."""
    root = tmp_path_factory.mktemp("installed") / "root"
    (root / "var/lib/dpkg/updates").mkdir(parents=True)
    (root / "var/lib/dpkg/info").mkdir()
    for name in ("status", "available"):
        (root / "var/lib/dpkg" / name).touch()
    # The empty root has no python3; the machine's own is used below.
    run("dpkg", f"--root={root}", "--force-depends", "--install", package)
    return root


def installed(root: Path, script: str) -> str:
    """Run a shell script where the files of the package are in the machine's own /usr."""
    mount = f"mount -t overlay overlay -o lowerdir={root}/usr:/usr /usr"
    for name in ("home", "work"):
        (root.parent / name).mkdir(exist_ok=True)
    set_up = f"{mount}\nexport HOME={root.parent}/home\ncd {root.parent}/work"
    return run("unshare", "--mount", "sh", "-ec", f"{set_up}\n{script}")


def test_package_says_what_it_needs(package: Path) -> None:
    fields = run("dpkg-deb", "--field", package)
    assert f"Version: {corral.__version__}\n" in fields
    minor = int(run("/usr/bin/python3", "-c", "import sys; print(sys.version_info.minor)"))
    assert f"python3 (>= 3.{minor}), python3 (<< 3.{minor + 1}~)" in fields


def test_same_wheel_gives_the_same_package(package: Path, tmp_path: Path) -> None:
    shutil.copy(next(package.parent.glob("*.whl")), tmp_path)
    again = Path(run(sys.executable, TOOL, tmp_path).strip())
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(package.read_bytes()).digest()


def test_all_files_belong_to_root_and_nobody_else_may_write_them(package: Path) -> None:
    lines = run("dpkg-deb", "--contents", package).splitlines()
    assert lines
    assert [line for line in lines if not re.match(r"(d|-)rw[x-]r-[x-]r-[x-] root/root ", line)] == []


def test_installed_program_checks_and_runs(root: Path) -> None:
    assert installed(root, "/usr/bin/corral --version") == f"corral {corral.__version__}\n"
    assert installed(root, "/usr/bin/corral run --profile strict -- echo hello") == "hello\n"
    said = installed(root, "status=0; /usr/bin/corral check --profile strict -- rm x || status=$?; echo $status")
    assert said.endswith("126\n")


def test_installed_package_uses_its_own_parser_and_compiled_files(root: Path) -> None:
    code = (
        "import sys; sys.path.append('/usr/lib/corral'); import corral, tree_sitter, tree_sitter_bash;"
        "from corral._lib import fast_import; print(corral.__file__, tree_sitter.__file__, tree_sitter_bash.__file__)"
    )
    assert installed(root, f'/usr/bin/python3 -I -S -c "{code}"').split() == [
        f"/usr/lib/corral/{name}/__init__.py" for name in ("corral", "tree_sitter", "tree_sitter_bash")
    ]
    # /usr is read-only here, so a compiled file that did not match its source would be noticed.
    verbose = "/usr/bin/python3 -I -v -c 'import sys; sys.path.append(\"/usr/lib/corral\"); import corral.sandbox' 2>&1"
    said = installed(root, verbose)
    assert "matches /usr/lib/corral/corral/sandbox.py" in said
    assert "could not create" not in said


def test_hook_of_the_package_answers(root: Path) -> None:
    call = {
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "sudo reboot"},
        "cwd": f"{root.parent}/work",
    }
    program = "/usr/lib/corral/corral/integrations/hooks/program.py"
    script = f"printf '%s' '{json.dumps(call)}' | /usr/bin/python3 -I -S {program} claude --HOME=$HOME || test $? = 2"
    said = installed(root, script)
    assert '"permissionDecision":"deny"' in said.replace(" ", "")


def test_shells_and_man_find_the_files_of_the_package(root: Path) -> None:
    for path in (
        "man/man1/corral-run.1.gz",
        "bash-completion/completions/corral",
        "zsh/vendor-completions/_corral",
        "fish/vendor_completions.d/corral.fish",
        "doc/corral/copyright",
    ):
        assert (root / "usr/share" / path).is_file(), path


def test_removal_leaves_nothing(root: Path) -> None:
    run("dpkg", f"--root={root}", "--purge", "corral")
    assert not (root / "usr").exists()
