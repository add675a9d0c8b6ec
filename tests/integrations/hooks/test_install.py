"""corral install and uninstall keep every other byte, refuse a file that they cannot parse, and prove the hook."""

import json
import os
import shlex
import shutil
import stat
from itertools import product
from pathlib import Path

import alone
import pytest
from sampling import sampled

from corral.integrations.hooks import json_edit
from corral.integrations.hooks.json_edit import SettingsError, parse
from corral.integrations.hooks.registry import HOSTS, command_words, hooks_in, runs_corral, settings_path

NAMES = list(HOSTS)
JSON_HOSTS = [name for name in HOSTS if HOSTS[name].entries is not None]
FILES = {
    "an empty object": "{}\n",
    "an empty file": "",
    "two spaces": '{\n  "model": "opus",\n  "env": {\n    "A": "b"\n  }\n}\n',
    "tabs and no line break at the end": '{\n\t"model": "opus",\n\t"hooks": {\n\t}\n}',
    "carriage returns": '{\r\n    "model": "opus"\r\n}\r\n',
    "one line": '{"model": "opus", "permissions": {"allow": ["Bash(ls)"]}}',
    "a byte order mark": '\ufeff{\n  "model": "opus"\n}\n',
    "letters beyond ASCII and odd spacing": '{ "név" :  "☃",\n\n   "n": 1.50e+3 }\n',
}


def place_for(name: str, home: Path) -> Path:
    return Path(settings_path(HOSTS[name], "user", "", alone.environment(home)))


