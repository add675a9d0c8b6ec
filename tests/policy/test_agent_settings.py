"""An agent in the sandbox can write its settings, but not the files in them that run later outside."""

from pathlib import Path

import pytest

from corral import Containment, Sandbox, SandboxConfig
from corral.policy.agent_profiles import agent_names, load_agent

RUNS_LATER = {
    "aider": ".aider/oauth-keys.env",
    "claude": ".claude/local/claude",
    "codex": ".codex/config.toml",
    "copilot": ".copilot/pkg/linux/index.js",
    "gemini": ".gemini/tmp/bin/rg",
    "jupyter": ".ipython/profile_default/startup/00-first.py",
    "opencode": ".local/share/opencode/bin/server",
    "pi": ".pi/agent/extensions/mine.ts",
}


@pytest.mark.parametrize(("agent", "path"), RUNS_LATER.items(), ids=RUNS_LATER)
def test_settings_that_run_programs_are_read_only(
    agent: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    settings = next(home / own for own in load_agent(agent).settings if path.startswith(f"{own}/"))
    for name in (home / path, settings / "plain"):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("as it was\n")
    above = (home / path).parent
    (project / "forge").write_text(
        f"echo forged >{settings}/plain; echo forged >{home / path}; mv {home / path} {settings}/x; mv {above} {above}-x\n"
    )
    monkeypatch.setenv("HOME", str(home))
    config = SandboxConfig(str(project), profile="workspace", containment=Containment(settings=(str(settings),)))
    with Sandbox(config) as box:
        assert box.run(["sh", "forge"]).enforcement == "full"
    assert (settings / "plain").read_text() == "forged\n"
    assert (home / path).read_text() == "as it was\n"


def test_target_of_a_link_in_the_settings_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, project = tmp_path / "home" / ".claude", tmp_path / "project"
    project.mkdir()
    (settings / "shared").mkdir(parents=True)
    (settings / "shared" / "hook").write_text("as it was\n")
    (settings / "hooks").symlink_to("shared")
    (settings / "skills").symlink_to("nowhere")
    (project / "forge").write_text(
        f"echo forged >{settings}/shared/hook; touch {settings}/plain; mv {settings}/shared {settings}/x\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = SandboxConfig(str(project), profile="workspace", containment=Containment(settings=(str(settings),)))
    with Sandbox(config) as box:
        assert box.run(["sh", "forge"]).enforcement == "full"
    assert (settings / "hooks" / "hook").read_text() == "as it was\n"
    assert (settings / "plain").exists()


def box_with(home: Path, *settings: Path) -> Sandbox:
    project = home.parent / "project"
    project.mkdir(exist_ok=True)
    granted = Containment(settings=tuple(map(str, settings)))
    return Sandbox(SandboxConfig(str(project), profile="workspace", containment=granted))


def settings_of(agent: str, home: Path) -> list[Path]:
    made = [home / own for own in load_agent(agent).settings]
    for path in made:
        path.mkdir(parents=True, exist_ok=True)
    return made


@pytest.mark.parametrize("agent", agent_names())
def test_new_settings_that_run_programs_are_quarantined(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for settings in settings_of(agent, home):
        planted = [settings / name for name in load_agent(agent).kept]
        with box_with(home, settings) as box:
            (home.parent / "project" / "plant").write_text(
                f"for name in {' '.join(load_agent(agent).kept)} plain/x; do mkdir -p {settings}/$name; echo x >{settings}/$name/x; done\n"
            )
            result = box.run(["sh", "plant"])
        assert (settings / "plain" / "x" / "x").exists(), result
        assert [path for path in planted if path.exists()] == []
        reported = {v.target: v.detail for v in result.violations if v.kind == "planted"}
        more = reported.pop(str(home.parent / "project"), "0 more")  # at most twenty paths are listed
        assert len(reported) + int(more.split()[0]) == len(planted)
        assert set(reported) <= set(map(str, planted))
        assert all("corral-quarantine" in detail for detail in reported.values())


def test_empty_directory_is_not_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    (settings,) = settings_of("copilot", home)
    with box_with(home, settings) as box:
        (home.parent / "project" / "make").write_text(f"mkdir {settings}/installed-plugins\n")
        result = box.run(["sh", "make"])
    assert (settings / "installed-plugins").is_dir(), result
    assert [v for v in result.violations if v.kind == "planted"] == []


@pytest.mark.parametrize("agent", [name for name in agent_names() if load_agent(name).session])
def test_session_directories_are_private_to_each_run(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    settings = settings_of(agent, home)
    first, *others = [home / own for own in load_agent(agent).session]
    first.mkdir(parents=True, exist_ok=True)
    (first / "outside").write_text("as it was\n")
    lines = [f"ls {first}", *(f"echo forged >{path}/outside && cat {path}/outside" for path in (first, *others))]
    with box_with(home, *settings) as box:
        (home.parent / "project" / "forge").write_text("\n".join([*lines, f"mv {first} {first}-x"]))
        result = box.run(["sh", "forge"])
    assert result.stdout.split() == [b"forged"] * (1 + len(others)), result
    assert (first / "outside").read_text() == "as it was\n"
    assert [path for path in others if list(path.iterdir())] == []
    assert not first.with_name(f"{first.name}-x").exists()


def test_link_in_place_of_a_session_directory_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    (settings,) = settings_of("claude", home)
    (settings / "elsewhere").mkdir()
    (settings / "shell-snapshots").symlink_to("elsewhere")
    with box_with(home, settings) as box:
        (home.parent / "project" / "make").write_text(f"touch {settings}/shell-snapshots/x; touch {settings}/plain\n")
        result = box.run(["sh", "make"])
    assert list((settings / "elsewhere").iterdir()) == [], result
    assert (settings / "plain").exists()
