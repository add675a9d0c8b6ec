"""What several test files share: an empty project, and sandboxes over it that are closed afterwards."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from corral import Profile, Sandbox, SandboxConfig
from corral.model import Decision
from corral.rulebook import effects, profile_named
from observe import DEADLINE_SECONDS, running

if TYPE_CHECKING:
    from docplace import Place

# A loaded machine is no failure, and luck is none: `--hypothesis-profile explore` looks for examples that were never tried.
settings.register_profile("corral", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile("corral")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest tests where each worker begins: what is left at the end is short, and can be shared."""
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    long = [item for item in items if item.path.name == "test_ordinary_user.py"]
    rest = [item for item in items if item.path.name != "test_ordinary_user.py"]
    ordered: list[pytest.Item] = []
    for number in range(workers):
        share = (len(items) - len(ordered)) // (workers - number)
        own = long[number::workers]
        ordered += own + rest[: share - len(own)]
        del rest[: share - len(own)]
    items[:] = ordered


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """What a test leaves running would fail others, of which many count the children of this process."""
    before = running()
    yield
    until = time.monotonic() + DEADLINE_SECONDS
    while left := running() - before:
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.005)


@pytest.fixture(scope="session", autouse=True)
def _owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The command line keeps scratch, policy and log in places of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CACHE", "CONFIG", "STATE"):
            patch.setenv(f"XDG_{kind}_HOME", str(tmp_path_factory.mktemp(kind.lower())))
        yield


@pytest.fixture(scope="session")
def _full(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Pages and examples are for machines where every layer holds."""
    with Sandbox(SandboxConfig(str(tmp_path_factory.mktemp("probe")))) as box:
        result = box.run(["true"])
    if result.enforcement != "full":
        assert os.environ.get("CORRAL_MUST_CONTAIN") != "1", result.missing_layers
        pytest.skip(f"this machine does not give {', '.join(result.missing_layers)}")


@pytest.fixture
def place(_full: None) -> "Iterator[Place]":
    """A home with a project, as the pages describe them. Not in /tmp, which is scratch for the guard."""
    home = Path(tempfile.mkdtemp(prefix="corral-docs-", dir="/var/tmp"))
    from docplace import Place  # what it needs is not there where tests are repeated as an ordinary user

    yield Place(home)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project."""
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture
def sandbox(project: Path) -> Iterator[Callable[..., Sandbox]]:
    """A function that makes sandboxes over the project."""
    made: list[Sandbox] = []

    def make(**settings: Any) -> Sandbox:
        made.append(Sandbox(SandboxConfig(**{"project_root": str(project)} | settings)))
        return made[-1]

    yield make
    for box in made:
        box.close()


@pytest.fixture
def box(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox over the project, with the defaults."""
    return sandbox()


@pytest.fixture
def open_sandbox(sandbox: Callable[..., Sandbox]) -> Callable[..., Sandbox]:
    """A function that makes sandboxes whose guard allows everything, for tests of what runs and not of what may."""
    groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
    profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)

    def make(**settings: Any) -> Sandbox:
        return sandbox(**{"profile": profile, "denylist": (), "interpreter_block": ()} | settings)

    return make


@pytest.fixture
def open_box(open_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox over the project whose guard allows everything."""
    return open_sandbox()
