"""A host's JSON file as text with positions: one entry is put in or taken out, and every other byte stays as it is.

What cannot be read as the host would read it is refused with its place: a guess would lose somebody's settings.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # what the decoder itself reads texts with

from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

MAX_DEPTH = 100  # against a file that is nested until Python gives up
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}
_BLANK = " \t\r\n"
DEFAULT_INDENT = "  "


class SettingsError(CorralError, ValueError):
    """A host's file that corral will not touch; the message says where and why."""


class Node:
    """One value, and where it stands."""

    __slots__ = ("children", "end", "start", "value")

    def __init__(self, start: int, end: int, value: Any, children: list[Child]) -> None:
        self.start = start
        self.end = end
        self.value = value
        self.children = children

    def at(self, key: str | int) -> Node | None:
        """Return the value below a key, if there is one."""
        return next((child.node for child in self.children if child.key == key), None)


class Child:
    """A value in an object or a list: its key, and where key and value begin."""

    __slots__ = ("key", "node", "start")

    def __init__(self, key: str | int, start: int, node: Node) -> None:
        self.key = key
        self.start = start
        self.node = node


class _Reader:
    def __init__(self, text: str, path: str, *, comments: bool) -> None:
        self.text = text
        self.path = path
        self.comments = comments

    def fail(self, at: int, why: str) -> NoReturn:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        raise SettingsError(f"{self.path}:{line}:{column}: {why}")

    def skip(self, at: int) -> int:
        """Return where the next thing begins."""
        text = self.text
        while at < len(text):
            if text[at] in _BLANK:
                at += 1
            elif text.startswith(("//", "/*"), at):
                if not self.comments:
                    self.fail(at, "a comment stands here, and the host reads plain JSON; remove it and try again")
                closing, length = ("\n", 0) if text[at + 1] == "/" else ("*/", 2)
                end = text.find(closing, at + 2)
                if end < 0 and length:
                    self.fail(at, "a comment begins here that does not end")
                at = len(text) if end < 0 else end + length
            else:
                break
        return at

    def value(self, at: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail(at, f"it is nested more than {MAX_DEPTH} deep")
        first = self.text[at : at + 1]
        if first in ("{", "["):
            return self.container(at, depth, is_object=first == "{")
        if first == '"':
            found, end = self.string(at)
            return Node(at, end, found, [])
        for word, value in _WORDS.items():
            if self.text.startswith(word, at):
                return Node(at, at + len(word), value, [])
        number = _NUMBER.match(self.text, at)
        if number is None:
            self.fail(at, "a value is missing here" if first in ("", ",", "}", "]") else "this is no JSON value")
        return Node(at, number.end(), json.loads(number.group()), [])

    def string(self, at: int) -> tuple[str, int]:
        try:
            found, end = scanstring(self.text, at + 1, True)
        except json.JSONDecodeError as error:
            self.fail(error.pos, error.msg)
        return str(found), int(end)

    def container(self, at: int, depth: int, *, is_object: bool) -> Node:
        closing = "}" if is_object else "]"
        children: list[Child] = []
        here = self.skip(at + 1)
        while self.text[here : here + 1] != closing:
            start, key = here, len(children)
            name: str | int = key
            if is_object:
                name, here = self.key(here, children)
            node = self.value(here, depth + 1)
            children.append(Child(name, start, node))
            here = self.skip(node.end)
            if self.text[here : here + 1] == ",":
                comma, here = here, self.skip(here + 1)
                if self.text[here : here + 1] == closing:
                    self.fail(comma, "a comma stands before the end")
            elif self.text[here : here + 1] != closing:
                self.fail(here, f"a comma or {closing} is missing here")
        value: Any = {c.key: c.node.value for c in children} if is_object else [c.node.value for c in children]
        return Node(at, here + 1, value, children)

    def key(self, at: int, children: list[Child]) -> tuple[str, int]:
        if self.text[at : at + 1] != '"':
            self.fail(at, "a name in double quotes is missing here")
        name, end = self.string(at)
        if any(child.key == name for child in children):
            self.fail(at, f"the name {json.dumps(name)} stands here for the second time")
        end = self.skip(end)
        if self.text[end : end + 1] != ":":
            self.fail(end, "a colon is missing here")
        return name, self.skip(end + 1)


def decode(data: bytes, path: str) -> str:
    """Return a file's text; SettingsError where it is not UTF-8. A byte order mark stays part of it."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise SettingsError(f"{path}:{line}:{column}: this is not UTF-8") from None


def parse(text: str, path: str, *, comments: bool = False) -> Node:
    """Return the file's one object; SettingsError, with line and column, for anything else."""
    reader = _Reader(text, path, comments=comments)
    start = reader.skip(1 if text.startswith("\ufeff") else 0)
    node = reader.value(start, 0)
    end = reader.skip(node.end)
    if end < len(text):
        reader.fail(end, "something stands behind the end")
    if not isinstance(node.value, dict):
        reader.fail(start, "an object in braces is expected here")
    return node


def expect(node: Node, kind: type, text: str, path: str) -> Node:
    """Return a value that must be an object or a list, or refuse with its place."""
    if not isinstance(node.value, kind):
        _Reader(text, path, comments=True).fail(node.start, f"{'an object' if kind is dict else 'a list'} is expected")
    return node


def with_child(text: str, container: Node, key: str | None, value: object) -> str:
    """Return the text with one more value at the end of an object or a list, written as its neighbours are."""
    newline = "\r\n" if "\r\n" in text else "\n"
    name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    if container.children:
        first, last = container.children[0].start, container.children[-1].node.end
        if "\n" not in text[container.start : first]:
            return f"{text[:last]}, {name}{json.dumps(value, ensure_ascii=False)}{text[last:]}"
        indent = _indent_at(text, first)
        return f"{text[:last]},{newline}{indent}{name}{_written(value, text, newline, indent)}{text[last:]}"
    outer = _indent_at(text, container.start)
    indent = outer + _unit(text)
    body = f"{newline}{indent}{name}{_written(value, text, newline, indent)}{newline}{outer}"
    kept = text[container.start + 1 : container.end - 1]
    return f"{text[: container.start + 1]}{kept.rstrip(_BLANK)}{body}{text[container.end - 1 :]}"


def with_value(text: str, node: Node, value: object) -> str:
    """Return the text with one value replaced."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if "\n" not in text:
        return f"{text[: node.start]}{json.dumps(value, ensure_ascii=False)}{text[node.end :]}"
    return f"{text[: node.start]}{_written(value, text, newline, _indent_at(text, node.start))}{text[node.end :]}"


def without_child(text: str, container: Node, index: int) -> str:
    """Return the text without one value of an object or a list, and without its comma. Comments stay."""
    children = container.children
    start, end = children[index].start, children[index].node.end
    if len(children) == 1:
        before, after = text[container.start + 1 : start], text[end : container.end - 1]
        rest = "" if not (before + after).strip(_BLANK) else before + after
        return text[: container.start + 1] + rest + text[container.end - 1 :]
    if index + 1 < len(children):
        between = text[end : children[index + 1].start]
        if not between.strip(_BLANK + ","):
            return text[:start] + text[end + len(between) :]
        comma = end + _comma(between)
        return text[:start] + text[end:comma] + text[comma + 1 :]
    before_last = children[index - 1].node.end
    between = text[before_last:start]
    if not between.strip(_BLANK + ","):
        return text[:before_last] + text[end:]
    comma = before_last + _comma(between)
    return text[:comma] + text[comma + 1 : start] + text[end:]


def _comma(between: str) -> int:
    """Return where the comma stands among comments, which may hold commas too."""
    at = 0
    while between[at] != ",":
        if between.startswith("//", at):
            at = between.index("\n", at)
        elif between.startswith("/*", at):
            at = between.index("*/", at) + 1
        at += 1
    return at


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found.group(1) if found else DEFAULT_INDENT


def _written(value: object, text: str, newline: str, indent: str) -> str:
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).split("\n")
    return f"{newline}{indent}".join(lines)
