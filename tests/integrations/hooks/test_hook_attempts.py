"""Calls that looked harmless to an early version of the hook, but not to the host that runs them."""

import json
import marshal
import os
import re
import subprocess
from pathlib import Path

import pytest
from hosting import PACKAGE, Owner

from corral.policy import user_dirs
from corral.policy.answers.pending_calls import PendingCall

SHOW = """
for line in open("/proc/self/mountinfo"):
    _, _, _, source, target = line.split()[:5]
    if target == "/tmp":
        print(source)
"""


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    made = Owner(tmp_path)
    (made.root / "deep" / "a" / "b").mkdir(parents=True)
    (made.root / "link").symlink_to(made.root / "deep" / "a" / "b")
    (made.root / "note").symlink_to(made.home / ".claude" / "plans" / "a" / "b")
    return made


def claude(owner: Owner, tool: str, path: object) -> bool:
    """Say whether the hook refuses a file tool of Claude Code."""
    payload = {"hook_event_name": "PreToolUse", "cwd": str(owner.root), "tool_name": tool}
    done = owner.hook("claude", json.dumps(payload | {"tool_input": {"file_path": str(path)}}).encode())
    return done.returncode == 2


def patched(owner: Owner, host: str, patch: str) -> bool:
    """Say whether the hook refuses a patch."""
    payload = {
        "codex": {"hook_event_name": "PreToolUse", "turn_id": "1", "tool_input": {"command": patch}},
        "opencode": {"tool_input": {"patchText": patch}},
    }
    whole = payload[host] | {"cwd": str(owner.root), "tool_name": "apply_patch"}
    return owner.hook(host, json.dumps(whole).encode()).returncode == 2


@pytest.mark.parametrize(("host", "key"), [("opencode", "workdir"), ("gemini", "dir_path"), ("gemini", "directory")])
@pytest.mark.parametrize("folder", ["../.ssh", "HOME/.ssh", "HOME", "/etc", "sub", "."])
def test_agent_cannot_choose_the_project_by_directory(host: str, key: str, folder: str, owner: Owner) -> None:
    # Neither is a repository below the project: an agent could create one to escape the policy above it.
    (owner.root / "sub" / ".git").mkdir(parents=True)
    event = {"hook_event_name": "BeforeTool", "tool_name": "run_shell_command"}
    envelope = {"cwd": str(owner.root), **(event if host == "gemini" else {"tool_name": "bash"})}
    given = {"command": "ls", key: owner.placed(folder)}
    done = owner.hook(host, json.dumps(envelope | {"tool_input": given}).encode(), GEMINI_PROJECT_DIR="")
    assert done.returncode == 2 or [call.root for call in pending_calls(owner)] == [str(owner.root)]
    assert done.returncode == 0 or folder not in ("sub", ".")


def pending_calls(owner: Owner) -> list[PendingCall]:
    """Return the calls that the hook has rewritten."""
    return [PendingCall(*marshal.loads(file.read_bytes())[2:]) for file in (owner.state / "pending").iterdir()]


@pytest.mark.parametrize("name", ["HOME", "XDG_CONFIG_HOME"])
def test_project_environment_cannot_move_the_users_files(name: str, owner: Owner, tmp_path: Path) -> None:
    # Some hosts load the project's .env file into their environment, and the agent may have written it.
    owner.policy('[[rule]]\ncommand = "ls"\ndecision = "deny"\nreason = "not here"\ndeny = ["ls"]\n')
    call = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
    payload = json.dumps(call | {"cwd": str(owner.root)}).encode()
    elsewhere = str(tmp_path / "elsewhere")
    unpinned = owner.hook("claude", payload, **{name: elsewhere})
    assert b"not here" not in unpinned.stdout + unpinned.stderr
    pinned = owner.hook("claude", payload, *user_dirs.directory_options(owner.environ), **{name: elsewhere})
    assert b"not here" in pinned.stdout + pinned.stderr
    assert not Path(elsewhere).exists() or name == "HOME"


