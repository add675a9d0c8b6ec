"""Fixtures and hooks for all tests: isolation of the test process, an empty project, and sandboxes that are closed afterwards."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import isolation
import pytest
from hypothesis import settings
from observe import DEADLINE_SECONDS, running

from corral import Profile, Sandbox, SandboxConfig
from corral.guard.rules.loader import effects, profile_named
from corral.model.call import Decision

if TYPE_CHECKING:
    from docplace import Place

pytest_plugins = ["containment_fixtures", "host_fixtures", "sampling"]

# No deadline, because a busy machine is no failure. Fixed examples, because luck must not decide: `--hypothesis-profile explore` tries new ones.
settings.register_profile("corral", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile("corral")
_HOME = pytest.StashKey[str]()
# The backend of all sandboxes that do not name one. tests/test_bubblewrap_attacks.py repeats the attacks with bubblewrap.
BACKEND = os.environ.get("CORRAL_TEST_BACKEND", "auto")
# Maps the value of a parameter to the program that such a test needs. A fresh machine lacks these, so `make test-real` runs those tests.
PACKAGED = {"bubblewrap": "bwrap", "zsh": "zsh", "fish": "fish"}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Isolate the process that runs the tests: each worker of `pytest -n`, or pytest itself."""
    # Not in pyproject.toml: the copy of the tests that runs as an ordinary user has no such file.
    config.addinivalue_line(
        "markers", "real: long, or needs system packages that a fresh machine lacks (make test-real)"
    )
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        config.stash[_HOME] = isolation.isolate(is_worker=is_worker)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the home directory of the tests."""
    if home := config.stash.get(_HOME, ""):
        isolation.remove_home(home)


def _packages(item: pytest.Item) -> list[str]:
    values = getattr(item, "callspec", None) and item.callspec.params.values()  # type: ignore[attr-defined]
    return [PACKAGED[value] for value in values or () if isinstance(value, str) and value in PACKAGED]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that need further packages."""
    if _packages(item) or "browser" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.real)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is not installed."""
    for program in _packages(item):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where no test may be skipped, as in `make test-real`."""
    report = yield
    marker = item.get_closest_marker("real")
    if marker and marker.args == ("sampled",):  # see sampling.py: it may be skipped, as in `make test`
        return report
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CORRAL_MUST_RUN") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, and nothing may be skipped here: {report.longrepr}"
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that all workers end at about the same time."""
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
    """Fail if a test leaves processes running. Many other tests count the children of this process."""
    before = running()
    yield
    until = time.monotonic() + DEADLINE_SECONDS
    while left := running() - before:
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def _full(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip unless every layer of containment works: pages and examples assume such a machine."""
    with Sandbox(SandboxConfig(str(tmp_path_factory.mktemp("probe")))) as box:
        result = box.run(["true"])
    if result.enforcement != "full":
        assert os.environ.get("CORRAL_MUST_CONTAIN") != "1", result.missing_layers
        pytest.skip(f"this machine lacks {', '.join(result.missing_layers)}")


@pytest.fixture
def place(_full: None) -> "Iterator[Place]":
    """A home with a project, as the pages describe them. Not in /tmp, which the guard treats as scratch."""
    home = Path(tempfile.mkdtemp(prefix="corral-docs-", dir="/var/tmp"))
    from docplace import Place  # its dependencies are missing in the copy that runs as an ordinary user

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
        config = SandboxConfig(**{"project_root": str(project)} | settings)
        if config.containment.backend == "auto":
            config = config.replace(containment=config.containment.replace(backend=BACKEND))
        made.append(Sandbox(config))
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
    """A function that makes sandboxes whose guard allows everything, for tests of execution rather than of decisions."""
    groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
    profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)

    def make(**settings: Any) -> Sandbox:
        return sandbox(**{"profile": profile, "denylist": (), "interpreter_block": ()} | settings)

    return make


@pytest.fixture
def open_box(open_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox over the project whose guard allows everything."""
    return open_sandbox()
