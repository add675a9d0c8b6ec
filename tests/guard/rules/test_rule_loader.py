"""Tests that damaged compiled rules fail to load, and that compiling them again repairs them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import corral


@pytest.mark.parametrize("data", [b"", b"of another version" * 100], ids=["nothing", "another version"])
def test_damaged_rules_fail_to_load_until_compiled_again(data: bytes, tmp_path: Path) -> None:
    package = Path(corral.__file__).parent
    shutil.copytree(package, tmp_path / "corral", ignore=shutil.ignore_patterns("__pycache__"))
    compiled = tmp_path / "corral" / "guard" / "rules" / "compiled.bin"
    compiled.write_bytes(data)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from corral.guard.rules.loader import row; print(row('rm')['id'])"
    )
    read = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(read, capture_output=True, text=True, check=False)
    assert (done.stdout, str(compiled) in done.stderr) == ("", True)
    again = subprocess.run(
        [sys.executable, "-m", "corral.guard.rules.compiler"], cwd=tmp_path, capture_output=True, check=False
    )
    assert (again.returncode, again.stderr) == (0, b"")
    done = subprocess.run(read, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("rm\n", "")
