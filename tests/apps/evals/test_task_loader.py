"""Task files to tasks: defaults, both forms, and every mistake with its file, line, column and what to do."""

import json
from pathlib import Path

import pytest

import golden
from corral.apps.evals.task import Task
from corral.apps.evals.task_loader import TaskError, load

GOOD = """
[defaults]
profile = "workspace"
tags = ["all"]
files = { "a.txt" = "one" }
limits = { open_files = 50 }

[[task]]
id = "first"
tags = ["own"]
files = { "b.txt" = "two" }
limits = { processes = 20 }
argv = ["ls"]
expect = { exit_code = 0 }

[[task]]
id = "second"
profile = "strict"
shell = "ls"
expect = { stdout = "" }
"""


def written(folder: Path, text: str, name: str = "tasks.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def told(path: Path) -> list[str]:
    with pytest.raises(TaskError) as error:
        load([str(path)])
    return [line.removeprefix(f"{path}:") for line in str(error.value).split("\n")]


def test_defaults_are_merged_into_each_task(tmp_path: Path) -> None:
    first, second = load([str(written(tmp_path, GOOD))])
    assert (first.id, first.tags, first.source) == ("first", ("all", "own"), f"{tmp_path}/tasks.toml:8")
    assert first.data["files"] == {"a.txt": "one", "b.txt": "two"}
    config = first.config(str(tmp_path))
    assert (config.profile, config.limits.open_files, config.limits.processes) == ("workspace", 50, 20)
    assert second.config(str(tmp_path)).profile == "strict"


def test_json_lines_give_the_same_tasks_as_toml(tmp_path: Path) -> None:
    toml = load([str(written(tmp_path, GOOD))])
    lines = [
        {"defaults": {"profile": "workspace", "tags": ["all"], "files": {"a.txt": "one"}, "limits": {"open_files": 50}}},
        {"id": "first", "tags": ["own"], "files": {"b.txt": "two"}, "limits": {"processes": 20}, "argv": ["ls"], "expect": {"exit_code": 0}},
        {"id": "second", "profile": "strict", "shell": "ls", "expect": {"stdout": ""}},
    ]  # fmt: skip
    path = written(tmp_path, "".join(json.dumps(line) + "\n\n" for line in lines), "tasks.jsonl")
    found = load([str(path)])
    assert [(task.id, task.data, task.digest) for task in found] == [(t.id, t.data, t.digest) for t in toml]


def test_digest_depends_on_content_and_not_on_position(tmp_path: Path) -> None:
    before = load([str(written(tmp_path, GOOD))])
    moved = load([str(written(tmp_path, f"# a line more\n{GOOD}", "moved.toml"))])
    changed = load([str(written(tmp_path, GOOD.replace("one", "other"), "changed.toml"))])
    assert [task.digest for task in before] == [task.digest for task in moved]
    assert not {task.digest for task in before} & {task.digest for task in changed}


def test_directory_gives_all_task_files_below_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    written(tmp_path / "sub", GOOD)
    written(tmp_path, "nothing", "README.md")
    assert [task.id for task in load([str(tmp_path)])] == ["first", "second"]


TASK = '[[task]]\nid = "x"\nargv = ["ls"]\nexpect = { exit_code = 0 }\n'
WRONG = [
    ("no TOML", "[[task]\nid = 1", "1:7"),
    ("nothing", "", "1:1"),
    ("a stray table", f"[other]\n{TASK}", "1:1"),
    ("a single bracket", TASK.replace("[[task]]", "[task]"), "1:1"),
    ("no id", TASK.replace('id = "x"\n', ""), "1:1"),
    ("a bad id", TASK.replace('"x"', '"a b"'), "2:1"),
    ("a typo", f"{TASK}tag = ['x']", "5:1"),
    ("tags as a word", f"{TASK}tags = 'x'", "5:1"),
    ("an unknown need", f"{TASK}needs = ['mount', 'moon']", "5:19"),
    ("an unknown profile", f"{TASK}profile = 'lax'", "5:1"),
    ("an unknown limit", f"{TASK}limits = {{ cpu = 1 }}", "5:12"),
    ("a limit that is none", f"{TASK}limits = {{ cpu_seconds = 0 }}", "5:12"),
    ("no call", TASK.replace('argv = ["ls"]\n', ""), "1:1"),
    ("two calls in one", f"{TASK}shell = 'ls'", "1:1"),
    ("argv as text", TASK.replace('["ls"]', '"ls"'), "3:1"),
    ("nothing expected", TASK.replace("{ exit_code = 0 }", "{}"), "1:1"),
    ("an unknown expectation", TASK.replace("exit_code", "exitcode"), "4:12"),
    ("an exit code in words", TASK.replace("= 0", "= 'no'"), "4:12"),
    ("an unknown decision", TASK.replace("exit_code = 0", "decision = 'no'"), "4:12"),
    ("a bad pattern", TASK.replace("exit_code = 0", "stdout = { regex = '(' }"), "4:23"),
    ("an unknown match", TASK.replace("exit_code = 0", "stdout = { has = 'x' }"), "4:23"),
    ("a state that is none", TASK.replace("exit_code = 0", "files = { 'a' = 'gone' }"), "4:22"),
    ("a file outside", f"{TASK}files = {{ '../a' = 'x' }}", "5:11"),
    ("a file in a file", f"{TASK}files = {{ a = 'x', 'a/b' = 'y' }}", "5:20"),
    ("two kinds of file", f"{TASK}files = {{ a = {{ text = 'x', link = 'y' }} }}", "5:11"),
    ("a mode that is none", f"{TASK}files = {{ a = {{ text = 'x', mode = '9' }} }}", "5:29"),
    ("no base64", f"{TASK}files = {{ a = {{ base64 = '%' }} }}", "5:17"),
    ("an id twice", f"{TASK}\n{TASK}", "7:1"),
    ("defaults with an id", f"[defaults]\nid = 'x'\n{TASK}", "2:1"),
    ("calls and argv", f"{TASK}calls = [ {{ argv = ['ls'] }} ]", "3:1"),
    ("a transaction that ends in no way", f"{TASK}transaction = 'keep'", "5:1"),
    ("changes of none", TASK.replace("exit_code = 0", "changes = {}"), "4:12"),
    ("conflicts of a discard", f"{TASK.replace('exit_code = 0', 'conflicts = []')}transaction = 'discard'", "4:12"),
    ("conflicts as a word", f"{TASK.replace('exit_code = 0', 'conflicts = 1')}transaction = 'apply'", "4:12"),
    ("changes as a list", f"{TASK.replace('exit_code = 0', 'changes = []')}transaction = 'apply'", "4:12"),
    ("a change that is none", TASK.replace("exit_code = 0", "changes = { a = 'renamed' }") + "transaction = 'apply'", "4:24"),
    ("changes outside", TASK.replace("exit_code = 0", "changes = { '../a' = 'added' }") + "transaction = 'apply'", "4:24"),
    ("meanwhile of none", f"{TASK}meanwhile = {{ a = 'x' }}", "5:1"),
    ("meanwhile as text", f"{TASK}transaction = 'apply'\nmeanwhile = 'x'", "6:1"),
    ("changes of a call", "[[task]]\nid = 'x'\ntransaction = 'apply'\n[[task.calls]]\nargv = ['ls']\nexpect = { changes = {} }", "6:12"),
    ("a call without words", '[[task]]\nid = "x"\n[[task.calls]]\ncwd = "a"', "3:1"),
]  # fmt: skip


def check_wording(path: Path, name: str) -> str:
    """Return the position of the first mistake, and compare all messages with the golden file."""
    found = told(path)
    golden.check("eval-task-errors", name, "\n".join(found).replace(str(path.parent), "{folder}"))
    return found[0].partition(": ")[0]


@pytest.mark.parametrize(
    ("name", "text", "position"), [pytest.param(name, text, at, id=name) for name, text, at in WRONG]
)
def test_mistake_is_reported_with_its_position(tmp_path: Path, name: str, text: str, position: str) -> None:
    assert check_wording(written(tmp_path, text), name) == position


@pytest.mark.parametrize(
    ("name", "line", "position"),
    [
        ("no JSON", '{"id": "x"', "2:11"),
        ("a list", "[]", "2:1"),
        ("argv as text", '{"id": "x", "argv": "ls", "expect": {"exit_code": 0}}', "2:13"),
        ("files that are none", '{"id": "x", "argv": ["ls"], "expect": {"files": 1}}', "2:40"),
        (
            "an example of the task itself",
            '{"id": "x", "argv": ["ls"], "files": {"/, as in: x": ""}, "expect": {"exit_code": 0}}',
            "2:39",
        ),
        ("a typo", '{"id": "x", "argv": ["ls"], "expect": {"exitcode": 0}}', "2:40"),
        ("a key twice", '{"id": "x", "argv": ["ls"], "expect": {"exit_code": 0, "exit_code": 1}}', "2:1"),
    ],
)
def test_mistake_in_a_json_line_is_reported_with_its_position(
    tmp_path: Path, name: str, line: str, position: str
) -> None:
    good = '{"id": "good", "argv": ["ls"], "expect": {"exit_code": 0}}'
    path = written(tmp_path, f"{good}\n{line}\n{good.replace('good', 'other')}\n", "tasks.jsonl")
    assert check_wording(path, f"JSON: {name}") == position


def test_all_mistakes_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    written(tmp_path, f"{TASK}tag = 1\nprofil = 2", "a.toml")
    written(tmp_path, "x", "b.jsonl")
    with pytest.raises(TaskError) as error:
        load([str(tmp_path), str(tmp_path / "none.toml"), "/etc/hostname"])
    lines = str(error.value).split("\n")
    assert [line.split(": ")[0] for line in lines] == [
        f"{tmp_path}/a.toml:5:1",
        f"{tmp_path}/a.toml:6:1",
        f"{tmp_path}/b.jsonl:1:1",
        f"{tmp_path}/none.toml",
        "/etc/hostname:1:1",
    ]


def test_file_given_twice_is_read_once(tmp_path: Path) -> None:
    path = written(tmp_path, TASK)
    (tmp_path / "link.toml").symlink_to(path)
    assert [task.id for task in load([str(tmp_path), str(path), f"{tmp_path}/./{path.name}"])] == ["x"]


def test_directory_of_a_task_may_contain_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, f"{TASK}files = {{ a = {{ directory = true, mode = '700' }}, 'a/b' = 'y' }}")
    assert [task.id for task in load([str(path)])] == ["x"]


@pytest.mark.parametrize("name", ["tasks.toml", "tasks.jsonl"])
def test_byte_order_mark_is_accepted(tmp_path: Path, name: str) -> None:
    text = TASK if name.endswith(".toml") else '{"id": "x", "argv": ["ls"], "expect": {"exit_code": 0}}'
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert [task.id for task in load([str(tmp_path / name)])] == ["x"]


def test_bytes_that_are_not_utf_8_are_reported_with_their_position(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"# fine\n# \xff\n")
    assert told(path) == ["2:3: this is not UTF-8"]


def test_task_without_calls_is_its_own_call(tmp_path: Path) -> None:
    assert Task("a", {"id": "a", "argv": ["ls"]}).calls == ({"id": "a", "argv": ["ls"]},)
