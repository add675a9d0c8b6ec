"""An agent's own settings, which it may write: what in them would run later outside the sandbox cannot be changed from inside."""

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
}


@pytest.mark.parametrize(("agent", "path"), RUNS_LATER.items(), ids=RUNS_LATER)
def test_what_an_agent_would_run_outside_stays_as_it_is(
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


def test_what_a_link_in_the_settings_leads_to_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_an_agent_would_run_outside_and_was_not_there_is_moved_away(
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
        told = {v.target: v.detail for v in result.violations if v.kind == "planted"}
        more = told.pop(str(home.parent / "project"), "0 more")  # who plants many is told of twenty
        assert len(told) + int(more.split()[0]) == len(planted)
        assert set(told) <= set(map(str, planted))
        assert all("corral-quarantine" in detail for detail in told.values())


def test_an_empty_directory_that_an_agent_makes_for_its_owner_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    (settings,) = settings_of("copilot", home)
    with box_with(home, settings) as box:
        (home.parent / "project" / "make").write_text(f"mkdir {settings}/installed-plugins\n")
        result = box.run(["sh", "make"])
    assert (settings / "installed-plugins").is_dir(), result
    assert [v for v in result.violations if v.kind == "planted"] == []


@pytest.mark.parametrize("agent", [name for name in agent_names() if load_agent(name).session])
def test_what_another_of_the_agent_runs_from_is_each_runs_own(
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


def test_a_link_in_place_of_what_is_each_runs_own_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
