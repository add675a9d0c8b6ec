"""Runs LangChain's conformance tests against the deepagents backend, and tests its refusals."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from corral.integrations.frameworks.deepagents import CorralSandbox

# These fail for every subclass of BaseSandbox in deepagents 0.7.32: glob returns absolute paths and no directories, write overwrites.
OUTDATED = (
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_directories",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
)


class TestConformance(SandboxIntegrationTests):
    @pytest.fixture(autouse=True)
    def _outdated(self, request: pytest.FixtureRequest) -> None:
        if request.node.originalname in OUTDATED:
            request.applymarker(pytest.mark.xfail(reason="deepagents has changed since this test was written"))

    @pytest.fixture(scope="class")
    def sandbox(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CorralSandbox]:
        made = CorralSandbox(tmp_path_factory.mktemp("project"))
        yield made
        made.close()


@pytest.fixture
def backend(project: Path) -> Iterator[CorralSandbox]:
    made = CorralSandbox(project)
    yield made
    made.close()


def test_refusal_is_126_with_the_reason(backend: CorralSandbox) -> None:
    response = backend.execute("sudo true")
    assert response.exit_code == 126
    assert "`sudo`" in response.output


def test_timeout_keeps_the_output(backend: CorralSandbox) -> None:
    response = backend.execute("echo before; sleep 60", timeout=1)
    assert (response.exit_code, response.output.splitlines()[0]) == (124, "before")


def test_unreadable_file_is_not_downloaded(backend: CorralSandbox) -> None:
    (response,) = backend.download_files(["/etc/shadow"])
    assert (response.content, response.error in ("permission_denied", "file_not_found")) == (None, True)
