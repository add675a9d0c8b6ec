"""Defines the reasons for which the proxy does not connect a client."""

from __future__ import annotations


class RefusedError(Exception):
    """The destination is not granted. `grant` is the grant that would allow it, or ""."""

    def __init__(self, detail: str, grant: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.grant = grant


class UnreachableError(Exception):
    """The destination is granted, but does not answer. `told` is what the client may know of it."""

    def __init__(self, detail: str, told: str = "") -> None:
        super().__init__(detail)
        self.told = told or detail
