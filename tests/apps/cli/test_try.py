"""`corral try` and what follows it: a person looks and says yes, or nothing changes."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from screen import Screen

import corral as package
import golden
from corral._lib.terminal import Terminal
from corral.apps.cli.questions.terminal_prompt import AGENT_VARIABLES, without_middle
from corral.apps.cli.transactions import diff_lines
from corral.audit import ledger
from corral.transactions import transaction, workspace
from corral.transactions.apply import Applied
from corral.transactions.changes import Change, summary
from corral.transactions.stage import Refused

CORRAL = (sys.executable, "-m", "corral")
END = b"[N]o, discard > "
AUDIT_SCHEMA = json.loads((Path(package.__file__).parent / "model" / "schemas" / "audit.schema.json").read_text())
CHANGE = "echo changed >notes.txt; rm old; echo new >new"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project and a private state directory."""
    for kind in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    root = tmp_path / "project"
    root.mkdir()
    (root / "notes.txt").write_text("kept\n")
    (root / "old").write_text("old\n")
    return root


@pytest.fixture
def screen(project: Path) -> Iterator[Callable[..., Screen]]:
    made: list[Screen] = []

    def make(*arguments: str, **environ: str) -> Screen:
        made.append(Screen([*CORRAL, *arguments], project, rows=40, environ={"NO_COLOR": "1"} | environ))
        return made[-1]

    yield make
    for one in made:
        one.close()


