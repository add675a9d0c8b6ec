"""Installs the packages in dist/ into empty environments and runs them, as a user does: `python tools/release_check.py [EXTRA…]`.

pip uses its configured registry. The core is installed from the wheel and from the sdist, then the wheel with each extra.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The module that each extra is for. Importing it shows that the extra's dependencies are installed and compatible.
LEAVES = {
    "mcp": "corral.integrations.mcp",
    "otel": "corral.integrations.telemetry.otel",
    "inspect": "corral.integrations.frameworks.inspect_ai",
    "minisweagent": "corral.integrations.frameworks.minisweagent",
    "pydantic-ai": "corral.integrations.frameworks.pydantic_ai",
    "deepagents": "corral.integrations.frameworks.deepagents",
    "langchain": "corral.integrations.frameworks.langchain",
    "openai-agents": "corral.integrations.frameworks.openai_agents",
    "swerex": "corral.integrations.frameworks.swerex",
    "claude": "corral.integrations.frameworks.claude_sdk",
    "ray": "corral.integrations.ray",
    "demo": "corral.apps.agentdemo.run_agent",
}
SMOKE = """\
import importlib.metadata, importlib.resources, sys
import corral, corral.guard.rules.loader
files = importlib.resources.files("corral")
assert (files / "py.typed").is_file() and (files / "guard" / "rules" / "compiled.bin").is_file(), "the package is incomplete"
assert "corral.guard.rules.compiler" not in sys.modules, "the build did not compile the rules"
assert importlib.metadata.metadata("corral")["License-Expression"] == "Apache-2.0"
assert any(str(path).endswith("licenses/LICENSE") for path in importlib.metadata.files("corral")), "no licence"
"""


def extras() -> list[str]:
    """Return the names of all extras. Exit with an error if an extra is not in LEAVES."""
    named = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    unknown = set(named) - set(LEAVES)
    if unknown:
        sys.exit(f"tools/release_check.py does not know what to import for: {', '.join(sorted(unknown))}")
    return named


def check(what: str, target: str, code: str) -> str:
    """Return the error of an installation, or an empty text."""
    with tempfile.TemporaryDirectory(prefix="corral-release-") as place:
        python = f"{place}/venv/bin/python"
        steps = [
            [sys.executable, "-m", "venv", f"{place}/venv"],
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", target],
            [python, "-m", "pip", "check", "--disable-pip-version-check"],
            [python, "-I", "-c", SMOKE + code],
            [f"{place}/venv/bin/corral", "--version"],
            [f"{place}/venv/bin/corral", "check", "--profile", "strict", "--", "ls"],
            [f"{place}/venv/bin/corral", "run", "--profile", "strict", "--", "echo", "hello"],
        ]
        for step in steps:
            done = subprocess.run(step, cwd=place, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{what}: {' '.join(step)}\n{done.stdout}{done.stderr}"
    return ""


def main(wanted: list[str]) -> int:
    """Try each installation, print its outcome, and return the exit code."""
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    tries = [] if wanted else [("wheel", str(wheel), ""), ("sdist", str(sdist), "")]
    tries += [(extra, f"{wheel}[{extra}]", f"import {LEAVES[extra]}\n") for extra in wanted or extras()]
    failed = 0
    for what, target, code in tries:
        wrong = check(what, target, code)
        failed += bool(wrong)
        sys.stdout.write(f"{'failed' if wrong else 'ok':6} {what}\n{wrong}")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
