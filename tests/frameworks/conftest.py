"""Set-up of the tests with the frameworks installed. `make test-frameworks` runs them in their own environment."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# On import, mini-swe-agent prints a greeting and creates a directory in the user's configuration.
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", tempfile.mkdtemp())


@pytest.fixture(scope="session", autouse=True)
def _user_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep policy, log and scratch of the tests in temporary directories."""
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


# The conformance suites of the frameworks, by module.
SUITES = {
    "inspect_ai.util._sandbox.self_check": "inspect_ai self_check",
    "pydantic_ai.workspaces.conformance": "pydantic-ai WorkspaceBackendSuite",
    "langchain_tests.integration_tests.sandboxes": "langchain-tests SandboxIntegrationTests",
    "langchain_tests.base": "langchain-tests SandboxIntegrationTests",
    "swerex_suite.test_execution": "SWE-ReX test_execution and test_runtime",
    "swerex_suite.test_runtime": "SWE-ReX test_execution and test_runtime",
}

# The number of tests in each suite: a suite that is not collected would pass unnoticed.
SIZES = {
    "inspect_ai self_check": 44,
    "pydantic-ai WorkspaceBackendSuite": 38,
    "langchain-tests SandboxIntegrationTests": 86,
    "SWE-ReX test_execution and test_runtime": 62,
}
SKIPPED = "root bypasses filesystem permissions"  # the reason in pydantic-ai's suite


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = SUITES.get(getattr(getattr(item, "function", None), "__module__", ""))
        if suite is not None:
            item.user_properties.append(("suite", suite))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for suite, suite_counts in count_outcomes(terminalreporter).items():
        said = ", ".join(f"{number} {outcome}" for outcome, number in suite_counts.items())
        terminalreporter.write_line(f"{suite}: {said}, of {sum(suite_counts.values())}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI, fail on a skipped or missing test, and on a test that does not pass and is not in docs/frameworks.md."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("CORRAL_MUST_CONTAIN") or hasattr(session.config, "workerinput"):
        return
    stats = reporter.stats
    skipped = [report.nodeid for report in stats.get("skipped", []) if SKIPPED not in str(report.longrepr)]
    sizes = {suite: sum(suite_counts.values()) for suite, suite_counts in count_outcomes(reporter).items()}
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    missed = [report for outcome in ("xfailed", "xpassed", "skipped") for report in stats.get(outcome, [])]
    unnamed = [report.nodeid for report in missed if f"`{report.nodeid.rpartition('::')[2]}`" not in page]
    if skipped or unnamed or sizes != SIZES:
        message = f"skipped: {skipped}; not passed and not in docs/frameworks.md: {unnamed}; sizes of suites: {sizes}"
        reporter.write_line(f"\n{message}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def count_outcomes(terminalreporter: pytest.TerminalReporter) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(outcome, []):
            # The report of a file that cannot be imported has no properties.
            suite = dict(getattr(report, "user_properties", ())).get("suite")
            if suite is not None:
                suite_counts = counts.setdefault(suite, {})
                suite_counts[outcome] = suite_counts.get(outcome, 0) + 1
    return counts
