"""A command's environment: an allowlist, a clean PATH, and no credentials or loader variables by pattern."""

import pytest

from corral.policy.config import DEFAULT_ENV_ALLOWLIST
from corral.runtime.environment import DEFAULT_PATH, HostEnvironment, clean_path, overlay, scrub

HOST = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/u",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "LC_TIME": "de_DE.UTF-8",
    "TERM": "xterm",
    "TZ": "UTC",
    "TMPDIR": "/tmp",
    "USER": "u",
    "AWS_SECRET_ACCESS_KEY": "s",
    "GITHUB_TOKEN": "t",
    "SSH_AUTH_SOCK": "/run/agent",
    "LD_PRELOAD": "/evil.so",
    "LD_LIBRARY_PATH": "/evil",
    "PYTHONPATH": "/evil",
    "PYTHONSTARTUP": "/evil.py",
    "BASH_ENV": "/evil.sh",
    "BASH_FUNC_ls%%": "() { evil; }",
    "NODE_OPTIONS": "--require=/evil.js",
}


def test_default_allowlist_passes_only_harmless_variables() -> None:
    assert scrub(HOST, DEFAULT_ENV_ALLOWLIST) == {
        name: HOST[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", "LC_TIME", "TERM", "TZ", "TMPDIR")
    }


@pytest.mark.parametrize(
    ("allowlist", "names"),
    [
        pytest.param({"USER"}, {"USER"}, id="an exact name"),
        pytest.param({"LC_*"}, {"LC_ALL", "LC_TIME"}, id="a pattern"),
        pytest.param({"LC"}, set(), id="a prefix without a star"),
        pytest.param({"*"}, set(HOST) - {n for n in HOST if n.startswith(("LD_", "PYTHON", "BASH_", "NODE_OPTIONS"))}
                     - {"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK"}, id="everything but loaders and credentials"),
        pytest.param({"GITHUB_*", "AWS_*", "SSH_*"}, set(), id="credentials do not pass by pattern"),
        pytest.param({"LD_*", "PYTHON*"}, set(), id="loader variables do not pass by pattern"),
        pytest.param({"GITHUB_TOKEN", "PYTHONPATH"}, {"GITHUB_TOKEN", "PYTHONPATH"}, id="exact names pass"),
        pytest.param(set(), set(), id="nothing"),
    ],
)  # fmt: skip
def test_allowlist_selects_variables(allowlist: set[str], names: set[str]) -> None:
    assert scrub({k: v for k, v in HOST.items() if k != "PATH"}, allowlist) == {
        "PATH": DEFAULT_PATH,
        **{name: HOST[name] for name in names - {"PATH"}},
    }


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        pytest.param("/usr/bin:/bin", "/usr/bin:/bin", id="clean"),
        pytest.param(":/usr/bin", "/usr/bin", id="an empty first entry"),
        pytest.param("/usr/bin:", "/usr/bin", id="an empty last entry"),
        pytest.param("/usr/bin::/bin", "/usr/bin:/bin", id="an empty entry between"),
        pytest.param(".:/usr/bin", "/usr/bin", id="the current directory"),
        pytest.param("bin:./x:../y:/bin", "/bin", id="relative entries"),
        pytest.param("~/bin:/bin", "/bin", id="a tilde, which is not expanded"),
        pytest.param("", DEFAULT_PATH, id="empty"),
        pytest.param(".:bin", DEFAULT_PATH, id="nothing but relative entries"),
    ],
)
def test_path_variable_has_only_absolute_entries(path: str, clean: str) -> None:
    assert clean_path(path) == clean


def test_call_env_overrides_and_its_path_is_cleaned() -> None:
    assert overlay({"PATH": "/bin", "A": "1"}, {"A": "2", "PATH": ".:/usr/bin", "B": "3"}) == {
        "PATH": "/usr/bin",
        "A": "2",
        "B": "3",
    }


def test_change_of_the_host_environment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = HostEnvironment({"CORRAL_TEST"})
    monkeypatch.setenv("CORRAL_TEST", "one")
    first = environment.scrubbed()
    assert (first["CORRAL_TEST"], environment.scrubbed()) == ("one", first)
    monkeypatch.setenv("CORRAL_TEST", "two")
    assert environment.scrubbed()["CORRAL_TEST"] == "two"
    monkeypatch.delenv("CORRAL_TEST")
    assert environment.scrubbed() == {"PATH": DEFAULT_PATH}
