"""The leaves for agent frameworks, where no framework is installed: each names its extra, and nothing else loads them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
# The leaf, the package it needs, the extra that brings it.
LEAVES = [
    ("inspect_ai", "inspect_ai", "inspect"),
    ("minisweagent", "minisweagent", "minisweagent"),
    ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ("deepagents", "deepagents", "deepagents"),
    ("langchain", "langchain", "langchain"),
    ("openai_agents", "agents", "openai-agents"),
    ("swerex", "swerex", "swerex"),
    ("claude_sdk", "claude_agent_sdk", "claude"),
]
WITHOUT = "import sys; sys.modules[sys.argv[1]] = None; import importlib; importlib.import_module('corral.integrations.' + sys.argv[2])"


@pytest.mark.parametrize(("leaf", "package", "extra"), LEAVES, ids=[leaf for leaf, _, _ in LEAVES])
def test_a_leaf_without_its_package_names_the_extra(leaf: str, package: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, leaf], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert f"pip install 'corral[{extra}]'" in done.stderr.splitlines()[-1]


def test_the_engine_ray_without_ray_names_the_extra(tmp_path: Path) -> None:
    without = "import sys; sys.modules['ray'] = None; from corral.cli import main; sys.exit(main())"
    words = ["eval", "--fixtures", "--engine", "ray", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", without, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "corral: the engine ray needs Ray: pip install 'corral[ray]'\n"


def test_every_extra_of_a_leaf_exists_and_is_locked() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    locked = (PROJECT / "requirements" / "frameworks.txt").read_text()
    for extra in (*(extra for _, _, extra in LEAVES), "ray"):
        name = re.match(r"[a-z-]+", extras[extra][0])
        assert name is not None
        assert f"\n{name[0]}==" in f"\n{locked}"
