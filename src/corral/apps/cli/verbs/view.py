"""`corral view`: shows the log, a run of evals or results as a web page, served on loopback or written as one file."""

from __future__ import annotations

import os
import sys
from threading import Event

from corral._lib.signals import raise_on_termination
from corral._lib.status_line import StatusLine
from corral._lib.terminal import printable
from corral.apps.cli.arguments import port_number
from corral.apps.cli.log_filter import FILTERS, entry_count, filter_of
from corral.apps.cli.verb import Options, Verb, argument
from corral.apps.viewer import page, write
from corral.apps.viewer.explain import Reader
from corral.apps.viewer.feed import Feed
from corral.apps.viewer.http_server import Server, fill
from corral.apps.viewer.sources import LogSource, source_of
from corral.apps.viewer.spans import Spans, read
from corral.audit.audit_log import directory
from corral.model.errors import CorralError
from corral.model.render_result import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.apps.viewer.sources import Source

VERB = Verb(
    "inspect",
    "Show what agents did as a web page: live, or as one file.",
    examples="""\
corral view                              serve the log live to a browser on this machine
corral view --since 1d --decision deny   show only what was refused since yesterday
corral view --out report.html            write one file, which opens from disk and loads nothing
corral view corral-eval                  show a run of `corral eval`: rates, tasks and their calls
corral view before after                 compare two runs
corral view results.jsonl                show the output of `corral run --json` or `corral batch`
""",
    notes="""\
corral prints the address on stdout. The address contains a token, and the server answers only this machine. The log
does not contain the output of commands; results do. Only you can read a report, until you change its mode.
docs/view.md describes the page.
""",
    exit_codes="0 ended by Ctrl-C or written, 125 corral itself failed",
    usage=("view [options] [FILE [FILE]]",),
    arguments=(
        argument(
            "sources FILE",
            "Show a run of `corral eval` (two runs are compared) or results of `corral run --json` or `corral batch` (default: the log).",
            nargs="*",
        ),
        argument("--out FILE", "Write one self-contained file instead of serving."),
        argument(
            "--port PORT", "Listen on this port of 127.0.0.1 (default: any free one).", type=port_number, default=0
        ),
        argument("--spans FILE", "Read spans from this file, in the JSON lines of OTLP that a collector writes."),
        argument("--root DIR", "Use this project for calls that do not name theirs (default: .).", default="."),
        argument(
            "-n N", "Show the last N entries of the log (default: all).", dest="number", type=entry_count, default=0
        ),
        *FILTERS,
    ),
)


def main(options: Options) -> int:
    """Serve the page until Ctrl-C, or write it."""
    root = os.path.realpath(options.root)
    source = source_of(
        options.sources,
        log=lambda: LogSource(directory(os.environ), filter_of(options), last=options.number),
        root=root,
    )
    spans = read(options.spans) if options.spans else None
    return _write(source, root, spans, options) if options.out else _serve(source, root, spans, options)


def _write(source: Source, root: str, spans: Spans | None, options: Options) -> int:
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
    print(f"corral: wrote {count} calls to {printable(options.out)}, {size} bytes", file=sys.stderr)
    return 0


def _serve(source: Source, root: str, spans: Spans | None, options: Options) -> int:
    raise_on_termination()
    feed, stop = Feed(), Event()
    about = page.meta(name=source.name, kind=source.kind, live=True)
    server = Server(feed, about, Reader(os.environ, root=root), port=options.port, spans=spans).start()
    try:
        print(json_text({"url": server.url, "port": server.port}) if options.json else server.url, flush=True)
        print("corral: open this address in a browser on this machine; Ctrl-C stops the server", file=sys.stderr)
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
        print(f"corral: {printable(str(error))}; the page stays as it is", file=sys.stderr)
        feed.loaded()
        stop.wait()