def test_rewritten_command_keeps_the_users_directories(owner: Owner, tmp_path: Path) -> None:
    call = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "echo kept"}}
    payload = json.dumps(call | {"cwd": str(owner.root)}).encode()
    moved = {"XDG_STATE_HOME": str(tmp_path / "elsewhere")}
    said = owner.hook("claude", payload, *user_dirs.directory_options(owner.environ), **moved)
    command = json.loads(said.stdout)["hookSpecificOutput"]["updatedInput"]["command"]
    done = subprocess.run(
        ["bash", "-c", command], cwd=owner.root, env=owner.environ | moved, capture_output=True, check=False
    )
    assert done.stdout == b"kept\n"
    assert b"echo kept" in next(owner.state.rglob("log.jsonl")).read_bytes()
    assert not (tmp_path / "elsewhere").exists()


def test_tmpdir_in_the_project_is_not_used(owner: Owner) -> None:
    """The user's TMPDIR can lead into the project already when corral is installed."""
    (owner.root / "corral.toml").write_text('[containment]\nscratch = "sandbox"\n')
    (owner.root / "show.py").write_text(SHOW)
    (owner.root / "tmp").mkdir(mode=0o700)
    inside = {"TMPDIR": str(owner.root / "tmp")}
    call = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "python3 show.py"}}
    payload = json.dumps(call | {"cwd": str(owner.root)}).encode()
    said = owner.hook("claude", payload, *user_dirs.directory_options(dict(owner.environ) | inside), **inside)
    command = json.loads(said.stdout)["hookSpecificOutput"]["updatedInput"]["command"]
    done = subprocess.run(
        ["bash", "-c", command], cwd=owner.root, env=owner.environ | inside, capture_output=True, check=False
    )
    assert re.search(rb"/corral-[0-9]+-[0-9a-f]+/tmp$", done.stdout.strip()), done
    assert os.fsencode(owner.root.name + "/tmp/") not in done.stdout
    assert list((owner.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("own", ["", "own-tmp"])
def test_tmpdir_is_fixed_at_installation(own: str, owner: Owner, tmp_path: Path) -> None:
    """Some hosts load the project's .env file, which must not choose the directory of the next sandbox."""
    (owner.root / "corral.toml").write_text('[containment]\nscratch = "sandbox"\n')
    (owner.root / "show.py").write_text(SHOW)
    (owner.root / "tmp").mkdir()
    at_installation = dict(owner.environ) | {"TMPDIR": str(tmp_path / own) if own else ""}
    (tmp_path / "own-tmp").mkdir(mode=0o700)
    polluted = {"TMPDIR": str(tmp_path / "own-tmp" if not own else owner.root / "tmp")}
    call = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "python3 show.py"}}
    payload = json.dumps(call | {"cwd": str(owner.root)}).encode()
    said = owner.hook("claude", payload, *user_dirs.directory_options(at_installation), **polluted)
    command = json.loads(said.stdout)["hookSpecificOutput"]["updatedInput"]["command"]
    done = subprocess.run(
        ["bash", "-c", command], cwd=owner.root, env=owner.environ | polluted, capture_output=True, check=False
    )
    # mountinfo shows the source of a mount relative to the root of its file system.
    assert re.search(rb"/corral-[0-9]+-[0-9a-f]+/tmp$", done.stdout.strip()), done
    assert (b"/own-tmp/" in done.stdout) == bool(own)


@pytest.mark.parametrize("tool", ["Read", "Write"])
def test_dotdot_is_judged_lexically_and_through_links(tool: str, owner: Owner) -> None:
    assert claude(owner, tool, owner.root / "link" / ".." / ".." / ".ssh" / "id_rsa")
    assert claude(owner, tool, "link/../../.ssh/id_rsa")
    assert not claude(owner, tool, "link/../file")


def test_dotdot_out_of_the_hosts_notes_is_refused(owner: Owner) -> None:
    assert claude(owner, "Write", owner.root / "note" / ".." / ".." / ".claude" / "CLAUDE.md")
    assert not claude(owner, "Write", owner.home / ".claude" / "plans" / "plan.md")


@pytest.mark.parametrize(
    "name", ["guard/evaluate.py", "integrations/hooks/program.py", "guard/__pycache__/evaluate.cpython-311.pyc"]
)
def test_file_tools_cannot_write_corral_itself(name: str, owner: Owner) -> None:
    # This must hold wherever corral is installed: in the project, or in a world-writable directory.
    assert claude(owner, "Write", PACKAGE / name)
    assert not claude(owner, "Read", PACKAGE / name)


