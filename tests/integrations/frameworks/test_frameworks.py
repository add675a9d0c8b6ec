"""Tests of the modules that need an optional package, and of the parts that every framework adapter must have."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from corral.integrations.extras import install_command
from corral.integrations.frameworks._commands import open_box
from corral.model.errors import PolicyError

PROJECT = Path(__file__).parents[3]
SOURCE = PROJECT / "src" / "corral"
FOLDER = SOURCE / "integrations" / "frameworks"
ADAPTERS = sorted(FOLDER.glob("[!_]*.py"))
# A file beside the hook is imported without its package.
OWN_PACKAGES = {"corral", "tree_sitter", "tree_sitter_bash", "fast_import"}
WITHOUT = (
    "import sys; sys.modules[sys.argv[1]] = None; import importlib; importlib.import_module('corral.' + sys.argv[2])"
)


def imported(tree: ast.AST) -> list[str]:
    """Return the third-party packages that code imports at run time, at any depth."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append(str(node.module).partition(".")[0])
        for inner in ast.iter_child_nodes(node):
            visit(inner)

    visit(tree)
    return [name for name in found if name not in sys.stdlib_module_names | OWN_PACKAGES]


def extra_of(path: Path) -> str:
    """Return the extra that a module names when its package is missing, or an empty string."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "missing_extra" in text else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "missing_extra":
            return str(ast.literal_eval(node.args[0]))
    return ""


def extras(project: Path) -> dict[str, list[str]]:
    data: dict[str, list[str]] = tomllib.loads((project / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return data


# Module, package, extra.
OPTIONAL = [
    (".".join(path.relative_to(SOURCE).with_suffix("").parts), imported(ast.parse(path.read_text()))[0], extra_of(path))
    for path in sorted(SOURCE.rglob("*.py"))
    if extra_of(path)
]


def missing_parts(adapter: Path, project: Path) -> list[str]:
    """Return the parts that an adapter lacks."""
    extra = extra_of(adapter)
    rows = [line for line in (project / "docs" / "frameworks.md").read_text().splitlines() if line.startswith("|")]
    has = {
        "a call of missing_extra": bool(extra),
        "its extra in pyproject.toml": extra in extras(project),
        f"tests/frameworks/test_{adapter.stem}.py": (
            project / "tests" / "frameworks" / f"test_{adapter.stem}.py"
        ).exists(),
        "its row in docs/frameworks.md": any(f"| `{extra}` |" in row for row in rows),
    }
    return [part for part, is_there in has.items() if not is_there]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda path: path.stem)
def test_adapter_has_all_its_parts(adapter: Path) -> None:
    assert missing_parts(adapter, PROJECT) == []


def test_incomplete_adapter_is_detected(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "frameworks.md").write_text("| other | `other` | hook | none | |\n")
    (tmp_path / "pyproject.toml").write_text("[project.optional-dependencies]\nother = []\n")
    adapter = tmp_path / "pretend.py"
    adapter.write_text(
        "try:\n    import pretend\nexcept ImportError as error:\n    raise missing_extra('pretend', error)\n"
    )
    parts = ["its extra in pyproject.toml", "tests/frameworks/test_pretend.py", "its row in docs/frameworks.md"]
    assert missing_parts(adapter, tmp_path) == parts
    adapter.write_text("import pretend\n")
    assert missing_parts(adapter, tmp_path) == ["a call of missing_extra", *parts]


@pytest.mark.parametrize(("module", "package", "extra"), OPTIONAL, ids=[module for module, _, _ in OPTIONAL])
def test_module_without_its_package_names_the_extra(module: str, package: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, module], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.endswith(f" Run: {install_command(extra)}")
    assert f" {package}" in message
    assert "another version" not in message
    assert message.count("install '") == 1


def test_engine_ray_without_ray_names_the_extra(tmp_path: Path) -> None:
    without = "import sys; sys.modules['ray'] = None; from corral.apps.cli import main; sys.exit(main())"
    words = ["eval", "--fixtures", "--engine", "ray", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", without, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("corral: ")
    assert done.stderr.endswith(f" Run: {install_command('ray')}\n")


def test_every_extra_has_a_module_and_is_locked() -> None:
    declared = extras(PROJECT)
    assert set(declared) == {extra for _, _, extra in OPTIONAL} | {"ray"}
    locked = "".join((PROJECT / "requirements" / f"{name}.txt").read_text() for name in ("dev", "frameworks"))
    for requirements in declared.values():
        name = re.match(r"[a-z-]+", requirements[0])
        assert name is not None
        assert f"\n{name[0]}==" in f"\n{locked}"


def test_every_module_that_imports_a_package_names_its_extra() -> None:
    # integrations/ray.py is loaded by the engine, which names the extra. In integrations/mcp, the first module does.
    needing = {path for path in SOURCE.rglob("*.py") if imported(ast.parse(path.read_text()))}
    silent = {str(path.relative_to(SOURCE)) for path in needing if not extra_of(path)}
    assert {name for name in silent if not name.startswith("integrations/mcp/")} == {"integrations/ray.py"}


def test_importing_corral_loads_no_integration_and_no_package() -> None:
    program = "import corral, sys; [getattr(corral, name) for name in corral.__all__]; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "corral.sandbox" in loaded
    assert {name for name in loaded if name.startswith("corral.integrations")} == set()
    assert {name.partition(".")[0] for name in loaded} & {package for _, package, _ in OPTIONAL} == set()


@pytest.mark.parametrize("policy", ['profile = "strict"\n', ""])
def test_config_of_a_framework_cannot_loosen_the_profile(
    policy: str, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "corral").mkdir(parents=True)
    (tmp_path / "config" / "corral" / "policy.toml").write_text(policy)
    with open_box(project, profile="strict") as box:
        assert box.config.rules.name == "strict"
    if policy:
        with pytest.raises(PolicyError, match="cannot loosen"):
            open_box(project, profile="workspace")
    else:
        with open_box(project, profile="workspace") as box:
            assert box.config.rules.name == "workspace"
