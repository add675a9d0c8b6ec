"""Valid and invalid configs."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import golden
from corral.guard.rules.loader import DEFAULT_DENYLIST, DEFAULT_INTERPRETER_BLOCK, parse_profile, profile_named
from corral.model.call import Decision
from corral.model.errors import CorralError, PolicyError
from corral.policy.config import DEFAULT_ENV_ALLOWLIST, Audit, Containment, Limits, Output, SandboxConfig


def test_default_is_the_strict_profile_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SandboxConfig() == SandboxConfig(
        project_root=str(tmp_path),
        max_output_bytes=64 * 1024,
        timeout_seconds=30.0,
        denylist=DEFAULT_DENYLIST,
        interpreter_block=DEFAULT_INTERPRETER_BLOCK,
        profile="strict",
        env_allowlist=DEFAULT_ENV_ALLOWLIST,
        containment=Containment(),
        limits=Limits(),
        output=Output(),
        audit=Audit(),
    )


def test_root_is_resolved_once_through_symlinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    config = SandboxConfig(project_root="link")
    monkeypatch.chdir("/")
    (tmp_path / "link").unlink()
    assert config.project_root == str(tmp_path / "real")


def test_path_object_is_a_root(tmp_path: Path) -> None:
    assert SandboxConfig(project_root=tmp_path).project_root == str(tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys, iter])
def test_any_collection_of_names_is_accepted(kind: Any, tmp_path: Path) -> None:
    config = SandboxConfig(str(tmp_path), denylist=kind(["rm", "mkfs.*"]), interpreter_block=kind(["python"]))
    assert (config.denylist, config.interpreter_block) == (frozenset({"rm", "mkfs.*"}), frozenset({"python"}))


def test_empty_denylist_differs_from_the_default(tmp_path: Path) -> None:
    assert SandboxConfig(str(tmp_path), denylist=()).denylist == frozenset()
    assert SandboxConfig(str(tmp_path), denylist=None).denylist == DEFAULT_DENYLIST


def test_default_denylist_covers_every_family() -> None:
    families = {
        "delete": {"rm", "rmdir", "shred", "unlink"},
        "disk": {"mkfs.*", "dd", "fdisk"},
        "privilege": {"sudo", "su", "doas", "pkexec"},
        "permission": {"chmod", "chown"},
        "process": {"kill", "pkill", "killall"},
        "power": {"shutdown", "reboot", "halt", "poweroff"},
        "network": {"curl", "wget", "nc", "ssh"},
        "firewall": {"iptables"},
        "scheduler": {"crontab", "at"},
        "module": {"insmod", "modprobe"},
        "mount": {"mount", "umount"},
        "container": {"docker", "nsenter"},
        "evaluate": {"eval", "exec", "source"},
    }
    missing = {family: names - DEFAULT_DENYLIST for family, names in families.items() if names - DEFAULT_DENYLIST}
    assert missing == {}


def test_profile_can_be_a_record(tmp_path: Path) -> None:
    mine = parse_profile("mine", {"effects": {"code": "ask"}, "groups": {"delete": "allow"}})
    config = SandboxConfig(str(tmp_path), profile=mine)
    assert (config.rules, config.rules.effects["code"], config.rules.effects["network"]) == (
        mine,
        Decision.ASK,
        Decision.DENY,
    )
    assert "rm" not in (config.denylist or ())


def test_both_built_in_profiles_exist(tmp_path: Path) -> None:
    for name, contained in (("strict", False), ("workspace", True)):
        assert SandboxConfig(str(tmp_path), profile=name).rules == profile_named(name)
        assert profile_named(name).needs_containment is contained


def test_timeout_can_be_none(tmp_path: Path) -> None:
    assert SandboxConfig(str(tmp_path), timeout_seconds=None).timeout_seconds is None


def test_config_is_an_immutable_value(tmp_path: Path) -> None:
    config = SandboxConfig(str(tmp_path))
    assert config == SandboxConfig(str(tmp_path))
    assert config.replace(timeout_seconds=1).timeout_seconds == 1
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(AttributeError, match="frozen"):
        config.profile = "workspace"  # type: ignore[misc]


REFUSED = [
    ("project_root", "/does/not/exist"),
    ("project_root", "/"),
    ("project_root", None),
    ("project_root", 3),
    ("project_root", b"/usr"),
    ("project_root", ""),
    ("project_root", "a\0b"),
    ("max_output_bytes", -1),
    ("max_output_bytes", 1.5),
    ("max_output_bytes", True),
    ("max_output_bytes", "64"),
    ("timeout_seconds", 0),
    ("timeout_seconds", -1),
    ("timeout_seconds", float("nan")),
    ("timeout_seconds", float("inf")),
    ("timeout_seconds", True),
    ("timeout_seconds", "30"),
    ("denylist", "rm"),
    ("denylist", b"rm"),
    ("denylist", ["/bin/rm"]),
    ("denylist", ["rm "]),
    ("denylist", [""]),
    ("denylist", [3]),
    ("denylist", 3),
    ("denylist", [[]]),
    ("interpreter_block", "python"),
    ("interpreter_block", ["./python"]),
    ("env_allowlist", "PATH"),
    ("env_allowlist", None),
    ("profile", "lax"),
    ("profile", None),
    ("profile", ["strict"]),
    ("containment", None),
    ("limits", {}),
    ("output", "both"),
    ("audit", True),
    ("asking", 45),
]


@pytest.mark.parametrize(("field", "value"), [pytest.param(*case, id=f"{case[0]} {case[1]!r}") for case in REFUSED])
def test_invalid_value_is_an_error_with_the_field_name(field: str, value: object, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"project_root": str(tmp_path)} | {field: value}
    with pytest.raises(PolicyError) as caught:
        SandboxConfig(**choices)
    assert field in str(caught.value)
    golden.check("policy-errors", f"config: {field}={value!r}", str(caught.value))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Containment(backend="docker"), "containment.backend"),
        (lambda: Containment(network="maybe"), "containment.network"),
        (lambda: Containment(project="none"), "containment.project"),
        (lambda: Containment(read=("relative",)), "containment.read"),
        (lambda: Containment(write="/tmp"), "containment.write"),
        (lambda: Limits(cpu_seconds=0), "limits.cpu_seconds"),
        (lambda: Limits(memory_bytes=-1), "limits.memory_bytes"),
        (lambda: Limits(memory_bytes=1.5), "limits.memory_bytes"),
        (lambda: Limits(memory_bytes=0.0), "limits.memory_bytes"),
        (lambda: Limits(disk_bytes=0.5), "limits.disk_bytes"),  # type: ignore[arg-type]
        (lambda: Limits(processes=True), "limits.processes"),
        (lambda: Limits(open_files=1.5), "limits.open_files"),  # type: ignore[arg-type]
        (lambda: Output(keep="middle"), "output.keep"),
        (lambda: Audit(required="yes"), "audit.required"),
        (lambda: Output(silence_seconds=-1), "output.silence_seconds"),
        (lambda: Output(drain_seconds=0), "output.drain_seconds"),
    ],
)
def test_invalid_table_field_is_named_with_its_table(make: Any, field: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(field)):
        make()


def test_policy_error_is_a_value_error_and_a_corral_error() -> None:
    assert issubclass(PolicyError, ValueError)
    assert issubclass(PolicyError, CorralError)


def test_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    with pytest.raises(PolicyError, match="project_root"):
        SandboxConfig(os.fspath(file))


def test_new_profile_replaces_default_lists_only(tmp_path: Path) -> None:
    strict = SandboxConfig(str(tmp_path))
    workspace = SandboxConfig(str(tmp_path), profile="workspace")
    assert workspace.replace(profile="strict") == strict
    assert strict.replace(profile="workspace") == workspace
    assert strict.replace(denylist={"x"}).replace(profile="workspace").denylist == frozenset({"x"})


@pytest.mark.parametrize("value", ["/etc", None, 3, ("relative",), ("/",), ("/a\0b",)])
def test_grant_takes_only_absolute_paths(value: object) -> None:
    with pytest.raises(PolicyError, match=r"containment\.read"):
        Containment(read=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), 0, -1, True])
def test_timeout_out_of_range_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(PolicyError, match="timeout_seconds"):
        SandboxConfig(str(tmp_path), timeout_seconds=value)
