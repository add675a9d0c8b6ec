"""The message about a missing extra contains the install command for corral's own environment."""

from pathlib import Path

import pytest

from corral.integrations.extras import MissingExtraError, install_command, missing_extra
from golden import check

PYTHON = "/home/me/tools/corral/bin/python"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        pytest.param("pyvenv.cfg", "home = /usr/bin\n", f"{PYTHON} -m pip install 'corral[mcp]'", id="venv"),
        pytest.param("nothing", "", f"{PYTHON} -m pip install 'corral[mcp]'", id="no environment"),
        pytest.param("pipx_metadata.json", "{}", "pipx runpip corral install 'corral[mcp]'", id="pipx"),
        pytest.param("uv-receipt.toml", "[tool]\n", f"uv pip install --python {PYTHON} 'corral[mcp]'", id="uv tool"),
        pytest.param(
            "pyvenv.cfg", "home = /x\nuv = 0.9.1\n", f"uv pip install --python {PYTHON} 'corral[mcp]'", id="uv venv"
        ),
        pytest.param("pyvenv.cfg", "home = /opt/uv\n", f"{PYTHON} -m pip install 'corral[mcp]'", id="uv in a path"),
    ],
)
def test_install_command_fits_the_environment(tmp_path: Path, file: str, text: str, expected: str) -> None:
    prefix = tmp_path / "corral"
    prefix.mkdir()
    (prefix / file).write_text(text)
    assert install_command("mcp", str(prefix), PYTHON) == expected


def test_install_command_quotes_spaces(tmp_path: Path) -> None:
    prefix = tmp_path / "corral beta"
    prefix.mkdir()
    assert install_command("mcp", str(prefix), "/my tools/python") == "'/my tools/python' -m pip install 'corral[mcp]'"
    (prefix / "pipx_metadata.json").touch()
    assert install_command("mcp", str(prefix), "/x") == "pipx runpip 'corral beta' install 'corral[mcp]'"


def test_nested_missing_extra_is_reported_once() -> None:
    inner = missing_extra("minisweagent", ModuleNotFoundError("No module named 'x'", name="x"))
    outer = MissingExtraError("corral demo agent", "demo", inner)
    check("mcp", "missing extra, reported by two integrations", str(outer).replace(install_command("demo"), "COMMAND"))


def test_wrong_version_is_reported() -> None:
    error = missing_extra("mcp", ImportError("cannot import name 'MCPServer' from 'mcp.server'", name="mcp.server"))
    check("mcp", "extra of another version", str(error).replace(install_command("mcp"), "COMMAND"))
