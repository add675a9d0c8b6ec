"""Runs the programs of docs/frameworks.md with the frameworks installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import corral

sys.path.append(str(Path(__file__).parents[1] / "support"))
import docblocks

DOCS = Path(corral.__file__).parents[2] / "docs"
BLOCKS = docblocks.blocks((DOCS / "frameworks.md").read_text())
SHOWN = [pytest.param(block.text, id=f"line {block.line}") for block in BLOCKS if block.language == "python"]


@pytest.mark.parametrize("text", SHOWN)
def test_documented_program_runs(text: str, tmp_path: Path) -> None:
    (tmp_path / "path" / "to" / "project").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("pears\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_documented_environment_class_exists() -> None:
    (block,) = [block for block in BLOCKS if block.language == "yaml"]
    module, _, name = yaml.safe_load(block.text)["environment"]["environment_class"].rpartition(".")
    assert hasattr(__import__(module, fromlist=[name]), name)