def installed(path: Path) -> list[dict[str, object]]:
    data = json.loads(path.read_text(encoding="utf-8-sig"))
    return [
        hook for entries in data["hooks"].values() for entry in entries for hook in hooks_in(entry) if runs_corral(hook)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_install_is_proven_and_uninstall_leaves_no_trace(name: str, home: Path, work: Path) -> None:
    before = sorted(home.rglob("*"))
    done = alone.run("install", name, "--yes", home=home, cwd=work)
    assert done.returncode == 0, done.stderr
    held = "allows `ls`" if name == "cursor" else "runs `ls` contained"
    assert f"refuses `sudo reboot`, {held}" in done.stderr
    assert place_for(name, home).exists()
    again = alone.run("install", name, "--yes", home=home, cwd=work)
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr.startswith("Already installed; nothing changed.\n")
    gone = alone.run("uninstall", name, "--yes", home=home, cwd=work)
    assert gone.returncode == 0, gone.stderr
    left = [path for path in home.rglob("*") if path.is_file() and "audit" not in path.parts]
    assert (before, left) == ([], [])


@pytest.mark.parametrize(("name", "kind"), sampled(product(JSON_HOSTS, FILES), every=5))
def test_other_settings_stay_unchanged(name: str, kind: str, home: Path, work: Path) -> None:
    path, text = place_for(name, home), FILES[kind]
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode())
    path.chmod(0o640)
    assert alone.run("install", name, "--yes", home=home, cwd=work).returncode == 0
    written = path.read_bytes().decode()
    rest = json.loads(written.removeprefix("\ufeff"))
    assert installed(path)
    del rest["hooks"]
    was = json.loads(text.removeprefix("\ufeff") or "{}")
    assert {k: v for k, v in rest.items() if k != "version"} == {k: v for k, v in was.items() if k != "hooks"}
    kept = [line for line in text.splitlines() if line.strip(" \t{}\ufeff,")]
    assert all(line.rstrip("} \t")[: len(line) - 4] in written for line in kept)
    assert ("\r\n" in written) == ("\r\n" in text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert alone.run("uninstall", name, "--yes", home=home, cwd=work).returncode == 0
    assert path.read_bytes().decode() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_uninstall_removes_only_our_entry_from_a_changed_file(home: Path, work: Path) -> None:
    path = place_for("claude", home)
    path.parent.mkdir()
    theirs = {"matcher": "Bash", "hooks": [{"type": "command", "command": "their-guard"}]}
    path.write_text(json.dumps({"hooks": {"PreToolUse": [theirs]}, "model": "opus"}, indent=4))
    alone.run("install", "claude", "--yes", home=home, cwd=work)
    path.write_text(path.read_text().replace("opus", "sonnet"))
    alone.run("uninstall", "claude", "--yes", home=home, cwd=work)
    expected = json.dumps({"hooks": {"PreToolUse": [theirs]}, "model": "sonnet"}, indent=4)
    assert path.read_text() == expected


def test_uninstall_keeps_other_hooks_of_the_group(home: Path, work: Path) -> None:
    path = place_for("claude", home)
    path.parent.mkdir()
    ours = {"type": "command", "command": "/old/python -I -S /old/corral/integrations/hooks/program.py claude"}
    theirs = {"type": "command", "command": "their-guard"}
    path.write_text(json.dumps({"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [ours, theirs]}]}}, indent=2))
    alone.run("uninstall", "claude", "--yes", home=home, cwd=work)
    assert json.loads(path.read_text()) == {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [theirs]}]}}


@pytest.mark.parametrize(
    "old",
    [
        {"type": "command", "command": "/gone/python -I -S '/gone dir/corral/integrations/hooks/program.py' claude"},
        {"type": "command", "command": "/usr/local/bin/corral hook claude", "timeout": 5},
        {"type": "command", "command": "corral", "args": ["hook", "claude"]},
    ],
    ids=["another path", "corral hook", "in exec form"],
)
def test_older_entry_is_replaced_in_place(old: dict[str, object], home: Path, work: Path) -> None:
    path = place_for("claude", home)
    path.parent.mkdir()
    groups = [{"matcher": "Bash", "hooks": [old]}, {"matcher": "Read", "hooks": [{"type": "command", "command": "x"}]}]
    path.write_text(json.dumps({"hooks": {"PreToolUse": [*groups, groups[0]]}}, indent=2))
    assert alone.run("install", "claude", "--yes", home=home, cwd=work).returncode == 0
    first, second = json.loads(path.read_text())["hooks"]["PreToolUse"]
    assert (runs_corral(first["hooks"][0]), second) == (True, groups[1])
    assert first["hooks"][0]["command"] == alone.PYTHON
    alone.run("uninstall", "claude", "--yes", home=home, cwd=work)
    assert json.loads(path.read_text())["hooks"]["PreToolUse"] == [groups[1]]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param('{\n  "a": 1,\n}', (":3:1", ":2:9"), id="trailing comma"),
        pytest.param('{\n  "a" 1\n}', (":2:7",), id="missing colon"),
        pytest.param('{"a": 1 "b": 2}', (":1:9",), id="missing comma"),
        pytest.param('{"a": nope}', (":1:7",), id="not a value"),
        pytest.param('{"a": }', (":1:7",), id="missing value"),
        pytest.param('{"a": "x', (":1:7",), id="unterminated string"),
        pytest.param("[]", (":1:1",), id="not an object"),
        pytest.param("{}\n{}", (":2:1",), id="two objects"),
        pytest.param('{"a": 1, "a": 2}', (': duplicate key "a"',), id="duplicate key"),
        pytest.param('{\n  // mine\n  "a": 1\n}', (":2:3",), id="comment"),
        pytest.param('{"hooks": []}', (":1:11",), id="hooks is not an object"),
        pytest.param('{"hooks": {"PreToolUse": {}}}', (":1:26",), id="event is not a list"),
        pytest.param('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", (": ",), id="too deep"),
    ],
)
def test_malformed_file_is_refused_with_its_position(text: str, where: tuple[str, ...], home: Path, work: Path) -> None:
    # Python versions differ in the position of a trailing comma.
    path = place_for("claude", home)
    path.parent.mkdir()
    path.write_text(text)
    done = alone.run("install", "claude", "--yes", home=home, cwd=work)
    assert (done.returncode, done.stdout, path.read_text()) == (125, "", text)
    assert done.stderr.startswith(tuple(f"corral: {path}{position}" for position in where))


def test_invalid_utf_8_is_refused_with_its_position(home: Path, work: Path) -> None:
    path = place_for("claude", home)
    path.parent.mkdir()
    path.write_bytes(b'{\n "a": "\xff"}')
    done = alone.run("install", "claude", "--yes", home=home, cwd=work)
    assert (done.returncode, done.stderr.startswith(f"corral: {path}:2:8: ")) == (125, True)


