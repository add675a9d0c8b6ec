"""Builds the page as one HTML file that loads nothing: either a page that asks its server for data, or a report that contains it.

The content security policy allows one script, by its hash. Data is embedded as JSON that cannot end its script element.
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
SCRIPTS = ("base", "store", "list", "timeline", "plots", "transactions", "detail", "evals", "main")  # in load order
CALLS_A_BLOCK = 4000  # the page parses one block at a time and stays responsive


def _file(name: str) -> str:
    with open(os.path.join(WEB, name), encoding="utf-8") as file:
        return file.read()


def script() -> str:
    """Return the page's script: all files in one function scope."""
    return "\n".join(('(() => {\n"use strict";', *(_file(f"{name}.js") for name in SCRIPTS), "})();\n"))


def policy(*, connects: bool) -> str:
    """Return the content security policy: style and script by hash, and trusted types against markup in data."""
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
    """Return the facts that the page needs besides the calls."""
    # Only layers that are always on can be missing.
    always = wanted("on")
    layers = [{"name": key, "keeps": layer.keeps, "always": key in always} for key, layer in LAYERS.items()]
    about = {"name": name, "kind": kind, "live": live, "note": note, "version": corral.__version__}
    return about | {"layers": layers, "axes": list(AXES)}


def served(about: Data) -> str:
    """Return the page that asks its server for data."""
    return "".join(_page(about, connects=True, blocks=()))


def report(about: Data, texts: Iterable[str], details: Data, evals: Data | None) -> Iterator[str]:
    """Yield the page with its data: calls as JSON texts, details by key, and the data of the evals page."""
    return _page(about, connects=False, blocks=_blocks(texts, details, evals))


def _blocks(texts: Iterable[str], details: Data, evals: Data | None) -> Iterator[str]:
    yield _block("details", dumps(details))
    yield _block("evals", dumps(evals))
    calls = list(texts)
    for start in range(0, len(calls) or 1, CALLS_A_BLOCK):
        yield _block("calls", f"[{','.join(calls[start : start + CALLS_A_BLOCK])}]")


def _block(kind: str, json_text: str) -> str:
    return f'<script type="application/json" data-kind="{kind}">{embedded(json_text)}</script>\n'


def embedded(json_text: str) -> str:
    """Return JSON without the characters of markup, which are escaped."""
    return json_text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page(about: Data, *, connects: bool, blocks: Iterable[str]) -> Iterator[str]:
    # Browsers ignore frame-ancestors in a meta element, so the server sends it as a header.
    head, _, rest = _file("page.html").partition("{{style}}")
    body, _, end = rest.partition("{{script}}")
    yield head.replace("{{policy}}", policy(connects=connects))
    yield _file("page.css")
    yield body.replace("{{meta}}", embedded(dumps(about)))
    yield from blocks
    yield f"<script>{script()}</script>"
    yield end
