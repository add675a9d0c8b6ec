"""The message about a missing extra: one sentence, and the command that fits how corral was installed."""

from pathlib import Path

import pytest

from corral.integrations.extras import MissingExtraError, install_command, missing_extra

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
def test_the_command_fits_the_installation(tmp_path: Path, file: str, text: str, expected: str) -> None:
    prefix = tmp_path / "corral"
    prefix.mkdir()
    (prefix / file).write_text(text)
    assert install_command("mcp", str(prefix), PYTHON) == expected


def test_names_with_spaces_can_be_pasted(tmp_path: Path) -> None:
    prefix = tmp_path / "corral beta"
    prefix.mkdir()
    assert install_command("mcp", str(prefix), "/my tools/python") == "'/my tools/python' -m pip install 'corral[mcp]'"
    (prefix / "pipx_metadata.json").touch()
    assert install_command("mcp", str(prefix), "/x") == "pipx runpip 'corral beta' install 'corral[mcp]'"


def test_an_error_that_passes_two_integrations_is_one_sentence() -> None:
    inner = missing_extra("minisweagent", ModuleNotFoundError("No module named 'x'", name="x"))
    outer = MissingExtraError("corral demo agent", "demo", inner)
    assert (
        str(outer)
        == f"corral demo agent needs the Python package x, which is not installed. Run: {install_command('demo')}"
    )


def test_another_version_is_said() -> None:
    error = missing_extra("mcp", ImportError("cannot import name 'MCPServer' from 'mcp.server'", name="mcp.server"))
    said = "corral[mcp] needs another version of mcp.server (cannot import name 'MCPServer' from 'mcp.server'). Run: "
    assert str(error) == said + install_command("mcp")
