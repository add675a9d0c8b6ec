"""The leaves that need a package, where it is not installed: each names its extra, and nothing else loads them."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from corral.integrations.extras import install_command

PROJECT = Path(__file__).parents[3]
# The leaf, the package it needs, the extra that brings it.
LEAVES = [
    ("integrations.frameworks.inspect_ai", "inspect_ai", "inspect"),
    ("integrations.frameworks.minisweagent", "minisweagent", "minisweagent"),
    ("integrations.frameworks.pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ("integrations.frameworks.deepagents", "deepagents", "deepagents"),
    ("integrations.frameworks.langchain", "langchain", "langchain"),
    ("integrations.frameworks.openai_agents", "agents", "openai-agents"),
    ("integrations.frameworks.swerex", "swerex", "swerex"),
    ("integrations.frameworks.swerex_session", "swerex", "swerex"),
    ("integrations.frameworks.claude_sdk", "claude_agent_sdk", "claude"),
    ("integrations.telemetry.otel", "opentelemetry", "otel"),
    ("integrations.mcp.server", "mcp", "mcp"),
    ("apps.agentdemo.model", "minisweagent", "demo"),
    ("apps.agentdemo.run_agent", "minisweagent", "demo"),
]
WITHOUT = (
    "import sys; sys.modules[sys.argv[1]] = None; import importlib; importlib.import_module('corral.' + sys.argv[2])"
)


@pytest.mark.parametrize(("leaf", "package", "extra"), LEAVES, ids=[leaf for leaf, _, _ in LEAVES])
def test_a_leaf_without_its_package_names_the_extra(leaf: str, package: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, leaf], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.endswith(f"is not installed. Run: {install_command(extra)}")
    assert said.count("install '") == 1


def test_the_engine_ray_without_ray_names_the_extra(tmp_path: Path) -> None:
    without = "import sys; sys.modules['ray'] = None; from corral.apps.cli import main; sys.exit(main())"
    words = ["eval", "--fixtures", "--engine", "ray", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", without, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (125, "")
    assert (
        done.stderr
        == f"corral: the engine ray needs the Python package ray, which is not installed. Run: {install_command('ray')}\n"
    )


def test_every_extra_has_a_leaf_here_and_is_locked() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == {extra for _, _, extra in LEAVES} | {"ray"}
    locked = "".join((PROJECT / "requirements" / f"{name}.txt").read_text() for name in ("dev", "frameworks"))
    for extra in extras:
        name = re.match(r"[a-z-]+", extras[extra][0])
        assert name is not None
        assert f"\n{name[0]}==" in f"\n{locked}"


def imported(path: Path) -> set[str]:
    """Return the packages that a file imports when it runs, wherever in it."""
    found: set[str] = set()

    def look(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
        for inner in ast.iter_child_nodes(node):
            look(inner)

    look(ast.parse(path.read_text()))
    return (
        found - sys.stdlib_module_names - {"corral", "tree_sitter", "tree_sitter_bash", "fast_import"}
    )  # the last: a file beside the hook


def test_every_file_that_imports_a_package_is_a_leaf_here() -> None:
    source = PROJECT / "src" / "corral"
    leaves = {f"{leaf.replace('.', '/')}.py" for leaf, _, _ in LEAVES} | {"integrations/ray.py"}
    needing = {str(path.relative_to(source)) for path in source.rglob("*.py") if imported(path)}
    # All of it comes after __init__, which looks for the SDK.
    needing = {"integrations/mcp/server.py" if name.startswith("integrations/mcp/") else name for name in needing}
    assert needing == leaves


def test_importing_corral_and_all_its_names_loads_no_leaf_and_no_package() -> None:
    program = "import corral, sys; [getattr(corral, name) for name in corral.__all__]; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "corral.sandbox" in loaded
    assert {name for name in loaded if name.startswith("corral.integrations")} == set()
    assert {name.partition(".")[0] for name in loaded} & {package for _, package, _ in LEAVES} == set()
