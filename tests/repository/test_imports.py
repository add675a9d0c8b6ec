"""Tests that the import contracts of pyproject.toml hold, and that only a few modules start processes."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import corral

SOURCE = Path(corral.__file__).parent
PROJECT = SOURCE.parents[1]
MAX_LINES = 500
# Functions of os that start a process or replace this one.
STARTERS = {
    *("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "startfile"),
    *(f"exec{suffix}" for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    *(f"spawn{suffix}" for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
}
# Forks to parse text under resource limits. The child starts no program.
FORKS = SOURCE / "integrations" / "hooks" / "parse_limit.py"
MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_import_contracts_hold() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_a_layer() -> None:
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c for c in contracts if c["type"] == "layers")
    assert (layers["exhaustive"], layers["containers"]) == (True, ["corral"])
    placed = {word.strip("() ") for layer in layers["layers"] for word in layer.replace("|", ":").split(":")}
    present = {p.stem for p in SOURCE.glob("*.py")} | {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    assert present - {"__init__"} == placed & present
    assert present - {"__init__"} - placed == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_spawn_and_containment_start_processes(path: Path) -> None:
    if path == SOURCE / "runtime" / "processes.py" or path.is_relative_to(SOURCE / "containment"):
        return
    tree = ast.parse(path.read_text())
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in ("os", "posix")]
    used |= {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    allowed = {"os.fork"} if path == FORKS else set()
    assert used & {f"{module}.{name}" for module in ("os", "posix") for name in STARTERS} == allowed


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_have_docstrings_and_are_short(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= MAX_LINES
