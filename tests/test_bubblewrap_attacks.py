"""Repeats the attacks with bubblewrap, the second backend."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from attempt import has_bubblewrap

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
ATTACKS = [
    "containment/filesystem/test_quarantine.py",
    "containment/filesystem/test_races.py",
    "containment/network/test_reach.py",
    "containment/test_attacks.py",
    "containment/test_escape_classes.py",
    "containment/test_walls.py",
]


@pytest.mark.skipif(not has_bubblewrap(), reason="bubblewrap is not installed")
@pytest.mark.parametrize("name", ATTACKS)
def test_bubblewrap_contains_every_attack(name: str) -> None:
    # Not below the directory of this test: the address of a socket has room for 108 bytes.
    with tempfile.TemporaryDirectory(prefix="attacked-", ignore_cleanup_errors=True) as place:
        fixed = ["-q", "-x", "-p", "no:cacheprovider", "-W", "error", "--basetemp", f"{place}/t"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *fixed, str(HERE / name)],
            env=os.environ | {"CORRAL_TEST_BACKEND": "bubblewrap"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
