"""A short process: corral's own modules from what the interpreter has compiled of them; no collection.

By the interpreter's own rule: only if the source still has the time and the size that were noted. What is not so, and every
other module, is left to the general way, which takes four times as long.
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

_OURS = "corral"
_HEAD_BYTES = 16  # magic number, flags, time and size of the source
_BY_TIME = b"\0\0\0\0"  # the flags of what is checked by time and size
_READ = posix.O_RDONLY | posix.O_CLOEXEC


class _Finder:
    """A finder and loader of modules in one."""

    def __init__(self, above: str) -> None:
        self._above = above
        self._suffix = f".{sys.implementation.cache_tag}.pyc"

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        """Return where one of our modules is, with its code; None where it is not known, or not compiled as it is now."""
        if name.partition(".")[0] != _OURS:
            return None
        place = f"{self._above}/{name.replace('.', '/')}"
        folder, _, stem = place.rpartition("/")
        return self._spec(name, folder, stem, is_package=False) or self._spec(name, place, "__init__", is_package=True)

    def _spec(self, name: str, folder: str, stem: str, *, is_package: bool) -> "ModuleSpec | None":
        source, compiled = f"{folder}/{stem}.py", f"{folder}/__pycache__/{stem}{self._suffix}"
        try:
            descriptor = posix.open(compiled, _READ)
        except OSError:
            return None
        try:
            code = posix.read(descriptor, posix.fstat(descriptor).st_size)
            state = posix.stat(source)
        except OSError:
            return None
        finally:
            posix.close(descriptor)
        noted = MAGIC_NUMBER + _BY_TIME + _low(int(state.st_mtime)) + _low(state.st_size)
        if code[:_HEAD_BYTES] != noted:
            return None
        loader: Any = self
        spec = ModuleSpec(name, loader, origin=source, loader_state=code, is_package=is_package)
        spec.has_location = True
        spec.cached = compiled
        if is_package:
            spec.submodule_search_locations = [folder]
        return spec

    def create_module(self, _spec: "ModuleSpec") -> None:
        """Leave it to the interpreter."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run the code of a module."""
        spec: Any = module.__spec__
        code, spec.loader_state = spec.loader_state, None
        exec(loads(memoryview(code)[_HEAD_BYTES:]), module.__dict__)  # noqa: S102, S302  as the interpreter itself does


def _low(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "little")


def begin() -> None:
    """Let what is imported from here on come the short way."""
    gc.disable()
    # Every module of ours says `from __future__ import annotations`, and needs nothing else of it.
    future: Any = type(sys)("__future__")
    future.annotations = None
    sys.modules.setdefault("__future__", future)
    finder: Any = _Finder(__file__.rsplit("/", 4)[0])
    sys.meta_path.insert(0, finder)
