"""Checks that every host record is complete, and that the hook, the guard and the policy know every host."""

import ast
import json
from pathlib import Path

import pytest
from hosting import PACKAGE, Owner

from corral.guard.path_zones import classify_path
from corral.guard.rules.compiler import HOST_FIELDS
from corral.guard.rules.loader import hosts, places
from corral.integrations.hooks.protocol import _EVENTS, SHELL, Answer
from corral.integrations.hooks.registry import HOSTS, settings_path, start_words
from corral.policy.settings import ASKING_HOSTS

FOLDER = PACKAGE / "integrations" / "hooks" / "hosts"
GOLDEN = Path(__file__).parent / "golden"
REQUIRED = ("name", "title", "tools", "event", "folder", "file", "project_file", "protected", "private", "notes")


@pytest.mark.parametrize("name", HOSTS)
def test_record_has_every_part(name: str) -> None:
    host = HOSTS[name]
    assert host.name == name
    assert [field for field in REQUIRED if not getattr(host, field)] == []
    assert host.questions in ("person", "nobody", "unknown")
    assert (host.entries is None) == bool(host.plugin), "a host has settings entries or a plugin"
    assert (GOLDEN / f"{name}.json").is_file()
    if host.plugin:
        assert "const COMMAND = []\n" in (FOLDER / host.plugin).read_text()


@pytest.mark.parametrize("name", HOSTS)
def test_entries_run_the_command_for_the_shell_event(name: str) -> None:
    entries = HOSTS[name].entries
    if entries is not None:
        made = entries(["/usr/bin/python3", "-I", "it's"])
        hook = made[HOSTS[name].event]
        (inner,) = hook.get("hooks", [hook])
        assert all(word in " ".join(start_words(inner)) for word in ("/usr/bin/python3", "-I", "it"))


@pytest.mark.parametrize("name", HOSTS)
def test_host_reads_its_own_shell_payload(name: str) -> None:
    host = HOSTS[name]
    call = host.read(host.payload(host.event, {"command": "ls"}, "/work"), {})
    assert call is not None
    assert (call.kind, call.text, call.cwd, call.rewrites) == (SHELL, "ls", "/work", host.rewrites)
    refusal = host.render(Answer("deny", "a reason"), call)
    assert (refusal.status, refusal.stderr, "a reason" in refusal.stdout) == (2, "a reason\n", True)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("other", HOSTS)
def test_host_never_allows_another_hosts_call_unconfined(name: str, other: str, tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    record = HOSTS[other]
    call = record.payload(record.event, {"command": "ls"}, str(owner.root))
    if call.get("hook_event_name", "PreToolUse") not in _EVENTS:
        pytest.skip("no other host sends this event, so this host cannot load their hooks")
    done = owner.hook(name, json.dumps(call).encode())
    assert done.returncode == 2 or b"/bin/corral go " in done.stdout or name == other == "cursor"


@pytest.mark.parametrize("name", HOSTS)
def test_agents_cannot_write_or_read_the_hosts_settings(name: str) -> None:
    host = HOSTS[name]
    for file in (host.project_file, *host.switch_files):
        assert classify_path(f"/work/project/{file}", "/work/project", "/home/user") == "protected"
    path = settings_path(host, "user", "", {"HOME": "/home/user"})
    assert classify_path(path, "/work/project", "/home/user") == "secret"


@pytest.mark.parametrize("name", HOSTS)
def test_compiled_rules_contain_the_hosts_fields(name: str) -> None:
    host, table = HOSTS[name], places()
    assert hosts()[name] == {"title": host.title, "questions": host.questions}
    for field, place in (("protected", "protected"), ("private", "secret_home"), ("notes", "host_notes")):
        assert set(getattr(host, field)) <= set(table[place])
    assert set(host.secrets) <= set(table["host_secrets"])
    assert (name in ASKING_HOSTS) == (host.questions != "nobody")


@pytest.mark.parametrize("name", HOSTS)
def test_fields_that_the_compiler_reads_are_literals(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    (record,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HOST"
    )
    assert isinstance(record, ast.Call)
    fields = {keyword.arg: keyword.value for keyword in record.keywords}
    assert {field: ast.literal_eval(fields[field]) for field in HOST_FIELDS} == {
        field: getattr(HOSTS[name], field) for field in HOST_FIELDS
    }


def test_every_module_of_the_folder_is_a_host() -> None:
    assert [*HOSTS] == sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__") == [*hosts()]
