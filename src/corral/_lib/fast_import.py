"""Speeds up the start of the hook and of the keeper: loads corral's modules from their compiled files, and turns garbage collection off.

A compiled file is used by the interpreter's own rule: only if the source still has the recorded time and size. Everything else
goes through the normal import system, which takes four times as long.
"""

import gc
import posix
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
from marshal import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_HEADER_BYTES = 16  # magic number, flags, modification time and size of the source
_CHECKED_BY_TIME = b"\0\0\0\0"  # the flags of a file that is checked by time and size
_OPEN_FLAGS = posix.O_RDONLY | posix.O_CLOEXEC


class _Finder:
    """A module finder and loader for the `corral` package."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._suffix = f".{sys.implementation.cache_tag}.pyc"

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        """Return the spec of one of our modules, with its code; None if it has no up-to-date compiled file."""
        if name.partition(".")[0] != "corral":
            return None
        path = f"{self._folder}/{name.replace('.', '/')}"
        folder, _, stem = path.rpartition("/")
        return self._spec(name, folder, stem, is_package=False) or self._spec(name, path, "__init__", is_package=True)

    def _spec(self, name: str, folder: str, stem: str, *, is_package: bool) -> "ModuleSpec | None":
        source, compiled = f"{folder}/{stem}.py", f"{folder}/__pycache__/{stem}{self._suffix}"
        try:
            descriptor = posix.open(compiled, _OPEN_FLAGS)
        except OSError:
            return None
        try:
            code = posix.read(descriptor, posix.fstat(descriptor).st_size)
            state = posix.stat(source)
        except OSError:
            return None
        finally:
            posix.close(descriptor)
        expected = MAGIC_NUMBER + _CHECKED_BY_TIME + _uint32(int(state.st_mtime)) + _uint32(state.st_size)
        if code[:_HEADER_BYTES] != expected:
            return None
        loader: Any = self
        spec = ModuleSpec(name, loader, origin=source, loader_state=code, is_package=is_package)
        spec.has_location = True
        spec.cached = compiled
        if is_package:
            spec.submodule_search_locations = [folder]
        return spec

    def create_module(self, _spec: "ModuleSpec") -> None:
        """Let the interpreter create the module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run a module's code."""
        spec: Any = module.__spec__
        code, spec.loader_state = spec.loader_state, None
        exec(loads(memoryview(code)[_HEADER_BYTES:]), module.__dict__)  # noqa: S102, S302  as the interpreter itself does


def _uint32(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "little")


def begin() -> None:
    """Use the fast way for all imports that follow."""
    gc.disable()
    # Our modules need nothing of __future__ but the name `annotations`.
    future: Any = type(sys)("__future__")
    future.annotations = None
    sys.modules.setdefault("__future__", future)
    finder: Any = _Finder(__file__.rsplit("/", 3)[0])
    sys.meta_path.insert(0, finder)
