"""Edits a host's JSON file as text: adds or removes one entry and leaves every other byte as it is.

Refuses a file that it cannot parse the way the host does, and names line and column: a guess could destroy the user's settings.
"""

from __future__ import annotations

import json
import re
from json.decoder import WHITESPACE, scanstring  # type: ignore[attr-defined]  # the decoder's own

from corral._lib.records import Record, frozen
from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_BLANK = " \t\r\n"
_DEFAULT_INDENT = "  "


class SettingsError(CorralError, ValueError):
    """corral will not touch a host's settings file; the message says where and why."""


@frozen
class Node(Record):
    """A JSON value and its position. `key` and `key_start` are those of the value in its object or list."""

    plain: str  # the file's text, with spaces in place of comments
    start: int
    end: int
    value: Any
    key: str | int = 0
    key_start: int = 0

    @property
    def children(self) -> list[Node]:
        """Return the values of an object or a list, in order."""
        found: list[Node] = []
        at = _skip(self.plain, self.start + 1)
        while at < self.end - 1:
            key_start, key = at, len(found)
            name: str | int = key
            if isinstance(self.value, dict):
                name, at = scanstring(self.plain, at + 1, True)
                at = _skip(self.plain, self.plain.index(":", at) + 1)
            value, end = _DECODER.raw_decode(self.plain, at)
            found.append(Node(self.plain, at, end, value, name, key_start))
            at = _skip(self.plain, _skip(self.plain, end) + 1)
        return found

    def at(self, key: str | int) -> Node | None:
        """Return the value at a key, or None."""
        return next((child for child in self.children if child.key == key), None)


def _skip(text: str, at: int) -> int:
    return int(WHITESPACE.match(text, at).end())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {json.dumps(next(name for name in names if names.count(name) > 1))}")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _fail(text: str, path: str, at: int, why: str) -> NoReturn:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    raise SettingsError(f"{path}:{line}:{column}: {why}")


def decode(data: bytes, path: str) -> str:
    """Decode a file's bytes; raise SettingsError if they are not UTF-8. A byte order mark stays in the text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        _fail(data.decode("latin-1"), path, error.start, "not UTF-8")


def _blank_comment(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else " " * len(found[0])


def parse(text: str, path: str, *, comments: bool = False) -> Node:
    """Parse a file that contains one JSON object; raise SettingsError for anything else."""
    plain = _STRING_OR_COMMENT.sub(_blank_comment, text) if comments else text
    start = _skip(plain, 1 if plain.startswith("\ufeff") else 0)
    try:
        value, end = _DECODER.raw_decode(plain, start)
    except json.JSONDecodeError as error:
        is_comment = text.startswith(("//", "/*"), error.pos)
        why = "the host reads plain JSON, which has no comments; remove the comment and try again"
        _fail(text, path, error.pos, why if is_comment else error.msg)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise SettingsError(f"{path}: {why}") from None
    if (rest := _skip(plain, end)) < len(plain):
        _fail(text, path, rest, "text after the end of the object")
    if not isinstance(value, dict):
        _fail(text, path, start, "expected an object in braces")
    return Node(plain, start, end, value)


def expect(node: Node, kind: type, text: str, path: str) -> Node:
    """Return the node if its value is of this type (dict or list); otherwise raise SettingsError."""
    if not isinstance(node.value, kind):
        _fail(text, path, node.start, f"expected {'an object' if kind is dict else 'a list'}")
    return node


def with_child(text: str, container: Node, key: str | None, value: object) -> str:
    """Return the text with one more value at the end of an object or a list, in the style of its neighbours."""
    newline = _newline(text)
    name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    if children := container.children:
        first, last = children[0].key_start, children[-1].end
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
        comma = container.plain.index(",", end)
        return text[:start] + text[end:comma] + text[comma + 1 :]
    previous = children[index - 1].end
    between = text[previous:start]
    if not between.strip(_BLANK + ","):
        return text[:previous] + text[end:]
    comma = container.plain.index(",", previous)
    return text[:comma] + text[comma + 1 : start] + text[end:]


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
