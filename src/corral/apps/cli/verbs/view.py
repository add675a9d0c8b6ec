"""`corral view`: a page that shows what agents did, from the log, a run of evals or results; served on loopback, or as one file."""

from __future__ import annotations

import os
import sys
from signal import SIGHUP, SIGTERM, default_int_handler, signal
from threading import Event

from corral._lib.terminal import printable
from corral.apps.cli.progress import StatusLine
from corral.apps.cli.verbs.log import filter_of
from corral.apps.viewer import page, write
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import Server, fill
from corral.apps.viewer.sources import LogSource, source_of
from corral.apps.viewer.spans import read
from corral.audit.audit_log import directory
from corral.model.errors import CorralError
from corral.model.render_result import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from corral.apps.viewer.sources import Source
    from corral.apps.viewer.spans import Spans


def main(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or write it."""
    root = os.path.realpath(options.root)
    source = source_of(
        options.sources,
        log=lambda: LogSource(directory(os.environ), filter_of(options), last=options.number),
        root=root,
    )
    spans = read(options.spans) if options.spans else None
    return _write(source, root, spans, options) if options.out else _serve(source, root, spans, options)


def _write(source: Source, root: str, spans: Spans | None, options: argparse.Namespace) -> int:
    feed = Feed()
    reader = Reader(os.environ, root=root, keeps=True)
    about = page.meta(name=source.name, kind=source.kind, live=False)
    with StatusLine() as line:
        fill(feed, source, told=line.count)
        try:
            size = write(options.out, feed, about, reader, spans, told=line.count)
        except OSError as error:
            raise CorralError(f"{options.out} cannot be written: {error.strerror}") from None
    count = len(feed)
    if options.json:
        print(json_text({"path": options.out, "calls": count, "bytes": size}))
    print(f"corral: {count} calls are in {printable(options.out)}, {size} bytes", file=sys.stderr)
    return 0


def _serve(source: Source, root: str, spans: Spans | None, options: argparse.Namespace) -> int:
    for number in (SIGTERM, SIGHUP):
        signal(number, default_int_handler)
    feed, stop = Feed(), Event()
    about = page.meta(name=source.name, kind=source.kind, live=True)
    server = Server(feed, about, Reader(os.environ, root=root), port=options.port, spans=spans).start()
    try:
        print(json_text({"url": server.url, "port": server.port}) if options.json else server.url, flush=True)
        print("corral: open this address in a browser of this machine; Ctrl-C ends it", file=sys.stderr)
        _follow(feed, source, stop)
    except KeyboardInterrupt:
        return 0
    finally:
        server.close()
    return 0


def _follow(feed: Feed, source: Source, stop: Event) -> None:
    try:
        fill(feed, source, stop)
    except CorralError as error:
        print(f"corral: {printable(str(error))}; what is shown stays", file=sys.stderr)
        feed.loaded()
        stop.wait()
