"""Tests that the bill of materials lists what users install, with versions and hashes, and no development packages."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import corral

ROOT = Path(corral.__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
import sbom  # noqa: E402  a tool, not a package

LOCK = """\
left==1.0 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
    # via corral (pyproject.toml)
right[extra]==2.0 ; sys_platform == 'linux' \\
    --hash=sha256:{a}
    # via
    #   left
    #   tester
tester==3.0 \\
    --hash=sha256:{b}
    # via corral (pyproject.toml:dev)
""".format(a="a" * 64, b="b" * 64)


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return sbom.bill()


def test_lock_file_is_parsed() -> None:
    assert sbom.pins(LOCK) == {
        "left": sbom.Pin("left", "1.0", ("a" * 64, "b" * 64), ("corral (pyproject.toml)",)),
        "right": sbom.Pin("right", "2.0", ("a" * 64,), ("left", "tester")),
        "tester": sbom.Pin("tester", "3.0", ("b" * 64,), ("corral (pyproject.toml:dev)",)),
    }


def test_development_packages_are_left_out() -> None:
    assert list(sbom.needed(sbom.pins(LOCK))) == ["left", "right"]


def test_core_has_two_dependencies(bill: dict[str, Any]) -> None:
    required = {part["name"] for part in bill["components"] if part["scope"] == "required"}
    assert required == {"tree-sitter", "tree-sitter-bash"}


def test_every_extra_and_dependency_is_listed(bill: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = {entry["value"] for part in bill["components"] for entry in part.get("properties", ())}
    assert told == set(project["optional-dependencies"])
    known = {part["bom-ref"] for part in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {edge["ref"] for edge in bill["dependencies"]} == known
    assert {ref for edge in bill["dependencies"] for ref in edge["dependsOn"]} <= known


def test_components_have_versions_and_hashes(bill: dict[str, Any]) -> None:
    assert all(part["version"] and part["hashes"] for part in bill["components"])
    assert not {"pytest", "mypy", "ruff", "mkdocs"} & {part["name"] for part in bill["components"]}


def test_same_locks_give_the_same_document(bill: dict[str, Any]) -> None:
    assert sbom.bill() == bill