def test_comments_stay_in_a_file_that_allows_them(home: Path, work: Path) -> None:
    path = place_for("gemini", home)
    path.parent.mkdir()
    text = '{\n  // mine, {with} "marks"\n  "a": 1 /* one, two */, // last\n  "b": [] // end\n}\n'
    path.write_text(text)
    assert alone.run("install", "gemini", "--yes", home=home, cwd=work).returncode == 0
    written = path.read_text()
    assert all(comment in written for comment in ('// mine, {with} "marks"', "/* one, two */, // last", "// end"))
    path.write_text(written + "\n")
    alone.run("uninstall", "gemini", "--yes", home=home, cwd=work)
    assert path.read_text() == text + "\n"


def test_foreign_plugin_is_left_alone(home: Path, work: Path) -> None:
    path = place_for("opencode", home)
    path.parent.mkdir(parents=True)
    path.write_text("export const Mine = async () => ({})\n")
    done = alone.run("install", "opencode", "--yes", home=home, cwd=work)
    assert (done.returncode, path.read_text()) == (125, "export const Mine = async () => ({})\n")
    assert done.stderr.startswith(f"corral: {path}:1:1: ")


def test_dry_run_shows_the_change_and_writes_nothing(home: Path, work: Path) -> None:
    done = alone.run("install", "claude", "--dry-run", home=home, cwd=work)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"--- /dev/null\n+++ {place_for('claude', home)}\n@@")
    assert list(home.iterdir()) == []


def test_without_terminal_and_yes_nothing_is_written(home: Path, work: Path) -> None:
    done = alone.run("install", "claude", home=home, cwd=work)
    assert done.returncode == 125
    assert "--yes" in done.stderr
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(("typed", "status"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1)], ids=["yes", "no", "nothing"])
def test_terminal_user_is_asked(typed: bytes, status: int, home: Path, work: Path) -> None:
    done, shown = alone.at_terminal("install", "claude", typed=typed, home=home, cwd=work)
    assert done == status
    assert '+            "onFailure": "block"' in shown
    assert "Write it? [y/N]" in shown
    assert place_for("claude", home).exists() == (status == 0)


def test_project_install_uses_the_uncommitted_file(home: Path, work: Path) -> None:
    done = alone.run("install", "claude", "--project", "--yes", home=home, cwd=work)
    assert done.returncode == 0, done.stderr
    assert installed(work / ".claude" / "settings.local.json")
    assert not place_for("claude", home).exists()
    hint = alone.run("uninstall", "claude", "--yes", home=home, cwd=work)
    assert "--project has one" in hint.stderr
    assert alone.run("uninstall", "claude", "--project", "--yes", home=home, cwd=work).returncode == 0
    assert not (work / ".claude" / "settings.local.json").exists()


@pytest.mark.parametrize("name", NAMES)
def test_every_host_can_be_installed_for_one_project(name: str, home: Path, work: Path) -> None:
    done = alone.run("install", name, "--project", "--yes", "--json", home=home, cwd=work)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["path"]) == (0, str(work / HOSTS[name].project_file)), done.stderr
    assert [check["status"] for check in facts["checks"]] == ["ok"] * (3 if name == "cursor" else 1)


def test_home_directory_is_not_a_project(home: Path) -> None:
    done = alone.run("install", "claude", "--project", "--yes", home=home, cwd=home)
    assert done.returncode == 125
    assert str(home) in done.stderr
    assert alone.run("install", "claude", "--yes", home=home, cwd=home).returncode == 0


