"""Compiles the rule tables before hatch builds a wheel or an editable install."""

import importlib.util
import pathlib
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileRules(BuildHookInterface[Any]):
    """Writes rules/compiled.bin next to the rule tables."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  the hook's signature
        source = pathlib.Path(self.root) / "src" / "corral" / "guard" / "rules" / "compiler.py"
        spec = importlib.util.spec_from_file_location("rulecompiler", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.write_compiled()
