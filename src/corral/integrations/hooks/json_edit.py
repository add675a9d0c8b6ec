"""Edits a host's JSON file as text: adds or removes one entry and leaves every other byte as it is.

Refuses a file that it cannot parse the way the host does, and names line and column: a guess could destroy the user's settings.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # the decoder's own string parser

from corral._lib.records import Record, frozen
from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

MAX_DEPTH = 100  # against a file whose nesting exceeds Python's recursion limit
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}
_BLANK = " \t\r\n"
_DEFAULT_INDENT = "  "


class SettingsError(CorralError, ValueError):
    """corral will not touch a host's settings file; the message says where and why."""


@frozen
class Node(Record):
    """A JSON value and its position in the text. `key` and `key_start` are those of the value in its object or list."""

    start: int
    end: int
    value: Any
    children: tuple[Node, ...] = ()
    key: str | int = 0
    key_start: int = 0

    def at(self, key: str | int) -> Node | None:
        """Return the value at a key, or None."""
        return next((child for child in self.children if child.key == key), None)


class _Parser:
    def __init__(self, text: str, path: str, *, comments: bool) -> None:
        self.text = text
        self.path = path
        self.comments = comments

    def fail(self, at: int, why: str) -> NoReturn:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        raise SettingsError(f"{self.path}:{line}:{column}: {why}")

    def skip(self, at: int) -> int:
        """Return the position after white space and comments."""
        text = self.text
        while at < len(text):
            if text[at] in _BLANK:
                at += 1
            elif text.startswith(("//", "/*"), at):
                if not self.comments:
                    self.fail(at, "the host reads plain JSON, which has no comments; remove the comment and try again")
                closing, length = ("\n", 0) if text[at + 1] == "/" else ("*/", 2)
                end = text.find(closing, at + 2)
                if end < 0 and length:
                    self.fail(at, "unterminated comment")
                at = len(text) if end < 0 else end + length
            else:
                break
        return at

    def value(self, at: int, depth: int, key: str | int = 0, key_start: int = 0) -> Node:
        if depth > MAX_DEPTH:
            self.fail(at, f"nested more than {MAX_DEPTH} levels deep")
        first = self.text[at : at + 1]
        if first in ("{", "["):
            end, children = self.container(at, depth, is_object=first == "{")
            values = [child.value for child in children]
            value: Any = {child.key: child.value for child in children} if first == "{" else values
            return Node(at, end, value, children, key, key_start)
        if first == '"':
            found, end = self.string(at)
            return Node(at, end, found, (), key, key_start)
        for word, constant in _WORDS.items():
            if self.text.startswith(word, at):
                return Node(at, at + len(word), constant, (), key, key_start)
        number = _NUMBER.match(self.text, at)
        if number is None:
            self.fail(at, "expected a value" if first in ("", ",", "}", "]") else "not a JSON value")
        return Node(at, number.end(), json.loads(number.group()), (), key, key_start)

    def string(self, at: int) -> tuple[str, int]:
        try:
            found, end = scanstring(self.text, at + 1, True)
        except json.JSONDecodeError as error:
            self.fail(error.pos, error.msg)
        return str(found), int(end)

    def container(self, at: int, depth: int, *, is_object: bool) -> tuple[int, tuple[Node, ...]]:
        closing = "}" if is_object else "]"
        children: list[Node] = []
        here = self.skip(at + 1)
        while self.text[here : here + 1] != closing:
            start, key = here, len(children)
            name: str | int = key
            if is_object:
                name, here = self.key(here, children)
            node = self.value(here, depth + 1, name, start)
            children.append(node)
            here = self.skip(node.end)
            if self.text[here : here + 1] == ",":
                comma, here = here, self.skip(here + 1)
                if self.text[here : here + 1] == closing:
                    self.fail(comma, "trailing comma")
            elif self.text[here : here + 1] != closing:
                self.fail(here, f"expected a comma or {closing}")
        return here + 1, tuple(children)

    def key(self, at: int, children: list[Node]) -> tuple[str, int]:
        if self.text[at : at + 1] != '"':
            self.fail(at, "expected a key in double quotes")
        name, end = self.string(at)
        if any(child.key == name for child in children):
            self.fail(at, f"duplicate key {json.dumps(name)}")
        end = self.skip(end)
        if self.text[end : end + 1] != ":":
            self.fail(end, "expected a colon")
        return name, self.skip(end + 1)


