"""The documented imports `corral.policy.load` and `corral.audit.Log` are lazy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import corral.audit
import corral.policy
from corral.audit.audit_log import Log
from corral.policy.loader import load


def test_documented_names_are_exported() -> None:
    assert (corral.policy.load, corral.audit.Log) == (load, Log)
    with pytest.raises(AttributeError):
        _ = corral.policy.nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = corral.audit.nothing  # type: ignore[attr-defined]


def test_importing_the_packages_loads_no_module() -> None:
    code = "import sys, corral.audit, corral.policy; print(sorted(n for n in sys.modules if n.startswith('corral.')))"
    source = str(Path(corral.policy.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['corral.audit', 'corral.policy']"
