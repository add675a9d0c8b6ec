"""Writes one line of ASCII JSON without the json package, which imports `re` and takes longer than the hook may take in total."""

from __future__ import annotations

from _json import encode_basestring_ascii


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
