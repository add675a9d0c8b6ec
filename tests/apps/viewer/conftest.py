"""Fixtures for the page: a browser, a user with a log, and a server."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from chromium import Browser
from observe import eventually, running

from corral import Containment, Sandbox, SandboxConfig
from corral.apps.viewer import page
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import Server, fill
from corral.apps.viewer.sources import LogSource
from corral.audit.audit_log import Log, directory
from corral.audit.query import LogFilter


@pytest.fixture(scope="module")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    profile = tmp_path_factory.mktemp("chromium")
    before, threads = running(), set(threading.enumerate())
    made = Browser(profile)
    yield made
    made.driver.quit()
    shutil.rmtree(profile, ignore_errors=True)
    # Other tests count the threads and children of this process.
    eventually(lambda: running() <= before and set(threading.enumerate()) <= threads)


@pytest.fixture
def browser(_browser: Browser) -> Iterator[Browser]:
    """A browser. Fails if the page reported an error."""
    _browser.prepare()
    _browser.log()
    yield _browser
    assert _browser.log() == []


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with an empty home."""
    return dict(os.environ) | {
        f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")
    }


@pytest.fixture
def serve(home: dict[str, str], project: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that serves and follows a source, by default the user's log."""
    stop = Event()
    made: list[tuple[Server, Thread]] = []

    def start(source: Any = None, **options: Any) -> Server:
        source = source or LogSource(directory(home), LogFilter())
        feed = Feed()
        about = page.meta(name=source.name, kind=source.kind, live=True)
        server = Server(feed, about, Reader(home, root=str(project)), **options).start()
        thread = Thread(target=fill, args=(feed, source, stop))
        thread.start()
        made.append((server, thread))
        return server

    yield start
    stop.set()
    for server, thread in made:
        server.close()
        thread.join()


@pytest.fixture
def log(home: dict[str, str], project: Path) -> Callable[..., None]:
    """Return a function that runs calls in a sandbox with the user's log."""
    (project / "notes.txt").write_text("pears\napples\n")
    (project / "src").mkdir(exist_ok=True)

    def run(*calls: str, root: Path = project) -> None:
        config = SandboxConfig(str(root), containment=Containment(backend="none"))
        with Sandbox(config, on_result=Log(config, environ=home).result) as box:
            for call in calls:
                box.run(call, shell=True)

    return run
