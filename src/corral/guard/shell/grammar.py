"""Loads tree-sitter and its bash grammar without importing their packages. No other module knows where their files are."""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec, module_from_spec  # `importlib.util` would load contextlib
from _frozen_importlib_external import ExtensionFileLoader
from _imp import extension_suffixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

GRAMMAR_PACKAGES = ("tree_sitter", "tree_sitter_bash")


def make_parser() -> Any:
    """Return a tree-sitter parser for bash."""
    tree_sitter, grammar = map(_load_binding, GRAMMAR_PACKAGES)
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))


def _load_binding(package: str) -> ModuleType:
    """Load package/_binding.*.so without running the package's `__init__`."""
    name = f"{package}._binding"
    if name in sys.modules:
        return sys.modules[name]
    for folder in sys.path:
        if not folder.startswith("/"):
            continue  # an agent can write to the working directory
        for suffix in extension_suffixes():
            path = f"{folder}/{package}/_binding{suffix}"
            try:
                with open(path, "rb"):
                    pass
            except OSError:
                continue
            with _StandIns():
                loader = ExtensionFileLoader(name, path)
                module = module_from_spec(ModuleSpec(name, loader, origin=path))
                loader.exec_module(module)
            return module
    raise ModuleNotFoundError(f"corral needs {package}; install it with: pip install tree-sitter tree-sitter-bash")


class _StandIns:
    """Replaces `re` and `enum` while tree-sitter is loaded. tree-sitter needs them only for queries and logging.

    Does nothing in a process that has loaded one of them, so only a program as short as a hook gets a binding without them.
    """

    def __enter__(self) -> None:
        self._names = [name for name in ("re", "enum") if name not in sys.modules]
        if len(self._names) == 2:
            for name in self._names:
                stand_in: Any = ModuleType(name)
                stand_in.compile = _refuse_query
                stand_in.IntEnum = lambda name, members: type(name, (int,), dict(members))
                sys.modules[name] = stand_in

    def __exit__(self, *_: object) -> None:
        if len(self._names) == 2:
            for name in self._names:
                del sys.modules[name]


def _refuse_query(*_: object) -> Any:
    raise NotImplementedError("tree-sitter queries are not available in this process")