def decode(data: bytes, path: str) -> str:
    """Decode a file's bytes; raise SettingsError if they are not UTF-8. A byte order mark stays in the text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise SettingsError(f"{path}:{line}:{column}: not UTF-8") from None


def parse(text: str, path: str, *, comments: bool = False) -> Node:
    """Parse a file that contains one JSON object; raise SettingsError, with line and column, for anything else."""
    parser = _Parser(text, path, comments=comments)
    start = parser.skip(1 if text.startswith("\ufeff") else 0)
    node = parser.value(start, 0)
    end = parser.skip(node.end)
    if end < len(text):
        parser.fail(end, "text after the end of the object")
    if not isinstance(node.value, dict):
        parser.fail(start, "expected an object in braces")
    return node


def expect(node: Node, kind: type, text: str, path: str) -> Node:
    """Return the node if its value is of this type (dict or list); otherwise raise SettingsError."""
    if not isinstance(node.value, kind):
        _Parser(text, path, comments=True).fail(node.start, f"expected {'an object' if kind is dict else 'a list'}")
    return node


def with_child(text: str, container: Node, key: str | None, value: object) -> str:
    """Return the text with one more value at the end of an object or a list, in the style of its neighbours."""
    newline = _newline(text)
    name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    if container.children:
        first, last = container.children[0].key_start, container.children[-1].end
        if "\n" not in text[container.start : first]:
            return f"{text[:last]}, {name}{json.dumps(value, ensure_ascii=False)}{text[last:]}"
        indent = _indent_at(text, first)
        return f"{text[:last]},{newline}{indent}{name}{_dump(value, text, indent)}{text[last:]}"
    outer = _indent_at(text, container.start)
    indent = outer + _unit(text)
    body = f"{newline}{indent}{name}{_dump(value, text, indent)}{newline}{outer}"
    comments = text[container.start + 1 : container.end - 1].rstrip(_BLANK)
    return f"{text[: container.start + 1]}{comments}{body}{text[container.end - 1 :]}"


def with_value(text: str, node: Node, value: object) -> str:
    """Return the text with one value replaced."""
    is_one_line = "\n" not in text
    written = json.dumps(value, ensure_ascii=False) if is_one_line else _dump(value, text, _indent_at(text, node.start))
    return f"{text[: node.start]}{written}{text[node.end :]}"


def without_child(text: str, container: Node, index: int) -> str:
    """Return the text without one value of an object or a list, and without its comma. Comments stay."""
    children = container.children
    start, end = children[index].key_start, children[index].end
    if len(children) == 1:
        before, after = text[container.start + 1 : start], text[end : container.end - 1]
        rest = "" if not (before + after).strip(_BLANK) else before + after
        return text[: container.start + 1] + rest + text[container.end - 1 :]
    if index + 1 < len(children):
        between = text[end : children[index + 1].key_start]
        if not between.strip(_BLANK + ","):
            return text[:start] + text[end + len(between) :]
        comma = end + _comma(between)
        return text[:start] + text[end:comma] + text[comma + 1 :]
    previous = children[index - 1].end
    between = text[previous:start]
    if not between.strip(_BLANK + ","):
        return text[:previous] + text[end:]
    comma = previous + _comma(between)
    return text[:comma] + text[comma + 1 : start] + text[end:]


def _comma(between: str) -> int:
    """Return the position of the comma. Comments beside it may contain commas too."""
    at = 0
    while between[at] != ",":
        if between.startswith("//", at):
            at = between.index("\n", at)
        elif between.startswith("/*", at):
            at = between.index("*/", at) + 1
        at += 1
    return at


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found.group(1) if found else _DEFAULT_INDENT


def _dump(value: object, text: str, indent: str) -> str:
    """Serialize a value with the file's own indentation and line ends."""
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).split("\n")
    return f"{_newline(text)}{indent}".join(lines)
