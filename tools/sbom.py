"""Writes a software bill of materials for corral and its extras as CycloneDX 1.6 JSON, from the lock files alone.

The same lock files give the same bytes. Packages for development only are left out, because users do not install them.
"""

import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements/dev.txt", "requirements/frameworks.txt")
OURS = "corral (pyproject.toml)"  # the name of the package itself in a lock file; a dependency group adds a colon and its name
ENTRY = re.compile(r"^([a-z0-9][a-z0-9.-]*)(?:\[[^\]]*\])?==([^\s;]+)", re.MULTILINE)


class Pin(NamedTuple):
    """One locked package, and the packages that require it."""

    name: str
    version: str
    hashes: tuple[str, ...]
    wanted_by: tuple[str, ...]

    @property
    def reference(self) -> str:
        """Return the package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def pins(text: str) -> dict[str, Pin]:
    """Parse a lock file of `uv pip compile`."""
    starts = [*ENTRY.finditer(text)]
    ends = [*(found.start() for found in starts[1:]), len(text)]
    made = {}
    for found, end in zip(starts, ends, strict=True):
        part = text[found.start() : end]
        wanted = re.findall(r"^ +# (?:via )? *(\S.*)$", part, re.MULTILINE)
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", part))
        made[found[1]] = Pin(found[1], found[2], hashes, tuple(word for word in wanted if word != "via"))
    return made


def needed(locked: dict[str, Pin]) -> dict[str, Pin]:
    """Return the packages that corral or an extra requires, directly or not. The rest is for development."""
    found = {name for name, pin in locked.items() if OURS in pin.wanted_by}
    while more := {name for name, pin in locked.items() if found & set(pin.wanted_by)} - found:
        found |= more
    return {name: locked[name] for name in sorted(found)}


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def bill() -> dict[str, Any]:
    """Return the bill of materials."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.findall(r'^__version__ = "([^"]+)"', (ROOT / "src/corral/__init__.py").read_text(), re.MULTILINE)[0]
    ours = f"pkg:pypi/corral@{version}"
    core = {_name(requirement) for requirement in project["dependencies"]}
    extras: dict[str, list[str]] = {}
    for extra, wanted in project["optional-dependencies"].items():
        for requirement in wanted:
            extras.setdefault(_name(requirement), []).append(extra)
    components: dict[str, dict[str, Any]] = {}
    edges: dict[str, set[str]] = {ours: set()}
    for lock in LOCKS:
        held = needed(pins((ROOT / lock).read_text()))
        for pin in held.values():
            components[pin.reference] = _component(pin, pin.name in core, extras.get(pin.name, []))
            edges.setdefault(pin.reference, set())
            for asker in pin.wanted_by:
                if asker == OURS:
                    edges[ours].add(pin.reference)
                elif asker in held:
                    edges.setdefault(held[asker].reference, set()).add(pin.reference)
    made: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _ourselves(project, version, ours)},
        "components": [components[reference] for reference in sorted(components)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(edges[ref])} for ref in sorted(edges)],
    }
    made["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True))}"
    return made


def _ourselves(project: dict[str, Any], version: str, reference: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": reference,
        "name": project["name"],
        "version": version,
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
        "purl": reference,
    }


def _component(pin: Pin, is_core: bool, extras: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": pin.reference,
        "name": pin.name,
        "version": pin.version,
        "scope": "required" if is_core else "optional",
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in pin.hashes],
        "purl": pin.reference,
    }
    return made | ({"properties": [{"name": "corral:extra", "value": extra} for extra in extras]} if extras else {})


if __name__ == "__main__":
    document = bill()
    target = ROOT / "dist" / f"corral-{document['metadata']['component']['version']}.cdx.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(document, indent=2) + "\n")
    sys.stdout.write(f"{target.relative_to(ROOT)}: {len(document['components'])} components\n")