def test_link_is_followed_for_the_user_and_refused_in_a_project(home: Path, work: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    path = place_for("claude", home)
    path.parent.mkdir()
    path.symlink_to(real)
    assert alone.run("install", "claude", "--yes", home=home, cwd=work).returncode == 0
    assert path.is_symlink()
    assert installed(real)
    (work / ".claude").mkdir()
    (work / ".claude" / "settings.local.json").symlink_to(real)
    done = alone.run("install", "claude", "--project", "--yes", home=home, cwd=work)
    assert done.returncode == 125
    assert str(real) in done.stderr


def test_user_settings_inside_the_project_are_refused(home: Path, work: Path) -> None:
    env = {"CLAUDE_CONFIG_DIR": str(work / "claude")}
    done = alone.run("install", "claude", "--yes", home=home, cwd=work, env=env)
    assert done.returncode == 125
    assert str(work) in done.stderr


@pytest.mark.parametrize(
    ("name", "variable", "file"),
    [
        ("claude", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("codex", "CODEX_HOME", "hooks.json"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
        ("opencode", "OPENCODE_CONFIG_DIR", "plugins/corral.js"),
        ("opencode", "XDG_CONFIG_HOME", "opencode/plugins/corral.js"),
        ("copilot", "COPILOT_HOME", "hooks/corral.json"),
    ],
)
def test_moved_settings_directory_is_used(name: str, variable: str, file: str, home: Path, work: Path) -> None:
    moved = home.parent / "moved"
    done = alone.run("install", name, "--yes", home=home, cwd=work, env={variable: str(moved)})
    assert done.returncode == 0, done.stderr
    assert (moved / file).exists()


def test_package_inside_a_project_is_refused(home: Path, tmp_path: Path) -> None:
    place = tmp_path / "checkout"
    shutil.copytree(alone.lib(), place / ".venv" / "lib")
    (place / "pyproject.toml").touch()
    for level, cwd in (("--user", home), ("--project", place)):
        words = [alone.PYTHON, "-I", "-S", str(place / ".venv/lib/corral/__main__.py"), "install", "claude", level]
        done = alone.subprocess.run(
            [*words, "--yes"], cwd=cwd, env=alone.environment(home), capture_output=True, text=True, check=False
        )
        assert done.returncode == 125
        assert str(place) in done.stderr
        assert "pipx install ." in done.stderr


def test_interpreter_inside_the_project_is_refused(home: Path, work: Path) -> None:
    # corral resolves a link to the system's interpreter, so the project needs a real copy.
    fake = work / "python3"
    shutil.copy(alone.PYTHON, fake)
    code = (
        "import sys; sys._base_executable = sys.argv[1]; sys.path.append(sys.argv[2]); from corral.apps.cli import main; "
        "sys.exit(main(['install', 'claude', '--yes']))"
    )
    done = alone.subprocess.run(
        [alone.PYTHON, "-I", "-S", "-c", code, str(fake), str(alone.lib())],
        cwd=work,
        env=alone.environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 125
    assert str(fake) in done.stderr


def test_world_writable_package_is_refused(home: Path, work: Path, tmp_path: Path) -> None:
    place = tmp_path / "open"
    shutil.copytree(alone.lib(), place / "lib")
    (place / "lib").chmod(0o777)
    done = alone.subprocess.run(
        [alone.PYTHON, "-I", "-S", str(place / "lib/corral/__main__.py"), "install", "claude", "--yes"],
        cwd=work,
        env=alone.environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 125
    assert f"chmod o-w {place / 'lib'}" in done.stderr


def test_command_names_the_directory_of_dependencies(home: Path, work: Path, tmp_path: Path) -> None:
    place = tmp_path / "it's apart"
    shutil.copytree(alone.lib() / "corral", place / "one" / "corral")
    for name in alone.DEPENDENCIES:
        shutil.copytree(alone.lib() / name, place / "two" / name)
    start = [alone.PYTHON, "-I", "-S", str(place / "one/corral/__main__.py"), f"--path={place / 'two'}", "install"]
    for name in NAMES:
        done = alone.subprocess.run(
            [*start, name, "--yes", "--json"],
            cwd=work,
            env=alone.environment(home),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    (hook,) = installed(place_for("codex", home))
    program = str(place / "one/corral/integrations/hooks/program.py")
    words = [alone.PYTHON, "-I", "-S", program, "codex", str(place / "two"), f"--HOME={home}"]
    assert command_words(hook) == words
    assert shlex.split(str(hook["command"]))[-len(words) :] == words


def test_file_that_changed_meanwhile_is_left_alone(home: Path, work: Path) -> None:
    from corral.integrations.hooks.install import Change, apply

    path = home / "settings.json"
    path.write_text("{} ")
    with pytest.raises(SettingsError, match=str(path)):
        apply(Change(HOSTS["claude"], "user", str(path), b"{}", b"{...}"), alone.environment(home), "")
    assert path.read_text() == "{} "


def doctor_hooks(home: Path, work: Path) -> dict[str, list[tuple[str, str]]]:
    done = alone.run("doctor", "--json", home=home, cwd=work)
    found: dict[str, list[tuple[str, str]]] = {}
    for row in json.loads(done.stdout)["checks"]:
        if row["group"] == "hooks":
            found.setdefault(row["name"], []).append((row["status"], row["found"]))
    return found


def test_doctor_proves_hooks_and_names_hosts_without(home: Path, work: Path) -> None:
    assert doctor_hooks(home, work) == {}
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text("{}")
    alone.run("install", "claude", "codex", "--yes", home=home, cwd=work)
    found = doctor_hooks(home, work)
    proof = f"refuses `sudo reboot`, runs `ls` contained: {place_for('claude', home)}"
    assert found["claude"] == [("ok", proof)]
    assert found["gemini"] == [("warn", f"Gemini CLI has no hook: {place_for('gemini', home)}")]
    assert [status for status, _ in found["codex"]] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("trusted", "mode", "statuses"),
    [
        (False, "workspace-write", ["ok", "warn"]),
        (False, "danger-full-access", ["ok", "fail"]),
        (True, "workspace-write", ["ok", "warn"]),
        (True, "danger-full-access", ["ok"]),
    ],
)
def test_doctor_reads_codexs_trust_and_sandbox_mode(
    trusted: bool, mode: str, statuses: list[str], home: Path, work: Path
) -> None:
    alone.run("install", "codex", "--yes", home=home, cwd=work)
    state = f'[hooks.state."{place_for("codex", home)}:pre_tool_use:0:0"]\ntrusted_hash = "sha256:0"\n'
    (home / ".codex" / "config.toml").write_text(f'sandbox_mode = "{mode}"\n' + state * trusted)
    assert [status for status, _ in doctor_hooks(home, work)["codex"]] == statuses


def test_doctor_notices_a_missing_interpreter(home: Path, work: Path) -> None:
    for name in JSON_HOSTS:
        alone.run("install", name, "--yes", home=home, cwd=work)
        path = place_for(name, home)
        path.write_text(path.read_text().replace(alone.PYTHON, "/gone/python3.11"))
    found = doctor_hooks(home, work)
    expected = {
        name: ("fail", f"its interpreter /gone/python3.11 is gone: {place_for(name, home)}") for name in JSON_HOSTS
    }
    assert {name: checks[0] for name, checks in found.items()} == expected


def test_doctor_notices_a_hook_that_does_not_refuse(home: Path, work: Path) -> None:
    alone.run("install", "claude", "--yes", home=home, cwd=work)
    path = place_for("claude", home)
    data = json.loads(path.read_text())
    data["hooks"]["PreToolUse"][0]["hooks"][0]["args"] = ["-c", "pass", "/x/corral/integrations/hooks/program.py"]
    path.write_text(json.dumps(data))
    assert doctor_hooks(home, work)["claude"] == [("fail", f"it did not refuse `sudo reboot`: exit code 0: {path}")]


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("claude", ".claude/settings.json", '{"disableAllHooks": true}'),
        ("gemini", ".gemini/settings.json", '{"hooksConfig": {"enabled": false}}'),
        ("copilot", ".github/copilot/settings.json", '{"disableAllHooks": true}'),
    ],
)
def test_doctor_notices_that_hooks_are_turned_off(name: str, file: str, text: str, home: Path, work: Path) -> None:
    alone.run("install", name, "--yes", home=home, cwd=work)
    (work / file).parent.mkdir(parents=True)
    (work / file).write_text(text)
    (status, found) = doctor_hooks(home, work)[name][0]
    assert (status, "turns hooks off" in found) == ("fail", True)


def test_broken_hook_makes_doctor_fail(home: Path, work: Path) -> None:
    alone.run("install", "claude", "--yes", home=home, cwd=work)
    (home / ".config" / "corral").mkdir(parents=True)
    (home / ".config" / "corral" / "policy.toml").write_text("nonsense = ")
    done = alone.run("doctor", home=home, cwd=work)
    assert done.returncode >= 1
    assert "it refuses even `ls`" in done.stdout


def test_value_is_parsed_with_its_position() -> None:
    node = parse('{"a": [1, {"b": "c"}]}', "x")
    inner = node.at("a")
    assert inner is not None
    assert (inner.value, inner.start, inner.end) == ([1, {"b": "c"}], 6, 21)
    assert json_edit.without_child('{"a": [1, {"b": "c"}]}', inner, 0) == '{"a": [{"b": "c"}]}'


def test_file_keeps_its_owner(home: Path, work: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    path = place_for("claude", home)
    path.parent.mkdir()
    path.write_text("{}")
    os.chown(path, 1234, 1234)
    assert alone.run("install", "claude", "--yes", home=home, cwd=work).returncode == 0
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1234)
