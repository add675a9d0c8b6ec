"""Runs pydantic-ai's conformance tests against the backend, and tests its refusals."""

import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from pydantic_ai.workspaces import Workspace, WorkspaceBackend, WorkspaceOutputLimitError, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from corral.integrations.frameworks.pydantic_ai import CorralWorkspaceBackend


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def backend(project: Path) -> Iterator[CorralWorkspaceBackend]:
    made = CorralWorkspaceBackend(project)
    yield made
    made.close()


class TestConformance(WorkspaceBackendSuite):
    @pytest.fixture
    def backend(self, project: Path) -> Iterator[CorralWorkspaceBackend]:
        made = CorralWorkspaceBackend(project)
        yield made
        made.close()

    @pytest.fixture
    def fresh_backend(self) -> Iterator[Callable[[], WorkspaceBackend]]:
        made: list[CorralWorkspaceBackend] = []

        def make() -> WorkspaceBackend:
            made.append(CorralWorkspaceBackend())
            return made[-1]

        yield make
        for backend in made:
            backend.close()
            if backend.ref is not None:
                shutil.rmtree(backend.ref.id, ignore_errors=True)

    @pytest.fixture
    def attach_backend(self) -> Iterator[Callable[[WorkspaceRef], WorkspaceBackend]]:
        made: list[CorralWorkspaceBackend] = []

        def attach(ref: WorkspaceRef) -> WorkspaceBackend:
            made.append(CorralWorkspaceBackend(ref=ref))
            return made[-1]

        yield attach
        for backend in made:
            backend.close()

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            shutil.rmtree(backend.ref.id)

        return destroy


async def test_refusal_is_126_with_the_reason(backend: CorralWorkspaceBackend) -> None:
    result = await backend.run(["sudo", "true"])
    assert (result.exit_code, result.stdout) == (126, "")
    assert "`sudo`" in result.stderr


async def test_output_above_the_limit_raises_with_its_beginning(backend: CorralWorkspaceBackend) -> None:
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        await backend.run("yes | head -c 20000000", shell=True)
    assert caught.value.stdout.startswith("y\ny\n")


async def test_files_have_the_permissions_of_commands(backend: CorralWorkspaceBackend, project: Path) -> None:
    workspace = Workspace(backend)
    await workspace.write_text("notes.txt", "hello")
    assert (project / "notes.txt").read_text() == "hello"
    with pytest.raises(OSError):  # noqa: PT011  absent or refused, never its content
        await workspace.read_bytes("/root/.ssh/id_rsa")


async def test_ref_of_another_provider_is_refused() -> None:
    with pytest.raises(ValueError, match="'local'"):
        CorralWorkspaceBackend(ref=WorkspaceRef(provider="local", id="/tmp"))
