"""Reads the attacks from attacks.toml. Each is a program for Python's standard input."""

from __future__ import annotations

import os
import tomllib
from functools import cache

from corral._lib.records import Record, frozen
from corral.containment.layers import LAYERS

PRELUDE = """
import ctypes, json, os, sys
facts = json.loads(sys.argv[1])
room = os.environ.get("TMPDIR", "/tmp")
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = os.uname().machine == "x86_64"
def done(value):
    if value < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value
def call(number, *arguments):
    return done(libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]))
def attempt():
"""
EPILOGUE = """
try:
    through = attempt()
except OSError as error:
    print("held", error.strerror or error)
except ValueError as error:
    print("held", error)
else:
    print("through" if through else "held nothing was there")
"""


@frozen
class Attempt(Record):
    """An attack on some layers. `needs` lists conditions of the machine without which it proves nothing."""

    group: str
    name: str
    layers: tuple[str, ...]
    program: str
    needs: tuple[str, ...] = ()

    @property
    def source(self) -> bytes:
        """The program with its prelude and epilogue."""
        body = "".join(f"    {line}\n" for line in self.program.strip().splitlines())
        return f"{PRELUDE}{body}{EPILOGUE}".encode()


@cache
def all_attacks() -> tuple[Attempt, ...]:
    """Return all attacks by group. In each group the attacks of the layers' own records come first."""
    own = [
        Attempt(attack.group, attack.name, (layer.name, *attack.also), attack.program, attack.needs)
        for layer in LAYERS.values()
        if not isinstance(attack := layer.self_test, str)
    ]
    with open(os.path.join(os.path.dirname(__file__), "attacks.toml"), "rb") as file:
        rows = tomllib.load(file)["attempt"]
    listed = [
        Attempt(row["group"], row["name"], tuple(row["layers"]), row["program"], tuple(row.get("needs", ())))
        for row in rows
    ]
    groups = list(dict.fromkeys(attempt.group for attempt in listed))
    return tuple(sorted((*own, *listed), key=lambda attempt: groups.index(attempt.group)))