@pytest.mark.parametrize("host", ["codex", "opencode"])
@pytest.mark.parametrize(
    "header",
    [
        "*** Add File:HOME/.bashrc",
        "*** Add File: a\v/../../.bashrc",
        "*** Add File: a\u2028/../../.bashrc",
        "*** Update File: link/../../.bashrc",
        " *** Add File:\tHOME/.bashrc\r",
    ],
)
def test_patch_headers_are_read_as_every_host_reads_them(host: str, header: str, owner: Owner) -> None:
    patch = "*** Begin Patch\n*** Add File: harmless\n+x\n{}\n+x\n*** End Patch\n"
    assert patched(owner, host, patch.format(owner.placed(header)))
    assert not patched(owner, host, patch.format("*** Add File: other"))


@pytest.mark.parametrize("key", ["file_path", "absolute_path"])
def test_every_path_key_of_a_tool_is_judged(key: str, owner: Owner) -> None:
    given = {"file_path": "harmless", "absolute_path": "harmless"} | {key: str(owner.home / ".ssh" / "id_rsa")}
    payload = {"hook_event_name": "BeforeTool", "cwd": str(owner.root), "tool_name": "read_file", "tool_input": given}
    assert owner.hook("gemini", json.dumps(payload).encode()).returncode == 2


def many(owner: Owner, pattern: str) -> bool:
    """Say whether the hook refuses to read files by a pattern."""
    given = {"include": ["harmless", owner.placed(pattern)]}
    payload = {"hook_event_name": "BeforeTool", "cwd": str(owner.root), "tool_name": "read_many_files"}
    return owner.hook("gemini", json.dumps(payload | {"tool_input": given}).encode()).returncode == 2


@pytest.mark.parametrize(
    "pattern",
    ["src/**/*.ts", "*", "**", "ROOT/src/*.py", "app/[id]/page.tsx", "!dist/**", "src/{a,b}/*.md", "/etc/hostname"],
)
def test_pattern_inside_the_project_is_allowed(pattern: str, owner: Owner) -> None:
    assert not many(owner, pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *("HOME/.s*/id_rsa", "HOME/**", "/**", "../*", "~/*/id_rsa", "way/**", "src/*/../../../.ssh/*"),
        *("{/etc,src}/*", "{src,/etc}/*", "@(src|/etc)/*", "{..,src}/*", "/etc/[s]hadow"),
    ],
)
def test_pattern_outside_the_project_is_refused(pattern: str, owner: Owner) -> None:
    (owner.root / "way").symlink_to("/etc")
    assert many(owner, pattern)


@pytest.mark.parametrize("name", [".m2/settings.xml", ".m2/repository/.env"])
def test_file_tools_read_a_grant_without_the_credentials_in_it(name: str, owner: Owner) -> None:
    (owner.home / ".m2" / "repository").mkdir(parents=True)
    (owner.home / ".m2" / "repository" / "a.pom").touch()
    owner.policy('[containment]\nread = ["~/.m2"]\n')
    assert not claude(owner, "Read", owner.home / ".m2" / "repository" / "a.pom")
    assert not many(owner, "HOME/.m2/**")
    (owner.home / name).touch()
    assert claude(owner, "Read", owner.home / name)
    assert many(owner, "HOME/.m2/**")
    assert not claude(owner, "Read", owner.home / ".m2" / "repository" / "a.pom")


@pytest.mark.parametrize("piece", ["r", "m -rf src", "ls", "\n", "y"])
def test_text_typed_into_a_session_is_never_just_allowed(piece: str, owner: Owner) -> None:
    arguments = json.dumps({"sessionId": "1", "input": piece})
    payload = {"cwd": str(owner.root), "toolName": "write_bash", "toolArgs": arguments}
    said = json.loads(owner.hook("copilot", json.dumps(payload).encode()).stdout)
    assert said["permissionDecision"] in ("ask", "deny")


@pytest.mark.parametrize("mark", ["package.json", ".git", "corral.toml"])
def test_project_mark_below_does_not_escape_the_policy(mark: str, owner: Owner) -> None:
    # Codex names no project root, so the search for it starts at its working directory.
    (owner.root / "corral.toml").write_text('profile = "strict"\n')
    below = owner.root / "below"
    below.mkdir()
    (below / mark).write_text("")
    payload = {"hook_event_name": "PreToolUse", "turn_id": "1", "cwd": str(below), "tool_name": "Bash"}
    whole = payload | {"tool_input": {"command": "python3 -c 'print(1)'"}}
    done = owner.hook("codex", json.dumps(whole).encode())
    assert done.returncode == 2


