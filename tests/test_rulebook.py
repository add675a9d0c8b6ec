"""The rules as they are read: from what was compiled, or anew where that is not of this version."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import corral


@pytest.mark.parametrize("data", [b"", b"of another version" * 100], ids=["nothing", "another version"])
def test_rules_that_another_version_compiled_are_compiled_anew(data: bytes, tmp_path: Path) -> None:
    package = Path(corral.__file__).parent
    shutil.copytree(package, tmp_path / "corral", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "corral" / "rules" / "compiled.bin").write_bytes(data)
    program = "import sys; sys.path.insert(0, sys.argv[1]); from corral.rulebook import row; print(row('rm')['id'])"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("rm\n", "")
