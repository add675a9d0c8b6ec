"""Tests that damaged compiled rules fail to load, and that compiling them again repairs them."""

import os
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


def test_two_builds_of_the_same_rules_are_the_same_bytes() -> None:
    # Programs that run refuse every call once the file has another tag, and each editable install writes it again.
    program = (
        "import hashlib, marshal\n"
        "from corral.guard.rules.compiler import compile_rules\n"
        "tables = compile_rules()\n"
        "rows = tables.pop('rows')\n"
        "print(hashlib.sha256(marshal.dumps(tables, 4) + rows).hexdigest())\n"
    )
    builds = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(builds) == 1
