"""Tests of the remembered layers: only full success counts, under the same conditions, and nothing weakens if it is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral import Sandbox, SandboxConfig
from corral.containment import layers
from corral.containment.probe_cache import ProbeCache

WANTED = layers.wanted("off")
CONTROLLERS = ("pids", "memory", "cpu")

# In a user namespace that allows no network namespace, an entry says that all layers hold.
STALE_PROGRAM = """
import json, os, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Containment, Limits, Sandbox, SandboxConfig
from corral.containment import layers
from corral.containment.kernel import limits
from corral.containment.probe_cache import ProbeCache
from corral.model.errors import ContainmentError

found = {}
with open("/proc/sys/user/max_net_namespaces", "w") as file:
    file.write("0")
config = SandboxConfig(sys.argv[2])
counted = limits.counted(config.limits)
controllers = [name for name, limit in limits.CONTROLLED.items() if limit in counted]
def entry():
    return ProbeCache(layers.wanted("off"), controllers, os.environ, sys.argv[2])
entry().keep(tuple(layers.LAYERS), {})
found["claimed"] = "net" in entry().held
with Sandbox(config) as box:
    result = box.run(["true"])
    found["strict"] = [result.exit_code, result.enforcement, "net" in result.missing_layers]
found["kept"] = bool(entry().held)
print(json.dumps(found))
"""


def cache(root: Path, home: Path, wanted: tuple[str, ...] = WANTED) -> ProbeCache:
    return ProbeCache(wanted, CONTROLLERS, {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}, str(root))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path / "home"


def test_full_success_is_remembered(project: Path, home: Path) -> None:
    assert (cache(project, home).held, cache(project, home).places) == ((), {})
    cache(project, home).keep(WANTED, {"pids": (2, "/sys/fs/cgroup/x")})
    again = cache(project, home)
    assert (again.held, again.places) == (tuple(sorted(WANTED)), {"pids": (2, "/sys/fs/cgroup/x")})


@pytest.mark.parametrize("missing", [name for name in WANTED if layers.LAYERS[name].probe is not None])
def test_machine_without_a_layer_is_tried_each_time(project: Path, home: Path, missing: str) -> None:
    cache(project, home).keep([name for name in WANTED if name != missing], {})
    assert cache(project, home).held == ()


def test_entry_for_fewer_layers_is_not_used_for_more(project: Path, home: Path) -> None:
    cache(project, home, layers.wanted("on")).keep(layers.wanted("on"), {})
    assert cache(project, home).held == ()


def test_forgotten_entry_is_gone(project: Path, home: Path) -> None:
    cache(project, home).keep(WANTED, {})
    known = cache(project, home)
    assert known.forget()
    assert not known.forget()
    assert (known.held, cache(project, home).held) == ((), ())


@pytest.mark.parametrize("content", [b"", b"damaged", b"\xe7" * 80, b"N", b"("])
def test_damaged_entry_counts_as_missing(project: Path, home: Path, content: bytes) -> None:
    cache(project, home).keep(WANTED, {})
    (entry,) = (home / "cache" / "corral" / "probes").iterdir()
    entry.write_bytes(content)
    assert cache(project, home).held == ()


def test_entry_that_commands_could_write_is_not_used(home: Path) -> None:
    cache(home, home).keep(WANTED, {})
    assert cache(home, home).held == ()
    assert not (home / "cache" / "corral" / "probes").exists()


def test_entry_that_others_could_write_is_not_used(project: Path, home: Path) -> None:
    cache(project, home).keep(WANTED, {})
    (home / "cache" / "corral" / "probes").chmod(0o777)
    assert cache(project, home).held == ()


def test_second_sandbox_uses_the_entry(project: Path) -> None:
    with Sandbox(SandboxConfig(str(project))) as box:
        first = box.run(["true"])
    with Sandbox(SandboxConfig(str(project))) as box:
        second = box.run(["true"])
        probes = box._state.containment.probes
        assert probes is not None
        assert set(probes.held) == (set(WANTED) if first.enforcement == "full" else set())
    assert (second.enforcement, second.missing_layers) == (first.enforcement, first.missing_layers)


def test_wrong_entry_leads_to_a_new_trial(project: Path, home: Path) -> None:
    argv = ["unshare", "--user", "--map-root-user", sys.executable, "-c", STALE_PROGRAM]
    environ = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PATH": os.environ["PATH"]}
    ended = subprocess.run(
        [*argv, ":".join(sys.path), str(project)], check=False, capture_output=True, text=True, env=environ
    )
    if "unshare" in ended.stderr or "PermissionError" in ended.stderr:
        pytest.skip("no user namespace can be made here")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found == {"claimed": True, "strict": [0, "partial", True], "kept": False}
