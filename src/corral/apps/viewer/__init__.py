"""A page that shows what agents did: served on loopback while they work, or written as one file. Reads, and changes nothing."""

from __future__ import annotations

import os

from corral.apps.output_files import OutputDirectory
from corral.apps.viewer import call_list, page
from corral.apps.viewer.details import details_of_all
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import Server
from corral.apps.viewer.spans import Spans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from corral.apps.viewer.details import Told
    from corral.integrations.gates import Ruling
    from corral.model.result import SandboxResult

__all__ = ["LiveView", "write"]


class LiveView:
    """A page about sandboxes of this process. `result` is a sandbox's `on_result`, `ruling` a gated one's `on_ruling`, `spans`
    an exporter for OpenTelemetry's SDK.

    Unlike the owner's log it has what commands printed, in this process's memory, and it takes out no secrets.
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
        """The address to open, with its token."""
        return self._server.url

    def result(self, result: SandboxResult) -> None:
        """Show what became of a call."""
        self._feed.put([call_list.of_result(result.to_dict(), root=self._root)])

    def ruling(self, ruling: Ruling) -> None:
        """Show what gates said of a call."""
        self._feed.put([(call_list.of_ruling(ruling.to_dict(), root=self._root), None)])

    def write(self, path: str) -> int:
        """Leave the page as one file; return how many bytes it has."""
        about = page.meta(name=self._root, kind="sandbox", live=False)
        return write(path, self._feed, about, Reader(os.environ, root=self._root, keeps=True), self.spans)

    def close(self) -> None:
        """Serve no more."""
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
    """Write the page with its data to a file that only its owner can read, whole or not at all; return its bytes."""
    texts = page.report(about, feed.texts(), details_of_all(feed, reader, spans, told), feed.evals)
    folder, name = os.path.split(path)
    with OutputDirectory(folder or ".") as opened:
        return opened.write(name, texts, mode=0o600)
