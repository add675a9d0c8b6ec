"""Shows the calls of agents as a web page, served on loopback while they work or written as one file. Read-only."""

from __future__ import annotations

import os

from corral.apps.output_files import OutputDirectory
from corral.apps.viewer import call_list, page
from corral.apps.viewer.explain import Reader, details_of_all
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import Server
from corral.apps.viewer.spans import Spans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from corral.apps.viewer.explain import Told
    from corral.integrations.gates import Ruling
    from corral.model.result import SandboxResult

__all__ = ["LiveView", "write"]


class LiveView:
    """A page about the sandboxes of this process.

    Pass `result` to a sandbox as `on_result`, `ruling` to a gated sandbox as `on_ruling`, and `spans` to OpenTelemetry as an exporter.
    Unlike the audit log, the page has the output of commands, in the memory of this process, and does not remove secrets.
    """

    def __init__(self, project_root: str = ".", *, port: int = 0) -> None:
        self._root = os.path.realpath(project_root)
        self._feed = Feed()
        self._feed.loaded()
        self.spans = Spans()
        self._reader = Reader(os.environ, root=self._root)
        about = page.meta(name=self._root, kind="sandbox", live=True)
        self._server = Server(self._feed, about, self._reader, port=port, spans=self.spans).start()

    @property
    def url(self) -> str:
        """Return the address to open, with its token."""
        return self._server.url

    def result(self, result: SandboxResult) -> None:
        """Show the result of a call."""
        self._feed.put([call_list.of_result(result.to_dict(), root=self._root)])

    def ruling(self, ruling: Ruling) -> None:
        """Show the ruling of the gates on a call."""
        self._feed.put([(call_list.of_ruling(ruling.to_dict(), root=self._root), None)])

    def write(self, path: str) -> int:
        """Write the page as one file and return its size."""
        about = page.meta(name=self._root, kind="sandbox", live=False)
        return write(path, self._feed, about, Reader(os.environ, root=self._root, keeps=True), self.spans)

    def close(self) -> None:
        """Stop the server."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write(
    path: str,
    feed: Feed,
    about: dict[str, Any],
    reader: Reader,
    spans: Spans | None = None,
    *,
    told: Told | None = None,
) -> int:
    """Write the page and its data atomically to a file that only the user can read, and return its size."""
    texts = page.report(about, feed.texts(), details_of_all(feed, reader, spans, told), feed.evals)
    folder, name = os.path.split(path)
    with OutputDirectory(folder or ".") as opened:
        return opened.write(name, texts, mode=0o600)
