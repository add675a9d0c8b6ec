"""Task files to tasks: defaults, both forms, and every mistake with its file, line, column and what to do."""

import json
from pathlib import Path

import pytest

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


def test_defaults_are_joined_with_what_a_task_says(tmp_path: Path) -> None:
    first, second = load([str(written(tmp_path, GOOD))])
    assert (first.id, first.tags, first.source) == ("first", ("all", "own"), f"{tmp_path}/tasks.toml:8")
    assert first.data["files"] == {"a.txt": "one", "b.txt": "two"}
    config = first.config(str(tmp_path))
    assert (config.profile, config.limits.open_files, config.limits.processes) == ("workspace", 50, 20)
    assert second.config(str(tmp_path)).profile == "strict"


def test_lines_of_json_are_tasks_too(tmp_path: Path) -> None:
    toml = load([str(written(tmp_path, GOOD))])
    lines = [
        {"defaults": {"profile": "workspace", "tags": ["all"], "files": {"a.txt": "one"}, "limits": {"open_files": 50}}},
        {"id": "first", "tags": ["own"], "files": {"b.txt": "two"}, "limits": {"processes": 20}, "argv": ["ls"], "expect": {"exit_code": 0}},
        {"id": "second", "profile": "strict", "shell": "ls", "expect": {"stdout": ""}},
    ]  # fmt: skip
    path = written(tmp_path, "".join(json.dumps(line) + "\n\n" for line in lines), "tasks.jsonl")
    found = load([str(path)])
    assert [(task.id, task.data, task.digest) for task in found] == [(t.id, t.data, t.digest) for t in toml]


def test_a_digest_changes_with_the_task_and_not_with_its_place(tmp_path: Path) -> None:
    before = load([str(written(tmp_path, GOOD))])
    moved = load([str(written(tmp_path, f"# a line more\n{GOOD}", "moved.toml"))])
    changed = load([str(written(tmp_path, GOOD.replace("one", "other"), "changed.toml"))])
    assert [task.digest for task in before] == [task.digest for task in moved]
    assert not {task.digest for task in before} & {task.digest for task in changed}


def test_a_directory_is_all_task_files_below_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    written(tmp_path / "sub", GOOD)
    written(tmp_path, "nothing", "README.md")
    assert [task.id for task in load([str(tmp_path)])] == ["first", "second"]


