"""Runs the tests of SWE-ReX's source distribution with corral's runtime instead of its server."""

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest

from corral.integrations.frameworks.swerex import CorralRuntime

# `make test-frameworks` downloads it: the wheel has no tests.
SUITE = Path(sys.prefix) / "swe-rex" / "tests"
NOT_OURS = {"test_server_dead": "it resolves a host that does not exist; it does not use corral"}
UNSURE = {"test_interrupt_pager": "it passes only when bash reports the killed job one command later"}


class _Action(BashAction):
    timeout: float | None = 10


class _Command(Command):
    timeout: float | None = 10


def suite() -> dict[str, Any]:
    """Return the tests by name. Their conftest is not in the distribution, so this module replaces it."""
    package, shared = ModuleType("swerex_suite"), ModuleType("swerex_suite.conftest")
    package.__path__ = [str(SUITE)]
    shared.__dict__.update({"_Action": _Action, "_Command": _Command})
    sys.modules |= {package.__name__: package, shared.__name__: shared}
    found: dict[str, Any] = {}
    for name in ("test_execution", "test_runtime"):
        spec = importlib.util.spec_from_file_location(f"swerex_suite.{name}", SUITE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        # Both files have a test of the same name.
        found |= {
            f"{test}_of_runtime" if test in found else test: function
            for test, function in vars(module).items()
            if test.startswith("test_")
        }
    for name, reason in NOT_OURS.items():
        found[name] = pytest.mark.xfail(reason=reason, run=False)(found[name])
    for name, reason in UNSURE.items():
        found[name] = pytest.mark.xfail(reason=reason, strict=False)(found[name])
    return found


globals().update(suite())


@pytest.fixture
async def remote_runtime(tmp_path: Path) -> AsyncIterator[CorralRuntime]:
    made = CorralRuntime(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime: CorralRuntime) -> CorralRuntime:
    await remote_runtime.create_session(CreateBashSessionRequest())
    return remote_runtime
