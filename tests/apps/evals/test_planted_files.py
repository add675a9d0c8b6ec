"""Commands plant links, pipes and journals where `corral eval` and `corral view` write. corral follows and believes none of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral import Sandbox
from corral.apps.evals.journal import place
from corral.apps.evals.outcome import Outcome
from corral.apps.evals.task_loader import load
from corral.apps.output_files import OutputDirectory
from corral.policy.user_dirs import PROJECT_MARKS

OUTPUTS = ("results.jsonl", "junit.xml", "summary.json")
TASK = '[[task]]\nid = "must-fail"\nargv = ["false"]\nexpect = { exit_code = 0 }\n'


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user."""
    path = tmp_path / "victim"
    path.write_text("as it was\n")
    return path


@pytest.fixture
def tasks(project: Path) -> Path:
    """A task file with one task, which fails."""
    (project / "tasks").mkdir()
    (project / "tasks" / "a.toml").write_text(TASK)
    return project / "tasks"


def corral(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "corral", *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def plant(box: Sandbox, code: str) -> None:
    """Run code in the sandbox."""
    result = box.run([sys.executable, "-c", f"import os\n{code}"])
    assert (result.exit_code, result.violations) == (0, ()), result


@pytest.mark.parametrize("name", [*OUTPUTS, *(f"{name}.new" for name in OUTPUTS)])
@pytest.mark.parametrize("how", ["symlink", "link"])
@pytest.mark.usefixtures("tasks")
def test_link_at_a_result_is_not_followed(name: str, how: str, project: Path, victim: Path, open_box: Sandbox) -> None:
    target = victim
    if how == "link":
        # A command cannot hard-link a file outside the project, so a file of the user in the project takes its place.
        target = project / "own"
        target.write_text("as it was\n")
    plant(open_box, f"os.mkdir('corral-eval'); os.{how}({str(target)!r}, 'corral-eval/{name}')")
    done = corral("eval", "tasks", cwd=project)
    assert (done.returncode, target.read_text()) == (1, "as it was\n")
    for each in OUTPUTS:
        found = (project / "corral-eval" / each).lstat()
        assert (found.st_nlink, os.path.islink(project / "corral-eval" / each)) == (1, False)


@pytest.mark.parametrize("name", OUTPUTS)
def test_pipe_at_a_result_does_not_block(name: str, project: Path, tasks: Path, open_box: Sandbox) -> None:
    plant(open_box, f"os.mkdir('corral-eval'); os.mkfifo('corral-eval/{name}')")
    assert corral("eval", "tasks", cwd=project).returncode == 1
    assert (project / "corral-eval" / name).is_file()


@pytest.mark.parametrize("name", ["a.jsonl", "b.toml", "results.jsonl", "journal.jsonl"])
@pytest.mark.parametrize("what", ["pipe", "link to a device"])
def test_pipe_or_device_among_the_tasks_is_refused(
    what: str, name: str, project: Path, tasks: Path, open_box: Sandbox
) -> None:
    code = f"os.mkfifo('tasks/{name}')" if what == "pipe" else f"os.symlink('/dev/zero', 'tasks/{name}')"
    plant(open_box, code)
    done = corral("eval", "tasks", cwd=project)
    assert (done.returncode, done.stdout) == (125, "")
    assert f"tasks/{name}: " in done.stderr


def test_task_file_may_be_a_link(project: Path, tasks: Path) -> None:
    (project / "real.toml").write_text(TASK.replace("must-fail", "linked"))
    (tasks / "b.toml").symlink_to("../real.toml")
    assert [task.id for task in load([str(tasks)])] == ["must-fail", "linked"]


@pytest.mark.parametrize("name", OUTPUTS)
def test_directory_at_a_result_is_refused(name: str, project: Path, tasks: Path, open_box: Sandbox) -> None:
    plant(open_box, f"os.makedirs('corral-eval/{name}/deep')")
    done = corral("eval", "tasks", cwd=project)
    assert (done.returncode, done.stdout) == (125, "")
    assert f"corral-eval/{name}: Is a directory; " in done.stderr


@pytest.mark.parametrize(
    ("out", "code"),
    [
        pytest.param("corral-eval", "os.symlink('VICTIM', 'corral-eval')", id="the directory"),
        pytest.param("a/b/out", "os.mkdir('a'); os.symlink('VICTIM', 'a/b')", id="a parent"),
        pytest.param("a/../corral-eval", "os.mkdir('a'); os.symlink('VICTIM', 'corral-eval')", id="behind a way up"),
        pytest.param("PROJECT/corral-eval", "os.symlink('VICTIM', 'corral-eval')", id="an absolute path"),
        pytest.param("corral-eval", "os.symlink('x', 'corral-eval'); os.symlink('VICTIM', 'x')", id="a chain"),
        pytest.param("ALIAS/corral-eval", "os.symlink('VICTIM', 'corral-eval')", id="behind the user's own link"),
    ],
)
@pytest.mark.usefixtures("tasks")
def test_link_at_the_output_directory_is_not_followed(
    out: str, code: str, project: Path, tmp_path: Path, open_box: Sandbox
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "alias").symlink_to(project)
    plant(open_box, code.replace("VICTIM", str(home)))
    done = corral(
        "eval",
        "tasks",
        "--out",
        out.replace("PROJECT", str(project)).replace("ALIAS", f"{tmp_path}/alias"),
        cwd=project,
    )
    assert (done.returncode, done.stdout, list(home.iterdir())) == (125, "", [])
    assert "a command may have planted it" in done.stderr


@pytest.mark.parametrize("mark", PROJECT_MARKS)
def test_link_in_another_project_is_not_followed(mark: str, project: Path, tmp_path: Path, tasks: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    other.mkdir()
    (other / mark).touch()
    home.mkdir()
    (other / "out").symlink_to(home)
    assert corral("eval", "tasks", "--out", str(other / "out"), cwd=project).returncode == 125
    assert list(home.iterdir()) == []


def test_users_own_link_outside_is_followed(project: Path, tmp_path: Path, tasks: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    assert corral("eval", "tasks", "--out", str(tmp_path / "link" / "out"), cwd=project).returncode == 1
    assert (tmp_path / "disk" / "out" / "results.jsonl").is_file()


def test_files_go_to_the_directory_that_was_opened(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "x").write_text("as it was\n")
    monkeypatch.chdir(project)
    with OutputDirectory("out", make=True) as opened:
        (project / "out").rename(project / "moved")
        (project / "out").symlink_to(home)
        assert opened.write("x", ("new", "\n")) == 4
        opened.remove("y")
    assert (home / "x").read_text() == "as it was\n"
    assert [path.name for path in (project / "moved").iterdir()] == ["x"]


@pytest.mark.parametrize("name", ["journal.jsonl", "results.jsonl"])
def test_planted_journal_is_not_believed(name: str, project: Path, tasks: Path, open_box: Sandbox) -> None:
    (task,) = load([str(tasks)])
    entries = [
        {"event": "start", "schema": "corral.eval/1", "corral": "0", "tasks": 1},
        {"event": "task", **Outcome(task.id, task.digest, "passed").to_dict()},
    ]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    plant(open_box, f"os.mkdir('corral-eval'); open('corral-eval/{name}', 'w').write({text!r})")
    done = corral("eval", "tasks", cwd=project)
    assert (done.returncode, "continuing" in done.stderr) == (1, False)
    assert done.stdout.startswith("✗ 1 failed  of 1")
    assert ("corral-eval/journal.jsonl" in done.stderr) == (name == "journal.jsonl")


def test_planted_journal_hides_no_task(project: Path, tasks: Path, open_box: Sandbox) -> None:
    entry = json.dumps({"event": "start", "schema": "corral.eval/1", "corral": "0", "tasks": 1}) + "\n"
    plant(open_box, f"open('tasks/journal.jsonl', 'w').write({entry!r})")
    assert [task.id for task in load([str(tasks)])] == ["must-fail"]


def test_commands_cannot_see_the_journal(project: Path, tasks: Path, open_box: Sandbox) -> None:
    corral("eval", "tasks", cwd=project)
    journal = Path(place(str(project / "corral-eval"), os.environ))
    assert '"must-fail"' in journal.read_text()
    assert journal.stat().st_mode & 0o077 == 0
    assert open_box.run(["ls", str(journal)]).exit_code == 2


def test_state_inside_the_project_is_refused(project: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".git").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "state"))
    done = corral("eval", "tasks", cwd=project)
    assert (done.returncode, done.stdout) == (125, "")
    assert str(project / "state") in done.stderr


@pytest.mark.parametrize("way", ["the file", "its directory"])
def test_page_is_not_written_through_a_link(way: str, project: Path, victim: Path, open_box: Sandbox) -> None:
    results = [{"argv": ["x"], "exit_code": 0}]
    (project / "r.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    home = victim.parent / "home"
    home.mkdir()
    if way == "the file":
        plant(open_box, f"os.symlink({str(victim)!r}, 'report.html')")
        assert corral("view", "r.jsonl", "--out", "report.html", cwd=project).returncode == 0
        assert (victim.read_text(), (project / "report.html").is_symlink()) == ("as it was\n", False)
    else:
        plant(open_box, f"os.symlink({str(home)!r}, 'pages')")
        assert corral("view", "r.jsonl", "--out", "pages/report.html", cwd=project).returncode == 125
        assert list(home.iterdir()) == []


@pytest.mark.parametrize("what", ["fifo", "device"])
@pytest.mark.parametrize(
    "words", [["view", "corral-eval", "--out", "x.html"], ["eval", "--compare", "corral-eval", "corral-eval"]]
)
def test_reading_a_run_does_not_block_on_pipe_or_device(what: str, words: list[str], project: Path) -> None:
    (project / "corral-eval").mkdir()
    path = project / "corral-eval" / "results.jsonl"
    os.mkfifo(path) if what == "fifo" else path.symlink_to("/dev/zero")
    done = corral(*words, cwd=project)
    assert (done.returncode, "Traceback" in done.stderr) == (125, False)


@pytest.mark.parametrize("kind", ["pipe", "link to a device"])
@pytest.mark.parametrize("name", ["results.jsonl", "journal.jsonl"])
def test_page_of_a_pipe_or_device_is_refused(project: Path, open_box: Sandbox, name: str, kind: str) -> None:
    make = "os.mkfifo('corral-eval/{}')" if kind == "pipe" else "os.symlink('/dev/zero', 'corral-eval/{}')"
    plant(open_box, f"os.mkdir('corral-eval'); {make.format(name)}")
    for source in ("corral-eval", f"corral-eval/{name}"):
        done = corral("view", source, "--out", "page.html", cwd=project)
        assert (done.returncode, "Traceback" in done.stderr) == (125, False)