def corral(project: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run corral without a terminal."""
    env = {name: value for name, value in os.environ.items() if name not in AGENT_VARIABLES}
    return subprocess.run(
        [*CORRAL, *arguments],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env | environ,
        start_new_session=True,
        timeout=60,
        check=False,
    )


def check_message(case: str, text: str, project: Path) -> None:
    """Compare a message with the golden file, without the parts that differ from run to run."""
    text = re.sub(r"\b[0-9a-f]{8,}\b", "ID", text.replace(str(project), "PROJECT"))
    golden.check("cli-messages", case, text)


def names(project: Path) -> list[str]:
    return sorted(os.listdir(project))


def test_yes_applies_the_shown_diff(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("try", "--shell", CHANGE)
    text = shown.until(END).decode()
    for words in (
        "-kept",
        "+changed",
        "deleted file mode 100644",
        "+new",
        "3 changes: 1 added, 1 changed, 1 deleted",
        "Apply to the project? [y]es",
    ):
        assert words in text
    assert names(project) == ["notes.txt", "old"]
    shown.type(b"y\n")
    shown.until(b"applied, 3 changes: 1 added, 1 changed, 1 deleted")
    assert shown.status() == 0
    assert names(project) == ["new", "notes.txt"]


@pytest.mark.parametrize(
    "keys", [b"n\n", b"\n", b"what?\n", b"\x04"], ids=["no", "nothing", "other words", "end of file"]
)
def test_any_other_answer_discards(keys: bytes, screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("try", "--shell", CHANGE)
    shown.until(END)
    shown.type(keys)
    shown.until(b"corral: discarded")
    assert shown.status() == 0
    assert names(project) == ["notes.txt", "old"]
    assert corral(project, "history", "--json").stdout == "[]\n"


def test_keys_before_the_question_are_ignored(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("try", "-T", "--shell", f"{CHANGE}; echo first")
    shown.type(b"y\ny\n")
    shown.until(END)
    shown.type(b"\n")
    assert shown.status() == 0
    assert names(project) == ["notes.txt", "old"]


def test_command_cannot_answer_the_question(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("try", "--shell", f"{CHANGE}; printf 'y\\n' >/dev/tty; echo $'\\033[6n'")
    shown.until(END)
    shown.type(b"n\n")
    assert shown.status() == 0
    assert names(project) == ["notes.txt", "old"]


HIDING = {
    "letters without colour": (r"\033[8m", b"\x1b[0m"),
    "a screen of two lines": (r"\033[1;2r", b"\x1b[r"),
    "another screen": (r"\033[?1049h", b"\x1b[?1047l"),
    "letters of another kind": (r"\033(0", b"\x1b(B"),
    "colours that are one": (r"\033]4;2;#000000\007", b"\x1b]104\x1b\\"),
    "a string that does not end": (r"\033P", b"\x18\x1b\\"),
}


@pytest.mark.parametrize(("left", "undone"), HIDING.values(), ids=HIDING)
def test_terminal_is_reset_before_the_question(left: str, undone: bytes, screen: Callable[..., Screen]) -> None:
    shown = screen("try", "--shell", f"{CHANGE}; printf 'begun {left}'")
    shown.until(b"begun " + left.replace(r"\033", "\x1b").replace(r"\007", "\a").encode())
    assert undone in shown.until(b"diff --git")
    shown.until(END)


def test_dumb_terminal_gets_no_escape_sequences(screen: Callable[..., Screen]) -> None:
    assert b"\x1b" not in screen("try", "--shell", CHANGE, TERM="dumb").until(END)


def test_changes_stay_pending_if_nobody_can_be_asked(project: Path) -> None:
    done = corral(project, "try", "--shell", CHANGE)
    assert done.returncode == 0
    assert "+changed" in done.stdout
    assert names(project) == ["notes.txt", "old"]
    (entry,) = json.loads(corral(project, "history", "--json").stdout)
    assert (entry["state"], entry["commands"]) == ("waits", [CHANGE])
    assert f"corral apply {entry['id']}" in done.stderr
    assert corral(project, "apply", entry["id"][:6]).returncode == 0
    assert names(project) == ["new", "notes.txt"]
    assert corral(project, "undo").returncode == 0
    assert (names(project), (project / "notes.txt").read_text()) == (["notes.txt", "old"], "kept\n")
    assert [entry["state"] for entry in json.loads(corral(project, "history", "--json").stdout)] == ["undone"]


def test_part_of_the_changes_can_be_applied(project: Path) -> None:
    corral(project, "try", "--shell", CHANGE)
    id_ = json.loads(corral(project, "history", "--json").stdout)[0]["id"]
    assert corral(project, "apply", id_, "new").returncode == 0
    assert names(project) == ["new", "notes.txt", "old"]
    assert corral(project, "discard").returncode == 0
    assert corral(project, "apply").returncode == 125
    assert names(project) == ["new", "notes.txt", "old"]


def test_yes_option_applies_only_after_success(project: Path) -> None:
    assert corral(project, "try", "--yes", "--", "touch", "made").returncode == 0
    assert "made" in names(project)
    failed = corral(project, "try", "--yes", "--shell", "touch half; exit 3")
    assert (failed.returncode, "half" in names(project), "corral apply" in failed.stderr) == (3, False, True)
    check_message("try: a failed command with --yes", failed.stderr, project)


def test_json_lists_changes_and_applies_nothing(project: Path) -> None:
    told = json.loads(corral(project, "try", "--json", "--shell", f"{CHANGE}; echo said").stdout)
    assert [(change["path"], change["kind"]) for change in told["changes"]] == [
        ("new", "added"),
        ("notes.txt", "changed"),
        ("old", "deleted"),
    ]
    assert (told["outcome"], told["how"], told["applied"], told["result"]["stdout"]) == (
        "kept",
        "overlay",
        None,
        "said\n",
    )
    assert told["result"]["transaction"] == told["transaction"]
    assert names(project) == ["notes.txt", "old"]


def test_conflict_exits_125_and_stays_pending(project: Path) -> None:
    corral(project, "try", "--shell", CHANGE)
    (project / "notes.txt").write_text("the owner's\n")
    done = corral(project, "apply")
    assert (done.returncode, "notes.txt" in done.stderr, "nothing was applied" in done.stderr) == (125, True, True)
    check_message("apply: a conflict", done.stderr, project)
    assert (project / "notes.txt").read_text() == "the owner's\n"
    assert json.loads(corral(project, "history", "--json").stdout)[0]["state"] == "waits"


def test_history_shows_pending_changes(project: Path) -> None:
    told = corral(project, "try", "--shell", CHANGE).stderr
    check_message("try: nobody can be asked", told, project)
    (entry,) = json.loads(corral(project, "history", "--json").stdout)
    assert [change["path"] for change in entry["changes"]] == ["new", "notes.txt", "old"]
    listed = corral(project, "history")
    assert "3 changes: 1 added, 1 changed, 1 deleted" in listed.stdout
    assert "corral history ID" in listed.stderr
    shown = corral(project, "history", entry["id"][:8]).stdout
    for words in ("  + new", "  - old", "-kept", "+changed"):
        assert words in shown
    (entry,) = json.loads(corral(project, "history", "--json", entry["id"]).stdout)
    assert "+changed\n" in entry["diff"]
    assert corral(project, "history", "zz").returncode == 125


def test_protected_changes_are_left_out(project: Path) -> None:
    done = corral(
        project,
        "try",
        "--yes",
        "--",
        "python3",
        "-c",
        "import os; os.mkdir('.vscode'); open('.vscode/'+'tasks.json', 'w')",
    )
    assert "left out: .vscode/tasks.json" in done.stderr
    assert "corral undo" in done.stderr
    done = corral(project, "try", "--yes", "--", "python3", "-c", "open('.vscode/'+'tasks.json', 'w')")
    assert "left out: .vscode/tasks.json" in done.stderr
    assert "corral: nothing was applied" in done.stderr
    assert "corral undo" not in done.stderr


def test_discard_all(project: Path) -> None:
    for name in ("one", "two"):
        corral(project, "try", "--", "touch", name)
    done = corral(project, "discard")
    assert (done.returncode, "which one?" in done.stderr) == (125, True)
    found = json.loads(corral(project, "discard", "--all", "--json").stdout)
    assert [each["outcome"] for each in found] == ["discarded"] * 2
    assert "discarded nothing" in corral(project, "discard", "--all").stderr


def test_too_many_pending_transactions_run_nothing(project: Path) -> None:
    for _ in range(workspace.MAX_WAITING):
        left = workspace.make(str(project), (), os.environ)
        left.begin()
        left.keep({"commands": [], "changes": [], "bytes": 0})
        left.release()
    done = corral(project, "try", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert "50 transactions" in done.stderr
    assert corral(project, "discard", "--all").returncode == 0
    assert corral(project, "try", "--", "echo", "ran").stdout == "ran\n"


def test_transaction_in_use_is_reported(project: Path) -> None:
    corral(project, "try", "--", "touch", "one")
    held = workspace.waiting(str(project), os.environ)
    done = corral(project, "apply", held.id)
    assert (done.returncode, f"at work on transaction {held.id}" in done.stderr) == (125, True)
    held.release()
    assert corral(project, "apply", held.id).returncode == 0


def test_suggested_command_quotes_the_project_path(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other one"
    other.mkdir()
    told = corral(project, "try", "--root", str(other), "--", "touch", "new").stderr
    line = next(line for line in told.splitlines() if "7 days" in line)
    words = line.partition("7 days: corral ")[2].partition(",")[0]
    assert corral(project, *shlex.split(words)).returncode == 0
    assert names(other) == ["new"]


def test_try_denies_what_the_guard_denies(project: Path) -> None:
    done = corral(project, "try", "--", "sudo", "id")
    assert (done.returncode, "denied" in done.stderr or "deny" in done.stderr) == (126, True)


def test_try_runs_irreversible_commands_without_a_question(project: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(project)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (project / "notes.txt").write_text("not committed\n")
    assert corral(project, "run", "--", "git", "reset", "--hard").returncode == 126
    assert "-not committed" in corral(project, "try", "--", "git", "reset", "--hard").stdout
    assert (project / "notes.txt").read_text() == "not committed\n"


@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_agent_shell_cannot_apply_or_undo(verb: str, project: Path) -> None:
    corral(project, "try", "--yes", "--", "touch", "made")
    corral(project, "try", "--", "touch", "more")
    done = corral(project, verb, CLAUDECODE="1")
    assert (done.returncode, "coding agent" in done.stderr) == (125, True)
    assert names(project) == ["made", "notes.txt", "old"]


@pytest.mark.parametrize("verb", ["try", "apply", "discard", "undo", "history"])
def test_transactions_are_refused_inside_a_sandbox(
    verb: str, open_sandbox: Callable[..., object], project: Path
) -> None:
    words = [verb, "--", "true"] if verb == "try" else [verb]
    box = open_sandbox(project_root=str(project))
    result = box.run([*CORRAL, *words], timeout_seconds=30)  # type: ignore[attr-defined]
    assert (result.exit_code, "inside a sandbox" in result.stderr_text) == (125, True), result.stderr_text


def test_log_links_calls_by_transaction_id(project: Path) -> None:
    corral(project, "try", "--yes", "--", "touch", "made")
    lines = [json.loads(line) for line in corral(project, "log", "--json").stdout.splitlines()]
    ours = [(line["event"], line["transaction"], line.get("reason", "")) for line in lines if "transaction" in line]
    ids = {id_ for _, id_, _ in ours}
    assert [(event, reason) for event, _, reason in ours] == [("try", ""), ("transaction", "applied")]
    assert len(ids) == 1


def noted(project: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in corral(project, "log", "--json").stdout.splitlines()]
    told = [line for line in lines if line["event"] == "transaction"]
    for line in told:
        jsonschema.validate(line, AUDIT_SCHEMA)
    names = ("reason", "changed", "changes", "conflicts", "refused", "in_part")
    return [{name: line[name] for name in names if name in line} for line in told]


def test_log_has_outcome_and_changes(project: Path) -> None:
    hides = "import os; os.rename('old', 'new'); [open(name, 'w').close() for name in ('made', '.envrc', 'more')]"
    corral(project, "try", "--", "python3", "-c", hides)
    (id_,) = {str(line["transaction"]) for line in entries(project)}
    corral(project, "apply", id_, "made")
    corral(project, "undo")
    (project / "more").write_text("the owner's")
    corral(project, "apply", id_)
    (project / "more").unlink()
    corral(project, "apply", id_)
    added = [{"kind": "added", "path": path} for path in (".envrc", "made", "more")]
    renamed = {"kind": "renamed", "path": "new", "old_path": "old"}
    told = noted(project)
    protected = [{"path": ".envrc", "why": "it is protected: programs outside the sandbox run or read it later"}]
    assert told[0] == {"reason": "kept", "changed": 4, "changes": [*added, renamed]}
    assert told[1] == {"reason": "applied", "changed": 1, "changes": [added[1]], "in_part": True}
    assert told[2] == {"reason": "undone", "changed": 1, "changes": [added[1]]}
    (conflict,) = told[3].pop("conflicts")  # type: ignore[misc]  # a list of one
    assert (told[3], conflict["path"]) == ({"reason": "conflict", "refused": protected}, "more")  # type: ignore[index]
    assert told[4] == {"reason": "applied", "changed": 3, "changes": [*added[1:], renamed], "refused": protected}
    assert {line["transaction"] for line in entries(project)} == {id_}


def entries(project: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in corral(project, "log", "--json").stdout.splitlines()]
    return [line for line in lines if "transaction" in line]


def test_transaction_log_line_has_a_maximum_size() -> None:
    path = "\U0001f600" * 1000
    change, left = Change(path, "renamed", "file", path), Refused(path, "it was changed")
    fields = transaction.log_fields("id", "conflict", [change] * 500, Applied("id", (), (left,) * 500, (left,) * 500))
    assert (fields["changed"], len(json.dumps(fields)) < ledger.MAX_LINE_BYTES * 3 // 4) == (500, True)


def test_diff_cannot_control_the_terminal() -> None:
    lines = diff_lines("@@\n+\x1b[31mred\tx\n-a\rb\n", Terminal(color=True))[1:]
    assert lines == ["\x1b[1;32m+\\x1b[31mred    x\x1b[0m", "\x1b[1;31m-a\\rb\x1b[0m"]


def test_deleted_line_that_looks_like_a_header_is_red() -> None:
    diff = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n--- a/other\n+++ b/other\n #\n"
    lines = diff_lines(diff, Terminal(80, True, True))
    assert [line[:7] for line in lines] == [
        *("\x1b[1mdif", "\x1b[1m---", "\x1b[1m+++", "\x1b[1;36m"),
        *("\x1b[1;31m", "\x1b[1;32m", " #"),
    ]


def test_long_diff_keeps_both_ends() -> None:
    lines, is_whole = without_middle([str(number) for number in range(100)], 4, Terminal())
    assert (lines, is_whole) == (["0", "1", "  … 96 lines are not shown here", "98", "99"], False)


def test_changes_are_counted_by_kind() -> None:
    kinds = [Change("a", "added", "file"), Change("b", "added", "file"), Change("c", "mode", "file")]
    assert summary(kinds) == "3 changes: 2 added, 1 only its mode"
    assert summary([]) == "nothing was changed"
