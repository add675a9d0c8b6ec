"""Tests that the import contracts of pyproject.toml hold, and that only a few modules start processes."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import corral

SOURCE = Path(corral.__file__).parent
PROJECT = SOURCE.parents[1]
# Functions of os that start a process or replace this one.
STARTERS = {
    *("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "startfile"),
    *(f"exec{suffix}" for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    *(f"spawn{suffix}" for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
}
# Forks to parse text under resource limits. The child starts no program.
FORKS = SOURCE / "integrations" / "hooks" / "parse_limit.py"
STUB = SOURCE / "broker" / "stub.py"  # it runs inside a sandbox, and packs a directory there
SPAWNERS = (
    SOURCE / "runtime" / "processes.py",
    SOURCE / "git" / "host_git.py",
    SOURCE / "broker" / "package_managers" / "host_command.py",
    SOURCE / "broker" / "programs.py",
    SOURCE / "broker" / "commands" / "box.py",
    SOURCE / "sessions" / "start_service.py",
)
MODULES = sorted(SOURCE.rglob("*.py"))


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


def starters_in(path: Path) -> set[str]:
    """Return the functions that start processes which a module names."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    used = {
        f"{node.value.id}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module in ("os", "posix")]
    used |= {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    return used & {f"{module}.{name}" for module in ("os", "posix") for name in STARTERS}


def test_only_spawn_and_containment_start_processes() -> None:
    judged = [path for path in MODULES if path not in SPAWNERS and not path.is_relative_to(SOURCE / "containment")]
    used = {path: starters_in(path) for path in judged}
    assert {path: found for path, found in used.items() if found} == {
        FORKS: {"os.fork"},
        STUB: {"posix.fork", "posix.execv"},
    }
