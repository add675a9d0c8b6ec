"""Compiles the rule tables before hatch builds a package. A wheel also gets the manual pages and the completions."""

import importlib.util
import pathlib
import sys
import tempfile
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _load(path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildFiles(BuildHookInterface[Any]):
    """Writes the files that are not in the source tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = pathlib.Path(self.root)
        _load(root / "src" / "corral" / "guard" / "rules" / "compiler.py").write_compiled()
        if self.target_name != "wheel" or version == "editable":
            return
        self._shared = tempfile.TemporaryDirectory(prefix="corral-share-")
        sys.path.insert(0, str(root / "src"))
        try:
            made = _load(root / "tools" / "man_pages.py").write_shared_files(pathlib.Path(self._shared.name))
        finally:
            sys.path.remove(str(root / "src"))
        build_data["shared_data"].update({path: f"share/{inner}" for path, inner in made.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  the hook's signature
        """Remove the files that the wheel contains by now."""
        if hasattr(self, "_shared"):
            self._shared.cleanup()
