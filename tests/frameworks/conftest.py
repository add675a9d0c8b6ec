"""Tests against the frameworks themselves: run by `make test-frameworks`, in an environment of their own."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# mini-swe-agent greets, and makes a directory in the user's own config, when it is imported.
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", tempfile.mkdtemp())


@pytest.fixture(scope="session", autouse=True)
def _owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Policy, log and scratch lie in places of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CACHE", "CONFIG", "STATE"):
            patch.setenv(f"XDG_{kind}_HOME", str(tmp_path_factory.mktemp(kind.lower())))
        yield


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project."""
    root = tmp_path / "project"
    root.mkdir()
    return root


# The frameworks' own tests, by the module or class that they come from.
SUITES = {
    "inspect_ai.util._sandbox.self_check": "inspect_ai self_check",
    "pydantic_ai.workspaces.conformance": "pydantic-ai WorkspaceBackendSuite",
    "langchain_tests.integration_tests.sandboxes": "langchain-tests SandboxIntegrationTests",
    "langchain_tests.base": "langchain-tests SandboxIntegrationTests",
    "swerex_suite.test_execution": "SWE-ReX test_execution and test_runtime",
    "swerex_suite.test_runtime": "SWE-ReX test_execution and test_runtime",
}

# How many tests each has; a suite that is not collected would pass without a word.
SIZES = {
    "inspect_ai self_check": 44,
    "pydantic-ai WorkspaceBackendSuite": 38,
    "langchain-tests SandboxIntegrationTests": 86,
    "SWE-ReX test_execution and test_runtime": 62,
}
SKIPPED = "root bypasses filesystem permissions"  # by pydantic-ai's own suite


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = SUITES.get(getattr(getattr(item, "function", None), "__module__", ""))
        if suite is not None:
            item.user_properties.append(("suite", suite))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for suite, of_suite in counts_of(terminalreporter).items():
        said = ", ".join(f"{number} {outcome}" for outcome, number in of_suite.items())
        terminalreporter.write_line(f"{suite}: {said}, of {sum(of_suite.values())}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI, what was skipped or not even collected is a failure, and what does not pass is named in the documents."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("CORRAL_MUST_CONTAIN") or hasattr(session.config, "workerinput"):
        return
    stats = reporter.stats
    skipped = [report.nodeid for report in stats.get("skipped", []) if SKIPPED not in str(report.longrepr)]
    sizes = {suite: sum(of_suite.values()) for suite, of_suite in counts_of(reporter).items()}
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    missed = [report for outcome in ("xfailed", "xpassed", "skipped") for report in stats.get(outcome, [])]
    unnamed = [report.nodeid for report in missed if f"`{report.nodeid.rpartition('::')[2]}`" not in page]
    if skipped or unnamed or sizes != SIZES:
        said = f"skipped: {skipped}; not passed, and not on the page of frameworks: {unnamed}; sizes of suites: {sizes}"
        reporter.write_line(f"\n{said}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def counts_of(terminalreporter: pytest.TerminalReporter) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(outcome, []):
            # A file that cannot be imported has none.
            suite = dict(getattr(report, "user_properties", ())).get("suite")
            if suite is not None:
                of_suite = counts.setdefault(suite, {})
                of_suite[outcome] = of_suite.get(outcome, 0) + 1
    return counts