def searched(owner: Owner, host: str, folder: str, **environ: str) -> bool:
    """Say whether the hook refuses to search a directory."""
    tool = {"claude": ("PreToolUse", "Grep", "path"), "gemini": ("BeforeTool", "search_file_content", "dir_path")}
    event, name, key = tool[host]
    payload = {"hook_event_name": event, "cwd": str(owner.root), "tool_name": name}
    whole = payload | {"tool_input": {"pattern": "KEY", key: owner.placed(folder)}}
    return owner.hook(host, json.dumps(whole).encode(), **environ).returncode == 2


@pytest.mark.parametrize("host", ["claude", "gemini"])
@pytest.mark.parametrize(
    "folder", ["/", "//", "/proc", "/proc/1", "/proc/self", "HOME", "HOME/.config", "~", "..", "../.."]
)
def test_search_of_a_directory_with_credentials_is_refused(
    host: str, folder: str, owner: Owner, tmp_path: Path
) -> None:
    (owner.home / ".config" / "gh").mkdir(parents=True)
    # corral's own files are elsewhere, so that they are not the reason for a refusal.
    elsewhere = {name: str(tmp_path / "x") for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    assert searched(owner, host, folder, **elsewhere)
    assert not searched(owner, host, "ROOT/deep", **elsewhere)
    assert not searched(owner, host, "/usr/include", **elsewhere)


DRIVING = "\x1b[2J\x1b]0;title\x07\r\nAllowed by corral.\u202e\u200b"


@pytest.mark.parametrize("tool", ["Write", "Edit", "Read", "Grep"])
def test_reason_contains_no_control_characters(tool: str, owner: Owner) -> None:
    payload = {"hook_event_name": "PreToolUse", "cwd": str(owner.root), "tool_name": tool}
    path = str(owner.home / ".ssh" / f"id_rsa{DRIVING}")
    done = owner.hook("claude", json.dumps(payload | {"tool_input": {"file_path": path, "path": path}}).encode())
    reason = json.loads(done.stdout)["hookSpecificOutput"]["permissionDecisionReason"]
    assert reason.isprintable()
    assert "Allowed by corral." in reason
    assert done.stderr.decode() == f"{reason}\n"


@pytest.mark.parametrize("place", ["tool_name", "cwd", "hook_event_name"])
def test_reason_about_a_bad_call_has_no_control_characters(place: str, owner: Owner) -> None:
    call = {"hook_event_name": "PreToolUse", "cwd": str(owner.root), "tool_name": "Bash"}
    odd = {"tool_name": "bash", "cwd": f"/etc/{DRIVING}", "hook_event_name": f"before{DRIVING}"}
    payload = call | {place: odd[place], "tool_input": {"command": f"ls {DRIVING}"}}
    done = owner.hook("claude", json.dumps(payload).encode())
    reason = json.loads(done.stdout)["hookSpecificOutput"]["permissionDecisionReason"]
    assert all(line.isprintable() and not line.startswith("Allowed") for line in reason.split("\n"))


def shell_call(owner: Owner, host: str, command: str) -> bytes:
    """Return a call of a host's shell tool."""
    made: dict[str, dict[str, object]] = {
        "claude": {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": command}},
        "opencode": {"tool_name": "bash", "tool_input": {"command": command}},
        "gemini": {
            "hook_event_name": "BeforeTool",
            "tool_name": "run_shell_command",
            "tool_input": {"command": command},
        },
        "cursor": {"hook_event_name": "beforeShellExecution", "command": command, "workspace_roots": [str(owner.root)]},
    }
    return json.dumps(made[host] | {"cwd": str(owner.root)}).encode()


@pytest.mark.parametrize("host", ["claude", "opencode", "gemini", "cursor"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BASH_ENV", "./start.sh"),
        ("BASH_ENV", "ROOT/start.sh"),
        ("BASH_ENV", "$HOME/project/start.sh"),
        ("BASH_ENV", "$(./start.sh)"),
        ("BASH_ENV", "`./start.sh`"),
        ("ENV", "~/project/start.sh"),
        ("ZDOTDIR", "ROOT/deep"),
        ("SHELL", "ROOT/bash"),
        ("LD_PRELOAD", "/usr/lib/x.so:ROOT/evil.so"),
        ("LD_AUDIT", "./evil.so"),
        ("LD_LIBRARY_PATH", "/usr/lib:ROOT/link"),
    ],
)
def test_shell_variable_that_names_a_project_file_refuses(host: str, name: str, value: str, owner: Owner) -> None:
    # Some hosts load the project's .env into their environment, and pass it to every shell.
    given = value.replace("ROOT", str(owner.root))
    # The loader reports a missing library on stderr and continues.
    done = owner.hook(host, shell_call(owner, host, "ls"), **{name: given})
    assert (done.returncode, name.encode() in done.stderr) == (2, True)


def test_bash_env_runs_a_project_file_without_corral(owner: Owner) -> None:
    (owner.root / "start.sh").write_text("touch started\n")
    command = ["bash", "-c", "true"]
    subprocess.run(command, env=owner.environ | {"BASH_ENV": "./start.sh"}, cwd=owner.root, check=True)
    assert (owner.root / "started").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHELL", "/bin/bash"),
        ("BASH_ENV", "/etc/bash.bashrc"),
        ("ENV", "$HOME/.shinit"),
        ("ENV", "production"),
        ("ZDOTDIR", "HOME/.config/zsh"),
        ("LD_LIBRARY_PATH", "/usr/lib:"),
        ("LD_PRELOAD", ""),
    ],
)
def test_shell_variables_outside_the_project_are_allowed(name: str, value: str, owner: Owner) -> None:
    given = value if value.startswith("$") else owner.placed(value)
    assert owner.hook("claude", shell_call(owner, "claude", "ls"), **{name: given}).returncode == 0