TASK = '[[task]]\nid = "x"\nargv = ["ls"]\nexpect = { exit_code = 0 }\n'
WRONG = [
    ("no TOML", "[[task]\nid = 1", "1:7: this is not TOML: Expected ']]' at the end of an array declaration"),
    ("nothing", "", "1:1: there is no [[task]] in this file"),
    ("a stray table", f"[other]\n{TASK}", "1:1: unknown key 'other'; a task file has [defaults] and [[task]]"),
    ("a single bracket", TASK.replace("[[task]]", "[task]"), "1:1: tasks are written as [[task]]"),
    ("no id", TASK.replace('id = "x"\n', ""), '1:1: a task needs an id, as in: id = "reads-a-file"'),
    ("a bad id", TASK.replace('"x"', '"a b"'), "2:1: id must be up to 200 letters"),
    ("a typo", f"{TASK}tag = ['x']", "5:1: a task has no 'tag', did you mean 'tags'?; known: id, about"),
    ("tags as a word", f"{TASK}tags = 'x'", '5:1: tags must be a list of words, as in: tags = ["one"]'),
    ("an unknown need", f"{TASK}needs = ['mount', 'moon']", "5:19: 'moon' is no layer; known: user, mount"),
    ("an unknown profile", f"{TASK}profile = 'lax'", "5:1: profile 'lax' is unknown; choose one of strict, workspace"),
    ("an unknown limit", f"{TASK}limits = {{ cpu = 1 }}", "5:12: limits has no 'cpu'"),
    ("a limit that is none", f"{TASK}limits = {{ cpu_seconds = 0 }}", "5:12: limits.cpu_seconds must be a whole number"),
    ("no call", TASK.replace('argv = ["ls"]\n', ""), "1:1: argv or shell is missing"),
    ("two calls in one", f"{TASK}shell = 'ls'", "1:1: give argv or shell, not both"),
    ("argv as text", TASK.replace('["ls"]', '"ls"'), '3:1: argv must be a list of strings, as in: argv = ["ls", "-l"]'),
    ("nothing expected", TASK.replace("{ exit_code = 0 }", "{}"), "1:1: a task expects something"),
    ("an unknown expectation", TASK.replace("exit_code", "exitcode"), "4:12: expect has no 'exitcode', did you mean 'exit_code'?"),
    ("an exit code in words", TASK.replace("= 0", "= 'no'"), "4:12: exit_code must be a whole number, not 'no'"),
    ("an unknown decision", TASK.replace("exit_code = 0", "decision = 'no'"), "4:12: decision must be one of allow, ask, deny, not 'no'"),
    ("a bad pattern", TASK.replace("exit_code = 0", "stdout = { regex = '(' }"), "4:23: '(' is no regular expression"),
    ("an unknown match", TASK.replace("exit_code = 0", "stdout = { has = 'x' }"), "4:23: stdout has no 'has'"),
    ("a state that is none", TASK.replace("exit_code = 0", "files = { 'a' = 'gone' }"), "4:22: a file exists or absent"),
    ("a file outside", f"{TASK}files = {{ '../a' = 'x' }}", "5:11: the name of a file is relative"),
    ("a file in a file", f"{TASK}files = {{ a = 'x', 'a/b' = 'y' }}", "5:20: 'a' is a file here, so 'a/b' cannot lie in it"),
    ("two kinds of file", f"{TASK}files = {{ a = {{ text = 'x', link = 'y' }} }}", "5:11: give one of text, base64, link and directory"),
    ("a mode that is none", f"{TASK}files = {{ a = {{ text = 'x', mode = '9' }} }}", "5:29: mode must be an octal number"),
    ("no base64", f"{TASK}files = {{ a = {{ base64 = '%' }} }}", "5:17: this is not base64"),
    ("an id twice", f"{TASK}\n{TASK}", "7:1: the id 'x' is taken by "),
    ("defaults with an id", f"[defaults]\nid = 'x'\n{TASK}", "2:1: defaults has no 'id'"),
    ("calls and argv", f"{TASK}calls = [ {{ argv = ['ls'] }} ]", "3:1: with calls, argv belongs to each of them"),
    ("a transaction that ends in no way", f"{TASK}transaction = 'keep'", "5:1: transaction must be one of apply, discard, undo, not 'keep'"),
    ("changes of none", TASK.replace("exit_code = 0", "changes = {}"), "4:12: changes are a transaction's: add transaction = \"apply\""),
    ("conflicts of a discard", f"{TASK.replace('exit_code = 0', 'conflicts = []')}transaction = 'discard'", "4:12: conflicts come of applying"),
    ("conflicts as a word", f"{TASK.replace('exit_code = 0', 'conflicts = 1')}transaction = 'apply'", "4:12: conflicts must be a list of words, not 1"),
    ("changes as a list", f"{TASK.replace('exit_code = 0', 'changes = []')}transaction = 'apply'", "4:12: changes must be a table, as in: changes = { \"a.txt\" = \"added\" }"),
    ("a change that is none", TASK.replace("exit_code = 0", "changes = { a = 'renamed' }") + "transaction = 'apply'", "4:24: a change is one of added, changed, deleted, mode, link, time, or renamed from a path, not 'renamed'"),
    ("changes outside", TASK.replace("exit_code = 0", "changes = { '../a' = 'added' }") + "transaction = 'apply'", "4:24: the name of a file is relative"),
    ("meanwhile of none", f"{TASK}meanwhile = {{ a = 'x' }}", "5:1: meanwhile is what changes beside a transaction"),
    ("meanwhile as text", f"{TASK}transaction = 'apply'\nmeanwhile = 'x'", "6:1: meanwhile must be a table"),
    ("changes of a call", "[[task]]\nid = 'x'\ntransaction = 'apply'\n[[task.calls]]\nargv = ['ls']\nexpect = { changes = {} }", "6:12: expect has no 'changes'"),
    ("a call without words", '[[task]]\nid = "x"\n[[task.calls]]\ncwd = "a"', "3:1: argv or shell is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [pytest.param(text, words, id=name) for name, text, words in WRONG])
def test_a_mistake_is_told_with_its_place_and_what_to_do(tmp_path: Path, text: str, words: str) -> None:
    found = told(written(tmp_path, text))
    assert any(line.startswith(words) for line in found), found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param('{"id": "x"', "2:11: this is not JSON: Expecting ',' delimiter", id="no JSON"),
        pytest.param("[]", "2:1: a line is one task, an object", id="a list"),
        pytest.param(
            '{"id": "x", "argv": "ls", "expect": {"exit_code": 0}}',
            '2:13: argv must be a list of strings, as in: "argv": ["ls", "-l"]',
            id="argv as text",
        ),
        pytest.param(
            '{"id": "x", "argv": ["ls"], "expect": {"files": 1}}',
            '2:40: files must be a table, as in: "files": {"a.txt": "exists"}',
            id="files that are none",
        ),
        pytest.param(
            '{"id": "x", "argv": ["ls"], "files": {"/, as in: x": ""}, "expect": {"exit_code": 0}}',
            "2:39: the name of a file is relative, without empty parts, . and .., not '/, as in: x'",
            id="an example of the task's own",
        ),
        pytest.param(
            '{"id": "x", "argv": ["ls"], "expect": {"exitcode": 0}}',
            "2:40: expect has no 'exitcode'",
            id="a typo",
        ),
        pytest.param(
            '{"id": "x", "argv": ["ls"], "expect": {"exit_code": 0, "exit_code": 1}}',
            "2:1: this is not JSON: the key 'exit_code' is given twice",
            id="a key twice",
        ),
    ],
)
def test_a_mistake_in_a_line_is_told_with_its_place(tmp_path: Path, line: str, words: str) -> None:
    good = '{"id": "good", "argv": ["ls"], "expect": {"exit_code": 0}}'
    (found,) = told(written(tmp_path, f"{good}\n{line}\n{good.replace('good', 'other')}\n", "tasks.jsonl"))
    assert found.startswith(words)


