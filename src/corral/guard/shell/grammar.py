"""Load tree-sitter and its bash grammar without the import of their packages. The only module that knows where they lie."""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec, module_from_spec  # `importlib.util` loads contextlib
from _frozen_importlib_external import ExtensionFileLoader
from _imp import extension_suffixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any
else:
    ModuleType = type(sys)


GRAMMAR_PACKAGES = ("tree_sitter", "tree_sitter_bash")


def _extension(package: str, stem: str) -> ModuleType:
    """Load package/stem.*.so as `package.stem`, without running the package's `__init__`."""
    name = f"{package}.{stem}"
    if name in sys.modules:
        return sys.modules[name]
    for folder in sys.path:
        if not folder.startswith("/"):
            continue  # the working directory is the agent's to write
        for suffix in extension_suffixes():
            path = f"{folder}/{package}/{stem}{suffix}"
            try:
                with open(path, "rb"):
                    pass
            except OSError:
                continue
            with _Unneeded():
                loader = ExtensionFileLoader(name, path)
                module = module_from_spec(ModuleSpec(name, loader, origin=path))
                loader.exec_module(module)
            return module
    raise ModuleNotFoundError(f"corral needs {package}; install it with: pip install tree-sitter tree-sitter-bash")


class _Unneeded:
    """Stands in for `re` and `enum` while tree-sitter is loaded, which asks them for what queries and logging need.

    Where they are loaded already it does nothing, so only a program as short as a hook has a binding without these two.
    """

    def __enter__(self) -> None:
        self._names = [name for name in ("re", "enum") if name not in sys.modules]
        if len(self._names) == 2:
            for name in self._names:
                stand_in: Any = ModuleType(name)
                stand_in.compile = _not_loaded
                stand_in.IntEnum = lambda name, members: type(name, (int,), dict(members))
                sys.modules[name] = stand_in

    def __exit__(self, *_: object) -> None:
        if len(self._names) == 2:
            for name in self._names:
                del sys.modules[name]


def _not_loaded(*_: object) -> Any:
    raise NotImplementedError("queries of tree-sitter are not to be had in this process")


def make_parser() -> Any:
    """Return a parser of bash."""
    tree_sitter = _extension("tree_sitter", "_binding")
    grammar = _extension("tree_sitter_bash", "_binding")
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))
