"""Load tree-sitter and its bash grammar without the import of their packages. The only module that knows where they lie."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def _extension(package: str, stem: str) -> ModuleType:
    """Load package/stem.*.so as `package.stem`, without running the package's `__init__`."""
    name = f"{package}.{stem}"
    if name in sys.modules:
        return sys.modules[name]
    for folder in sys.path:
        if not folder.startswith("/"):
            continue  # the working directory is the agent's to write
        for suffix in EXTENSION_SUFFIXES:
            path = f"{folder}/{package}/{stem}{suffix}"
            try:
                with open(path, "rb"):
                    pass
            except OSError:
                continue
            loader = ExtensionFileLoader(name, path)
            module = module_from_spec(ModuleSpec(name, loader, origin=path))
            loader.exec_module(module)
            return module
    raise ModuleNotFoundError(f"corral needs {package}; install it with: pip install corral")


def make_parser() -> Any:
    """Return a parser of bash."""
    tree_sitter = _extension("tree_sitter", "_binding")
    grammar = _extension("tree_sitter_bash", "_binding")
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))