def test_all_mistakes_of_all_files_are_told_at_once(tmp_path: Path) -> None:
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
    assert lines[-1].endswith("a task file ends in .toml or .jsonl")


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    path = written(tmp_path, TASK)
    (tmp_path / "link.toml").symlink_to(path)
    assert [task.id for task in load([str(tmp_path), str(path), f"{tmp_path}/./{path.name}"])] == ["x"]


def test_a_directory_may_hold_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, f"{TASK}files = {{ a = {{ directory = true, mode = '700' }}, 'a/b' = 'y' }}")
    assert [task.id for task in load([str(path)])] == ["x"]


@pytest.mark.parametrize("name", ["tasks.toml", "tasks.jsonl"])
def test_a_byte_order_mark_is_no_mistake(tmp_path: Path, name: str) -> None:
    text = TASK if name.endswith(".toml") else '{"id": "x", "argv": ["ls"], "expect": {"exit_code": 0}}'
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert [task.id for task in load([str(tmp_path / name)])] == ["x"]


def test_what_is_not_utf_8_is_told_by_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"# fine\n# \xff\n")
    assert told(path) == ["2:3: not UTF-8"]


def test_a_task_is_plain_data(tmp_path: Path) -> None:
    assert Task("a", {"id": "a", "argv": ["ls"]}).calls == ({"id": "a", "argv": ["ls"]},)
