"""Writes and reads JSON without the json package, which imports `re` and takes longer than the hook may take in total."""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class _Settings:
    """The settings that the C scanner reads from its decoder."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = _WORDS.__getitem__


_settings: Any = _Settings()
_scan = make_scanner(_settings)


def dumps(value: object) -> str:
    """Return plain data as JSON."""
    if isinstance(value, str):
        return str(encode_basestring_ascii(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dumps(str(key))}: {dumps(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(dumps(item) for item in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def loads(data: bytes) -> Any:
    """Parse JSON that corral wrote. Raise ValueError for anything that is no JSON."""
    text = data.decode("utf-8").strip()
    try:
        value, end = _scan(text, 0)
    except (StopIteration, RecursionError, IndexError, SystemError):
        # SystemError: the scanner looks for JSONDecodeError, which is undefined without the json package.
        raise ValueError("this is not JSON") from None
    if end != len(text):
        raise ValueError("text follows the JSON value")
    return value
