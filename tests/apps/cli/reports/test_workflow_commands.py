"""Annotations and job summaries of GitHub Actions, and attacks by what a command prints."""

import json
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from machines import environment

from corral.apps.cli.reports.workflow_commands import annotation, is_wanted, markdown, table

HOSTILE = "x\n::error::forged\r\n  ::add-mask::a | b [c](d) <img src=x> %0A::notice::z ##[error]e"


def run(
    *words: str, cwd: Path, together: bool = False, stderr: int | IO[str] | None = subprocess.PIPE, **environ: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", *words]
    error = subprocess.STDOUT if together else stderr
    given = environment() | {"GITHUB_ACTIONS": "true", "CI": "true"} | environ
    return subprocess.run(command, cwd=cwd, env=given, stdout=subprocess.PIPE, stderr=error, text=True, check=False)


def obeyed(*streams: str) -> list[str]:
    """Return the workflow commands that GitHub's runner would carry out, reading these streams one after the other."""
    found, word = [], ""
    for line in "".join(streams).splitlines():
        text = line.strip()
        if word:
            word = "" if text == f"::{word}::" else word
        elif text.startswith("::stop-commands::"):
            word = text.removeprefix("::stop-commands::")
        elif text.startswith("::") or "##[" in text:
            found.append(text)
    return found


@pytest.mark.parametrize(
    ("when", "variable", "wanted"),
    [("auto", "true", True), ("auto", "", False), ("always", "", True), ("never", "true", False)],
)
def test_reports_are_written_where_wanted(when: str, variable: str, wanted: bool) -> None:
    assert is_wanted(when, {"GITHUB_ACTIONS": variable}) == wanted


def test_annotation_is_one_line_whatever_it_says() -> None:
    line = annotation("error", "a:b,c%", HOSTILE)
    assert line.startswith("::error title=a%3Ab%2Cc%25::x%0A::error::forged")
    assert len(line.splitlines()) == 1
    assert "%250A::notice" in line


def test_cells_hold_no_markup() -> None:
    cell = markdown(HOSTILE)
    assert not set(cell) & set("|[]()<>`*_:\n\r%")
    assert table(("a", "b"), [("1", HOSTILE)]).count("\n") == 3


@pytest.mark.usefixtures("held")
def test_output_of_a_command_is_never_a_workflow_command(project: Path) -> None:
    attack = "printf '::error::forged\\n'; printf '::set-output name=a::b' >&2; printf '\\n::stop-commands::x\\n::x::\\n::error::late'"
    apart = run("run", "--no-ask", "--shell", attack, cwd=project)
    # The runner reads two streams in an order that nobody knows, but lines of stderr first.
    assert obeyed(apart.stderr, apart.stdout) == []
    assert apart.stdout == "::error::forged\n\n::stop-commands::x\n::x::\n::error::late"
    one = run("run", "--no-ask", "--shell", attack, cwd=project, together=True)
    assert "::error::late" in one.stdout
    assert obeyed(one.stdout) == []
    with (project / "log").open("w") as log:
        away = run("run", "--no-ask", "--shell", attack, cwd=project, stderr=log)
    assert obeyed(away.stdout) == []


@pytest.mark.usefixtures("held")
def test_refusal_is_annotated_and_summarised(project: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    done = run(
        "run", "--no-ask", "--", "sudo", "::error::x", cwd=project, together=True, GITHUB_STEP_SUMMARY=str(summary)
    )
    assert done.returncode == 126
    (line,) = obeyed(done.stdout)
    assert line.startswith("::error title=corral denied a command::sudo ::error::x")
    assert summary.read_text().startswith("before\n| corral run |  |\n| --- | --- |\n| command | sudo &#58;&#58;error")
    quiet = run("run", "--no-ask", "--report", "never", "--", "sudo", "x", cwd=project, together=True)
    assert "::" not in quiet.stdout


@pytest.mark.usefixtures("held")
def test_evaluation_is_annotated_and_summarised(project: Path, tmp_path: Path) -> None:
    (project / "tasks.toml").write_text(
        '[[task]]\nid = "a"\nargv = ["echo", "::error::forged"]\nexpect = {stdout = "##[error]other"}\n'
    )
    summary = tmp_path / "summary.md"
    summary.touch()
    done = run("eval", "tasks.toml", "--workers", "1", cwd=project, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1, done.stderr
    (line,) = obeyed(done.stdout)
    assert line.startswith("::error title=failed%3A a::")
    assert "&#35;&#35;&#91;error&#93;other" in summary.read_text()
    assert summary.read_text().startswith("| corral eval | passed | failed | error | skipped |\n| --- |")
    assert obeyed(done.stderr) == []


@pytest.mark.usefixtures("held")
def test_json_holds_no_workflow_command(project: Path) -> None:
    done = run("run", "--json", "--no-ask", "--", "printf", "##[error]x", cwd=project)
    assert json.loads(done.stdout)["stdout"] == "##[error]x"
    assert obeyed(done.stdout) == []


def test_summary_that_cannot_be_written_changes_nothing(project: Path, tmp_path: Path) -> None:
    done = run("run", "--no-ask", "--", "sudo", "x", cwd=project, GITHUB_STEP_SUMMARY=str(tmp_path / "missing"))
    assert done.returncode == 126
    assert "the job summary cannot be written" in done.stderr
