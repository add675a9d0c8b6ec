"""Redirects and here-documents: what they open, what they give a command to read, what they run."""

from __future__ import annotations

from corral.guard.analysis.addresses import network_effect
from corral.guard.analysis.scope import TAINT
from corral.guard.analysis.syntax_tree import children
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import Word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.guard.analysis.scope import Frame
    from corral.guard.analysis.walker import Walker

    Node = Any
    Target = tuple[str, Word]  # "reads", "writes" or the effect of a connection, and what


def redirect(walker: Walker, node: Node, frame: Frame) -> tuple[list[Target], list[Word]]:
    """Return what a redirect opens, and the words behind its target, which are arguments of the command."""
    nodes = children(node, frame)
    operator, rest = "", []
    for index, child in enumerate(nodes):
        if child.type != "file_descriptor":
            operator, rest = child.type, nodes[index + 1 :]
            break
    start = node.end_byte if not operator else nodes[len(nodes) - len(rest) - 1].start_byte
    words = [w for c in rest[1:] for w in frame.words(c)]
    heredoc = frame.script.heredocs.get(start)
    if heredoc is not None:
        frame.script.spent.add(start)
        frame.stdin = _heredoc(walker, heredoc.body, heredoc.quoted, frame, node)
        return [], words
    if operator in ("<&-", ">&-"):
        return [], [w for c in rest for w in frame.words(c)]
    if not rest:
        walker.report("unparsed", frame.word_at(node), "")
        return [], []
    places = frame.words(rest[0]) or [Word("", *frame.script.span(node.start_byte, node.end_byte))]
    if operator in (">&", "<&") and all(w.text.rstrip("-").isdigit() or w.text == "-" for w in places):
        return [], words
    if operator == "<":
        frame.stdin = None
    verbs = ["reads"] if operator in ("<", "<&") else ["writes"]
    if frame.script.leaves[start : start + 2] == b"<>":
        verbs = ["reads", "writes"]
    return [target for w in places for target in _connection(w) or [(verb, w) for verb in verbs]], words


def _connection(word: Word) -> list[Target]:
    """Return the connection that bash makes of a path such as /dev/tcp/localhost/80, or nothing."""
    if not word.text.startswith(("/dev/tcp/", "/dev/udp/")) or word.text.count("/") != 4:
        return []
    _, _, scheme, host, port = word.text.split("/")
    if HOLE in host:
        return [("network-unproven", word)]
    address = f"{scheme}://{host}:{port if port.isdigit() else '0'}"
    return [(network_effect(address), word.part(address))]


def _heredoc(walker: Walker, body: bytes, quoted: bool, frame: Frame, node: Node) -> str | None:
    text = body.decode("utf-8", "replace")
    if "[" in text and TAINT.search(text):
        walker.tainted = True
    if quoted:
        return text
    from corral.guard.shell.heredoc import HeredocError, substitutions  # noqa: PLC0415  as it was read, so it is loaded

    try:
        inner = substitutions(body)
    except HeredocError as error:
        walker.report("unparsed", frame.word_at(node), f": {error}")
        return None
    at = frame.word_at(node)
    for command in inner:
        walker.nested(command.decode("utf-8", "replace"), at, frame, frame.scope.copy())
    if "$" in text or "`" in text:
        return None
    return text.replace("\\\\", "\\") if "\\" in text else text
