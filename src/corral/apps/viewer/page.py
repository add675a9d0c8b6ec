"""The page as one HTML file that loads nothing: served with its data apart, or with all of it inside, to be opened from a disk.

Nothing in it runs but the script whose hash its policy names; data stands in it as JSON that cannot end its element.
"""

from __future__ import annotations

import base64
import os
from hashlib import sha256

import corral
from corral.apps.viewer.call_list import AXES
from corral.apps.viewer.feed import dumps
from corral.containment.layers import LAYERS, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Data = dict[str, Any]

WEB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "web")
SCRIPTS = (
    "base.js",
    "store.js",
    "list.js",
    "timeline.js",
    "plots.js",
    "transactions.js",
    "detail.js",
    "evals.js",
    "main.js",
)
CALLS_A_BLOCK = 4000  # read one after the other, so that the page answers meanwhile


def _file(name: str) -> str:
    with open(os.path.join(WEB, name), encoding="utf-8") as file:
        return file.read()


def script() -> str:
    """Return the page's script: its files in their order, in one scope of their own."""
    return "\n".join(('(() => {\n"use strict";', *map(_file, SCRIPTS), "})();\n"))


def policy(*, connects: bool) -> str:
    """Return the page's content security policy: its own style and script by hash, text into the document only as text."""
    parts = (
        "default-src 'none'",
        f"script-src {_hash(script())}",
        f"style-src {_hash(_file('page.css'))}",
        f"connect-src {chr(39)}{'self' if connects else 'none'}{chr(39)}",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return "; ".join(parts)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def meta(*, name: str, kind: str, live: bool, note: str = "") -> Data:
    """Return what the page must know besides the calls."""
    # A layer that is not asked for is not missing either.
    always = wanted("on")
    layers = [{"name": key, "keeps": one.keeps, "always": key in always} for key, one in LAYERS.items()]
    return {
        "name": name,
        "kind": kind,
        "live": live,
        "note": note,
        "version": corral.__version__,
        "layers": layers,
        "axes": list(AXES),
    }


def served(about: Data) -> str:
    """Return the page that asks its server for the data."""
    return "".join(_page(about, connects=True, blocks=()))


def report(about: Data, texts: Iterable[str], details: Data, evals: Data | None) -> Iterator[str]:
    """Return the page with its data, in pieces: calls as JSON, what else is known by their keys, and what is said of evals."""
    return _page(about, connects=False, blocks=_blocks(texts, details, evals))


def _blocks(texts: Iterable[str], details: Data, evals: Data | None) -> Iterator[str]:
    yield _block("details", dumps(details))
    yield _block("evals", dumps(evals))
    block: list[str] = []
    for text in texts:
        block.append(text)
        if len(block) == CALLS_A_BLOCK:
            yield _block("calls", f"[{','.join(block)}]")
            block = []
    yield _block("calls", f"[{','.join(block)}]")


def _block(kind: str, json_text: str) -> str:
    return f'<script type="application/json" data-kind="{kind}">{embedded(json_text)}</script>\n'


def embedded(json_text: str) -> str:
    """Return JSON that nothing in an HTML file can take for markup: what ends an element is written by its number."""
    return json_text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page(about: Data, *, connects: bool, blocks: Iterable[str]) -> Iterator[str]:
    # frame-ancestors has no force here, and is sent as a header where there is a server.
    head, _, rest = _file("page.html").partition("{{style}}")
    body, _, end = rest.partition("{{script}}")
    yield head.replace("{{policy}}", policy(connects=connects))
    yield _file("page.css")
    yield body.replace("{{meta}}", embedded(dumps(about)))
    yield from blocks
    yield f"<script>{script()}</script>"
    yield end