@pytest.mark.parametrize(
    ("shell", "is_refused"),
    [
        (None, False),
        ("bash", False),
        ("/bin/bash", False),
        ("/usr/bin/zsh", False),
        ("ROOT/bash", True),
        ("./bash", True),
        (["bash"], True),
    ],
)
def test_codex_shell_must_be_a_system_shell(shell: object, is_refused: bool, owner: Owner) -> None:
    named = shell.replace("ROOT", str(owner.root)) if isinstance(shell, str) else shell
    call = {"hook_event_name": "PreToolUse", "turn_id": "1", "cwd": str(owner.root), "tool_name": "Bash"}
    done = owner.hook("codex", json.dumps(call | {"tool_input": {"command": "ls", "shell": named}}).encode())
    assert (done.returncode == 2) is is_refused


GLOBBERS = {
    "claude": {"hook_event_name": "PreToolUse", "tool_name": "Glob"},
    "gemini": {"hook_event_name": "BeforeTool", "tool_name": "glob"},
    "cursor": {"hook_event_name": "preToolUse", "tool_name": "Glob"},
    "opencode": {"tool_name": "glob"},
    "copilot": {"toolName": "glob"},
}


def globbed(owner: Owner, host: str, **given: str) -> int:
    """Send a call of the host's file-name search; return the hook's exit code."""
    tool = {key: owner.placed(value) for key, value in given.items()}
    where = {"cwd": str(owner.root)} | ({"workspace_roots": [str(owner.root)]} if host == "cursor" else {})
    asked = {"toolArgs": json.dumps(tool)} if host == "copilot" else {"tool_input": tool}
    return owner.hook(host, json.dumps(GLOBBERS[host] | where | asked).encode()).returncode


@pytest.mark.parametrize("host", GLOBBERS)
def test_glob_is_judged_by_the_directory_of_its_pattern(host: str, owner: Owner) -> None:
    owner.state.mkdir(parents=True)
    refused = [
        "HOME/.local/state/corral/trials/*",
        "HOME/.ssh/*",
        "../.ssh/id_*",
        "~/.ssh/*",
        "HOME/**",
        "/*",
        "{a,/etc}/*",
        "*/../../.ssh/*",
    ]
    allowed = ["**/*.py", "src/*.{ts,tsx}", "ROOT/src/**", "/usr/include/*.h", "deep/a/*", "*"]
    said = {pattern: globbed(owner, host, pattern=pattern) for pattern in (*refused, *allowed)}
    assert said == dict.fromkeys(refused, 2) | dict.fromkeys(allowed, 0)
    assert globbed(owner, host, pattern="../../.ssh/*", path="deep") == 2
    assert globbed(owner, host, pattern="../x/*", path="deep") == 0
