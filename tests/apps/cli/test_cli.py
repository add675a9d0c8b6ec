"""The command line, through a real process: exit codes, streams, JSON, and words that teach."""

import json
import os
import pty
import pwd
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from observe import alive, eventually, unique_seconds, with_enough_time

import corral
import golden
from corral.apps.cli.arguments import parse

SCHEMA = json.loads((Path(corral.__file__).parent / "model" / "schemas" / "result.schema.json").read_text())
STRICT = ("--profile", "strict")
DEADLINE_SECONDS = 60


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "notes.txt").write_text("pears\napples\n")
    (root / "sub").mkdir()
    (tmp_path / "outside.txt").write_text("secret\n")
    return root


def cli(*arguments: str | bytes, cwd: Path, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-m", "corral", *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env=env | environ,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def test_version_is_that_of_the_package(project: Path) -> None:
    done = cli("--version", cwd=project)
    assert (done.returncode, done.stdout.decode()) == (0, f"corral {corral.__version__}\n")


@pytest.mark.parametrize(
    "verb", [(), ("run",), ("check",), ("explain",), ("rule",), ("demo",), ("doctor",), ("selftest",), ("batch",)]
)
def test_help_goes_to_stdout_and_fits_a_terminal(verb: tuple[str, ...], project: Path) -> None:
    done = cli(*verb, "--help", cwd=project, COLUMNS="100")
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert "corral " in text
    assert "exit code" in text.lower() or verb == ("rule",)
    assert max(len(line) for line in text.splitlines()) <= 120


USAGE_ERRORS = {
    "an unknown command": "fly",
    "a mistyped command": "chekc -- ls",
    "a program instead of a command": "ls -la",
    "no command": "-- ls",
    "an unknown option alone": "--colour",
    "an unknown option before the command": "--colour run -- ls",
    "an unknown option": "check --colour -- ls",
    "an unknown option without dashes": "check --colour ls",
    "a mistyped option": "run --jsno ls",
    "a mistyped option with a value": "run --proflie=strict -- ls",
    "a mistyped option of log": "log --folow",
    "a mistyped hidden option": "run --exprots -- ls",
    "an abbreviated option": "check --prof strict -- ls",
    "an unknown letter": "run -x ls",
    "an option without its value": "run --timeout ls",
    "an unknown profile": "check --profile lax -- ls",
    "nothing to check": "check",
    "two calls": "check --shell ls -- ls",
    "a batch and a call": "check --jsonl -- ls",
    "a batch and a cwd": "check --jsonl --cwd sub",
    "a file of calls": "check --jsonl x",
    "a file for batch": "batch calls.jsonl",
    "an option in an unquoted shell text": "run --shell ls -la",
    "an unquoted shell text": "run --shell cat x",
    "an unknown action": "policy check",
    "a mistyped action": "policy shwo",
    "nothing to discard": "discard abc",
    "a negative timeout": "run --timeout -1 -- ls",
    "a timeout that is not a number": "run --timeout nan -- ls",
    "a timeout in words": "run --timeout soon -- ls",
    "a missing root": "check --root /no/such -- ls",
    "the file system root": "check --root / -- ls",
    "a command for demo": "demo -- ls",
    "a word too many": "rule name-rm x",
    "nothing to approve": "grants add",
    "a grant for nothing": "allow --network a.example:443",
    "an id and a list": "allow 7f3a --list",
    "an unknown posture": "posture loose",
    "an id for grants list": "grants list x",
    "an option of another action": "grants revoke --shell x",
    "a command for grants list": "grants -- ls",
    "a terminal and JSON": "run --tty --json -- ls",
    "a token without a server": "mcp --token-file x",
    "a model without an agent": "demo --model x",
    "no tasks": "eval",
    "tasks and two runs": "eval x --compare a b",
    "two levels": "install claude --user --project",
    "an unknown host": "install emacs",
    "a time in words": "log --since soon",
}


@pytest.mark.parametrize("case", USAGE_ERRORS)
def test_wrong_arguments_exit_125_with_a_hint(case: str, project: Path) -> None:
    done = cli(*USAGE_ERRORS[case].split(), cwd=project)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"Traceback" not in done.stderr
    golden.check("cli-messages", f"arguments: {case}", done.stderr.decode().replace(str(project), "PROJECT"))


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        pytest.param(["run", "ls"], ["ls"], id="a word"),
        pytest.param(["run", "ls", "-la"], ["ls", "-la"], id="options of the command"),
        pytest.param(["run", "ls", "--json"], ["ls", "--json"], id="an option of corral's behind the command"),
        pytest.param(["run", "--json", "ls", "--json"], ["ls", "--json"], id="options of both"),
        pytest.param(["run", "--timeout", "5", "ls"], ["ls"], id="an option with a value"),
        pytest.param(["run", "--timeout=5", "--root", ".", "ls"], ["ls"], id="options with values"),
        pytest.param(["run", "-T", "ls", "-T"], ["ls", "-T"], id="a letter"),
        pytest.param(["run", "--", "ls", "--", "x"], ["ls", "--", "x"], id="dashes twice"),
        pytest.param(["run", "git", "checkout", "--", "f"], ["git", "checkout", "--", "f"], id="dashes of the command"),
        pytest.param(["run", "--json", "--", "-x"], ["-x"], id="a program that looks like an option"),
        pytest.param(["run", "-", "x"], ["-", "x"], id="a dash"),
        pytest.param(["check", "rm", "-rf", "x"], ["rm", "-rf", "x"], id="check"),
        pytest.param(["explain", "--profile", "strict", "ls", "-h"], ["ls", "-h"], id="explain"),
        pytest.param(["try", "-y", "make", "-j"], ["make", "-j"], id="try"),
        pytest.param(["run", "--shell", "ls; id"], None, id="a shell text"),
        pytest.param(["grants", "revoke", "abc"], None, id="no command at all"),
    ],
)
def test_first_word_that_is_not_an_option_begins_the_command(arguments: list[str], command: list[str] | None) -> None:
    assert parse(arguments).command == command


def test_command_without_dashes_is_judged_and_run(project: Path) -> None:
    done = cli("run", "--profile", "strict", "echo", "-n", "--json", cwd=project)
    assert (done.returncode, done.stdout) == (0, b"--json")
    assert cli("check", "--profile", "strict", "rm", "-rf", "x", cwd=project).returncode != 0


@pytest.mark.parametrize(
    "locale",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "utf-8"},
    ],
    ids=str,
)
def test_characters_outside_the_locale_are_escaped(locale: dict[str, str], project: Path) -> None:
    home = {"XDG_STATE_HOME": str(project.parent / "state")}
    cli("check", "--", "echo", "ü", b"\xff", cwd=project, **home, PYTHONUTF8="1")
    shown = cli("log", cwd=project, **home, **locale)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"echo '\xc3\xbc' " in shown.stdout or b"echo '\\xfc' " in shown.stdout


@pytest.mark.parametrize(("asked", "meant"), [(["help"], ["--help"]), (["help", "run"], ["run", "--help"])])
def test_help_is_also_a_command(asked: list[str], meant: list[str], project: Path) -> None:
    assert cli(*asked, cwd=project).stdout == cli(*meant, cwd=project).stdout != b""


def test_missing_home_is_taken_from_the_account(project: Path) -> None:
    account = pwd.getpwuid(os.geteuid()).pw_dir
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")} | {"HOME": ""}
    words = [sys.executable, "-m", "corral", "log", "--text", "\x01"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, env=env, check=False)
    assert f"{account}/.local/state/corral/audit" in done.stderr


@pytest.mark.parametrize("words", ["eval --fixtures --list", "demo", "selftest", "doctor"])
def test_missing_temporary_directory_is_reported(words: str, project: Path) -> None:
    # No file may grow here, so that no directory is fit.
    line = f"ulimit -f 0; exec {shlex.quote(sys.executable)} -m corral {words}"
    done = subprocess.run(["bash", "-c", line], cwd=project, capture_output=True, check=False, timeout=DEADLINE_SECONDS)
    said = done.stderr.decode().splitlines()[-1]
    assert (done.returncode, b"Traceback" in done.stderr) == (125, False)
    assert "TMPDIR" in said


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(closed: str, project: Path) -> None:
    for call, status in (("ls", 0), ("rm x", 126)):
        for verb in ("check", "explain", "run"):
            line = f"exec {closed}; {shlex.quote(sys.executable)} -m corral {verb} --profile strict -- {call}"
            done = subprocess.run(["bash", "-c", line], cwd=project, capture_output=True, check=False)
            assert done.returncode == status, (verb, call, done.stderr)
            assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        pytest.param("check --profile strict -- ls", 0, id="allow"),
        pytest.param("check --profile strict -- rm x", 126, id="deny"),
        pytest.param("check -- git reset --hard", 3, id="ask"),
        pytest.param("check --no-such-option", 125, id="wrong arguments"),
        pytest.param("check --root /no/such -- ls", 125, id="a broken policy"),
        pytest.param("run --profile strict -- rm x", 126, id="a refusal to run"),
        pytest.param("run --profile strict -- grep plums notes.txt", 1, id="the command's own failure"),
        pytest.param("run --profile strict --timeout 0.2 -- sleep 60", 124, id="timed out"),
    ],
)
@pytest.mark.parametrize("full", ["/dev/full", "/dev/stdout"], ids=["a full disk", "a reader that is gone"])
def test_unwritable_stderr_changes_no_exit_code(arguments: str, status: int, full: str, project: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = f"exec 2>{full}; exec {shlex.quote(sys.executable)} -m corral {arguments} >/dev/null"
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(["bash", "-c", line], cwd=project, stdout=gone, check=False)
    assert done.returncode == status


def test_unwritable_stdout_exits_125_with_one_line(project: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "corral", "check", "--json", "--", "ls"]
        done = subprocess.run(command, cwd=project, stdout=full, stderr=subprocess.PIPE, check=False)
    said = b"corral: the answer could not be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (125, said)


def test_check_imports_no_heavy_modules(project: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "corral", "check", *STRICT, "--", "ls"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "corral.guard.evaluate" in loaded
    heavy = {
        "asyncio",
        "ctypes",
        "dataclasses",
        "json",
        "logging",
        "pathlib",
        "shutil",
        "socket",
        "subprocess",
        "typing",
    }
    heavy |= {
        "tempfile",
        "tomllib",
        "traceback",
        "tree_sitter",
        "corral.sandbox",
        "corral.guard.rules.compiler",
        "corral.apps.evals.demo",
    }
    assert loaded & heavy == set()


class TestCheck:
    @pytest.mark.parametrize(
        ("arguments", "status"),
        [
            pytest.param([*STRICT, "--", "ls", "-la"], 0, id="allow"),
            pytest.param([*STRICT, "--", "rm", "x"], 126, id="deny"),
            pytest.param([*STRICT, "--shell", "ls | wc -l"], 0, id="allow a shell string"),
            pytest.param([*STRICT, "--shell", "ls; rm x"], 126, id="deny a shell string"),
            pytest.param(["--", "git", "reset", "--hard"], 3, id="ask"),
            pytest.param([*STRICT, "--cwd", "sub", "--", "cat", "../notes.txt"], 0, id="from a directory inside"),
            pytest.param([*STRICT, "--cwd", "..", "--", "ls"], 126, id="from a directory outside"),
            pytest.param([*STRICT, "--timeout", "5", "--", "ls"], 0, id="with everything that run takes"),
            pytest.param([*STRICT, "--"], 126, id="an empty call"),
            pytest.param([*STRICT, "--shell", ""], 126, id="an empty shell string"),
        ],
    )
    def test_check_exit_code_is_the_decision(self, arguments: list[str], status: int, project: Path) -> None:
        done = cli("check", *arguments, cwd=project)
        assert (done.returncode, done.stdout) == (status, b"")
        assert done.stderr.decode().split()[1] == {0: "allow", 3: "ask", 126: "deny"}[status]

    def test_offending_part_is_underlined(self, project: Path) -> None:
        done = cli("check", *STRICT, "--shell", "ls && cat ../outside.txt", cwd=project)
        lines = done.stderr.decode().splitlines()
        assert lines[1:3] == ["    ls && cat ../outside.txt", "              ^^^^^^^^^^^^^^"]

    def test_json_verdict_goes_to_stdout_only(self, project: Path) -> None:
        done = cli("check", *STRICT, "--json", "--", "rm", "x", cwd=project)
        data = json.loads(done.stdout)
        assert (done.returncode, done.stderr, data["decision"]) == (126, b"", "deny")
        jsonschema.Draft202012Validator(SCHEMA["$defs"]["verdict"] | {"$defs": SCHEMA["$defs"]}).validate(data)

    def test_words_after_the_first_dashes_are_the_command(self, project: Path) -> None:
        done = cli("check", *STRICT, "--json", "--", "ls", "--", "--json", cwd=project)
        assert json.loads(done.stdout)["decision"] == "allow"

    def test_bytes_outside_utf8_are_judged_and_escaped(self, project: Path) -> None:
        done = cli("check", *STRICT, "--", "rm", b"\xff\x1b[2J", cwd=project)
        assert done.returncode == 126
        assert b"\x1b" not in done.stderr

    def test_check_runs_nothing(self, project: Path) -> None:
        assert cli("check", *STRICT, "--", "touch", "made", cwd=project).returncode == 0
        assert not (project / "made").exists()

    def test_paths_are_judged_against_root(self, project: Path) -> None:
        assert cli("check", *STRICT, "--root", str(project), "--", "cat", "notes.txt", cwd=Path("/")).returncode == 0


class TestBatch:
    def answers(self, project: Path, text: bytes) -> list[dict[str, Any]]:
        done = cli("check", *STRICT, "--root", str(project), "--jsonl", cwd=Path("/"), stdin=text)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_every_line_is_answered_in_order(self, project: Path) -> None:
        calls: list[dict[str, object]] = [
            {"id": "a", "argv": ["ls", "-la"]},
            {"id": 2, "argv": ["rm", "x"]},
            {"id": "a", "shell": "cat notes.txt | wc -l"},
            {"id": "", "shell": "cat ../notes.txt", "cwd": "sub"},
            {"id": "later", "shell": "cat ../notes.txt", "cwd": None, "label": "ignored"},
        ]
        replies = self.answers(project, b"".join(json.dumps(c).encode() + b"\n" for c in calls))
        assert [(r["id"], r["decision"]) for r in replies] == [
            ("a", "allow"),
            (2, "deny"),
            ("a", "allow"),
            ("", "allow"),
            ("later", "deny"),
        ]
        assert all(set(r) == {"id", "decision", "findings"} for r in replies)
        assert "name-rm" in [f["rule"] for f in replies[1]["findings"]]

    @pytest.mark.parametrize(
        ("line", "name", "error"),
        [
            pytest.param(b"", None, "the line is empty", id="empty"),
            pytest.param(b"ls", None, "the line is not JSON: Expecting value at character 0", id="no JSON"),
            pytest.param(
                b'{"id": 1, "argv": ["ls"]} x', None, "the line is not JSON: Extra data at character 26", id="more"
            ),
            pytest.param(b'\xff{"id": 1}', None, "the line is not UTF-8: byte 0 is 0xff", id="not UTF-8"),
            pytest.param(b'["ls"]', None, "the line must be an object, not a list", id="a list"),
            pytest.param(b'"ls"', None, "the line must be an object, not a string", id="a string"),
            pytest.param(b"null", None, "the line must be an object, not null", id="null"),
            pytest.param(b"NaN", None, "the line cannot be read: NaN is not JSON", id="not a number"),
            pytest.param(b'{"argv": ["ls"]}', None, "id is missing", id="no id"),
            pytest.param(
                b'{"id": [1], "argv": ["ls"]}',
                None,
                "id must be a string or a whole number, not a list",
                id="a list as id",
            ),
            pytest.param(
                b'{"id": true, "argv": ["ls"]}',
                None,
                "id must be a string or a whole number, not a boolean",
                id="a boolean as id",
            ),
            pytest.param(b'{"id": 1}', 1, "argv or shell is missing", id="no call"),
            pytest.param(
                b'{"id": 1, "argv": ["ls"], "shell": "ls"}', 1, "give argv or shell, not both", id="two calls"
            ),
            pytest.param(b'{"id": 1, "argv": "ls"}', 1, "argv must be a list, not a string", id="argv as text"),
            pytest.param(b'{"id": 1, "shell": ["ls"]}', 1, "shell must be a string, not a list", id="shell as list"),
            pytest.param(b'{"id": 1, "argv": ["ls"], "cwd": 3}', 1, "cwd must be a string, not a number", id="cwd"),
            pytest.param(
                b'{"id": 1, "argv": ["ls"], "argv": ["rm"]}',
                None,
                "the line cannot be read: duplicate key 'argv'",
                id="a key twice",
            ),
            pytest.param(b"[" * 100_000, None, "the line is nested too deeply", id="too deep"),
            pytest.param(
                b'{"id": 1, "argv": ["' + b"x" * 8_388_608 + b'"]}',
                None,
                "the line is longer than 8388608 bytes",
                id="too long",
            ),
        ],
    )
    def test_unreadable_line_is_denied_and_the_next_is_answered(
        self, line: bytes, name: object, error: str, project: Path
    ) -> None:
        replies = self.answers(project, line + b'\n{"id": "next", "argv": ["ls"]}\n')
        assert replies == [
            {"id": name, "decision": "deny", "findings": [], "error": error},
            {"id": "next", "decision": "allow", "findings": []},
        ]

    def test_too_long_number_is_denied(self, project: Path) -> None:
        (reply,) = self.answers(project, b'{"id": ' + b"9" * 5000 + b', "argv": ["ls"]}\n')
        assert (reply["id"], reply["decision"], "error" in reply) == (None, "deny", True)

    @pytest.mark.parametrize(
        "line",
        [
            pytest.param(rb'{"id": 1, "argv": ["ls", "\u0000"]}', id="a NUL"),
            pytest.param(rb'{"id": 1, "argv": ["ls", 3]}', id="an argument that is no string"),
            pytest.param(rb'{"id": 1, "argv": [["ls"]]}', id="a nested argument"),
            pytest.param(rb'{"id": 1, "argv": []}', id="no arguments"),
            pytest.param(rb'{"id": 1, "argv": ["ls"], "cwd": "\ud800\u0000"}', id="a directory that cannot exist"),
        ],
    )
    def test_call_that_no_kernel_accepts_is_denied(self, line: bytes, project: Path) -> None:
        (reply,) = self.answers(project, line + b"\n")
        assert (reply["id"], reply["decision"], set(reply)) == (1, "deny", {"id", "decision", "findings"})
        assert reply["findings"]

    @pytest.mark.parametrize("key", ['"shell": "cat \\ud800"', '"argv": ["cat", "\\ud800"]'])
    def test_lone_surrogate_is_answered(self, key: str, project: Path) -> None:
        (reply,) = self.answers(project, f'{{"id": 1, {key}}}\n'.encode())
        assert (reply["id"], set(reply)) == (1, {"id", "decision", "findings"})

    def test_ids_with_escapes_are_returned(self, project: Path) -> None:
        (reply,) = self.answers(project, b'{"id": "\\ud800\\u2028\xc3\xa9", "argv": ["ls"]}')
        assert reply["id"] == "\ud800\u2028é"

    def test_no_lines_give_no_answers(self, project: Path) -> None:
        assert self.answers(project, b"") == []

    def test_each_answer_is_flushed_before_the_next_line(self, project: Path) -> None:
        command = [sys.executable, "-m", "corral", "check", *STRICT, "--root", str(project), "--jsonl"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for number in range(3):
                process.stdin.write(json.dumps({"id": number, "argv": ["ls"]}).encode() + b"\n")
                process.stdin.flush()
                assert json.loads(process.stdout.readline())["id"] == number
            process.stdin.close()
            assert process.wait(DEADLINE_SECONDS) == 0

    def test_closed_stdout_gives_no_traceback(self, project: Path) -> None:
        command = [sys.executable, "-m", "corral", "check", *STRICT, "--root", str(project), "--jsonl"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.close()
            process.stdout = None
            _, errors = process.communicate(b'{"id": 1, "argv": ["ls"]}\n' * 10, timeout=DEADLINE_SECONDS)
            assert (process.returncode, errors) == (125, b"")


class TestExplain:
    def test_explanation_shows_tree_axes_and_findings(self, project: Path) -> None:
        done = cli("explain", *STRICT, "--shell", "cat notes.txt && rm -rf sub", cwd=project, COLUMNS="300")
        text = done.stdout.decode()
        assert (done.returncode, done.stderr) == (126, b"")
        assert [line for line in text.splitlines() if line and not line.startswith(" ")] == [
            "✗ deny   cat notes.txt && rm -rf sub",
            f"profile strict · root {project} · cwd .",
            "What would run",
            "What each axis says",
            "Findings",
            *(line for line in text.splitlines() if line.startswith("✗") and line.endswith(" axis")),
        ]
        assert "  ├─ cat notes.txt\n" in text
        assert "  └─ rm -rf sub\n" in text
        assert "                     ^^\n" in text

    def test_explanation_as_json(self, project: Path) -> None:
        done = cli("explain", *STRICT, "--json", "--", "cat", "notes.txt", cwd=project)
        data = json.loads(done.stdout)
        assert (done.returncode, done.stderr) == (0, b"")
        assert (data["decision"], data["call"], [a["axis"] for a in data["axes"]]) == (
            "allow",
            ["cat", "notes.txt"],
            ["name", "argv", "structure", "path"],
        )
        assert [(s["name"], [e["key"] for e in s["effects"]]) for s in data["steps"]] == [("cat", ["read-inside"])]

    @pytest.mark.parametrize(
        "argv", [["--"], ["--shell", "echo $("], ["--", "ls", "\x01\x7f"], ["--shell", "a" * 100_000]]
    )
    def test_every_call_can_be_explained(self, argv: list[str], project: Path) -> None:
        done = cli("explain", *STRICT, *argv, cwd=project)
        assert (done.returncode in (0, 126), done.stderr) == (True, b"")
        assert done.stdout.decode().replace("\n", "").isprintable()


class TestRule:
    def test_rule_page_has_every_row(self, project: Path) -> None:
        done = cli("rule", "name-rm", cwd=project)
        labels = [line.split()[0] for line in done.stdout.decode().splitlines() if line[4:5].strip()]
        assert (done.returncode, labels) == (
            0,
            ["name-rm", "axis", "what", "instead", "profile", "refused", "allowed"],
        )

    def test_every_listed_rule_has_a_page(self, project: Path) -> None:
        from corral.apps.rule_pages import page_of

        ids = json.loads(cli("rule", "--json", cwd=project).stdout)
        assert ids == cli("rule", cwd=project).stdout.decode().split()
        assert [rule for rule in ids if page_of(rule) is None] == []

    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            pytest.param("name-rn", ["name-rm"], id="a wrong letter"),
            pytest.param("nme-rm", ["name-rm"], id="a missing one"),
            pytest.param("name-sduo", ["name-sudo"], id="two swapped"),
            pytest.param("rm", ["name-rm"], id="no axis"),
            pytest.param("argv-git-cod", ["argv-git-code"], id="a rule of a command"),
            pytest.param("path-reed-outside", ["path-read-outside"], id="a long id"),
            pytest.param("something-else-entirely", [], id="nothing like it"),
        ],
    )
    def test_unknown_rule_suggests_the_nearest_ids(self, given: str, meant: list[str], project: Path) -> None:
        done = cli("rule", given, cwd=project)
        assert (done.returncode, done.stdout) == (125, b"")
        first, *rest = done.stderr.decode().splitlines()
        assert first == f"corral: there is no rule {given}"
        assert rest == [*(f"  did you mean {rule}?" for rule in meant), "Try: corral rule, which lists all rules"]

    def test_rule_page_as_json(self, project: Path) -> None:
        data = json.loads(cli("rule", "--json", "name-rm", cwd=project).stdout)
        assert (data["id"], data["axis"], data["profiles"]["strict"]) == ("name-rm", "name", "deny")


class TestRun:
    @pytest.mark.parametrize(
        ("arguments", "status", "stdout"),
        [
            pytest.param(["--", "cat", "notes.txt"], 0, b"pears\napples\n", id="success"),
            pytest.param(["--", "grep", "plums", "notes.txt"], 1, b"", id="the command's own failure"),
            pytest.param(["--shell", "sort notes.txt | head -1"], 0, b"apples\n", id="a shell string"),
            pytest.param(
                ["--cwd", "sub", "--", "cat", "../notes.txt"], 0, b"pears\napples\n", id="from a directory inside"
            ),
            pytest.param(["--", "no-such-program"], 127, b"", id="not found"),
            pytest.param(["--", "./notes.txt"], 126, b"", id="not executable"),
            pytest.param(["--", "rm", "notes.txt"], 126, b"", id="denied"),
            pytest.param(["--cwd", "..", "--", "ls"], 126, b"", id="denied for its directory"),
            pytest.param(["--timeout", "0", "--", "echo", "x"], 0, b"x\n", id="without a limit"),
        ],
    )
    def test_run_exit_code_is_the_commands_or_a_reason(
        self, arguments: list[str], status: int, stdout: bytes, project: Path
    ) -> None:
        done = cli("run", *STRICT, *arguments, cwd=project)
        assert (done.returncode, done.stdout) == (status, stdout), done.stderr
        assert (project / "notes.txt").exists()

    def test_command_killed_by_a_signal_exits_128_plus_number(self, project: Path) -> None:
        (project / "end.py").write_text("import os\nos.kill(os.getpid(), 15)\n")
        assert cli("run", *STRICT, "--", "python3", "end.py", cwd=project).returncode == 128 + 15

    def test_program_that_cannot_start_is_named(self, project: Path) -> None:
        assert b"no-such-program" in cli("run", *STRICT, "--", "no-such-program", cwd=project).stderr

    def test_command_gets_stdin_and_stderr(self, project: Path) -> None:
        (project / "both.py").write_text(
            "import sys\nprint(sys.stdin.read().upper())\nprint('warn', file=sys.stderr)\n"
        )
        done = cli("run", *STRICT, "--", "python3", "both.py", cwd=project, stdin=b"words")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"WORDS\n", b"warn\n")

    def test_live_output_is_unlimited_and_immediate(self, project: Path) -> None:
        (project / "echo.py").write_text(
            "import sys\nprint('x' * 1_000_000, flush=True)\nsys.stdin.readline()\nprint('end')\n"
        )
        command = [sys.executable, "-m", "corral", "run", *STRICT, "--", "python3", "echo.py"]
        with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert len(process.stdout.readline()) == 1_000_001
            rest, _ = process.communicate(b"go on\n", timeout=DEADLINE_SECONDS)
            assert (process.returncode, rest) == (0, b"end\n")

    def test_timeout_exits_124_and_names_the_option(self, project: Path) -> None:
        def run(limit: float) -> tuple[float, subprocess.CompletedProcess[bytes]]:
            words = ("--timeout", str(limit), "--shell", "echo begun; sleep 60")
            return limit, cli("run", *STRICT, *words, cwd=project)

        limit, done = with_enough_time(run, lambda ended: ended[1].stdout)
        assert (done.returncode, done.stdout) == (124, b"begun\n")
        assert f"{limit:g} s" in done.stderr.decode()
        assert "--timeout" in done.stderr.decode()

    def test_denial_is_explained_on_stderr(self, project: Path) -> None:
        lines = cli("run", *STRICT, "--", "rm", "notes.txt", cwd=project).stderr.decode().splitlines()
        assert lines[:3] == ["✗ deny   name-rm · name axis", "    rm notes.txt", "    ^^"]
        assert any(line.startswith("    instead  ") for line in lines)

    def test_default_profile_is_workspace_and_contained(self, project: Path) -> None:
        done = cli("run", "--json", "--", "touch", "made", cwd=project)
        result = json.loads(done.stdout)
        assert (done.returncode, result["backend"], result["enforcement"]) == (0, "warden", "full")
        assert (project / "made").exists()

    def test_command_gets_a_terminal(self, project: Path) -> None:
        (project / "see.py").write_text(
            "import os, sys\nprint([os.isatty(n) for n in (0, 1, 2)])\nprint('got', sys.stdin.readline().strip())\n"
        )
        command = [sys.executable, "-m", "corral", "run", *STRICT, "--", "python3", "see.py"]
        seen = in_terminal(command, project, typed=b"typed words\n")
        assert b"[True, True, True]" in seen
        assert b"got typed words" in seen

    def test_interrupt_reaches_the_command(self, project: Path) -> None:
        (project / "tidy.py").write_text(
            "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"
            "except KeyboardInterrupt:\n    print('tidied', flush=True)\n    raise SystemExit(7)\n"
        )
        command = [sys.executable, "-m", "corral", "run", *STRICT, "--", "python3", "tidy.py"]
        with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=DEADLINE_SECONDS)
            assert (process.returncode, rest, errors) == (7, b"tidied\n", b"")

    def test_interrupt_during_startup_exits_130(self, project: Path) -> None:
        script = (
            "import sys\n"
            "class Interrupt:\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'corral.apps.cli.arguments':\n"
            "            raise KeyboardInterrupt\n"
            "sys.meta_path.insert(0, Interrupt())\n"
            "from corral.apps.cli import main\n"
            "sys.exit(main(['check', '--', 'ls']))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=project, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")

    def test_second_interrupt_kills_the_command(self, project: Path) -> None:
        (project / "stay.py").write_text(
            "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n"
            "print('ready', flush=True)\nwhile True:\n    time.sleep(60)\n"
        )
        command = [sys.executable, "-m", "corral", "run", *STRICT, "--", "python3", "stay.py"]
        with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for said in (b"ready\n", b"no\n"):
                assert process.stdout.readline() == said
                process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_SECONDS) == 128 + 9

    def test_killing_corral_kills_the_command(self, project: Path) -> None:
        (project / "stay.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
        mark = unique_seconds()
        command = [sys.executable, "-m", "corral", "run", *STRICT, "--", "python3", "stay.py", mark]
        with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.kill()
        eventually(lambda: alive(mark) == [])


class TestRunJson:
    def test_json_result_matches_the_schema(self, project: Path) -> None:
        done = cli("run", *STRICT, "--json", "--", "cat", "notes.txt", cwd=project)
        data = json.loads(done.stdout)
        jsonschema.Draft202012Validator(SCHEMA).validate(data)
        assert (done.returncode, done.stderr) == (0, b"")
        assert (data["argv"], data["stdout"], data["cwd"]) == (["cat", "notes.txt"], "pears\napples\n", str(project))

    @pytest.mark.parametrize(
        ("arguments", "status", "fields"),
        [
            pytest.param(["--", "rm", "x"], 126, {"denied": True, "exit_code": -100}, id="denied"),
            pytest.param(
                ["--timeout", "0.3", "--", "sleep", "60"], 124, {"timed_out": True, "exit_code": -101}, id="timed out"
            ),
            pytest.param(["--", "cat", "none"], 1, {"denied": False, "exit_code": 1, "ok": False}, id="failed"),
            pytest.param(["--shell", "echo x"], 0, {"shell": True, "argv": ["echo x"]}, id="a shell string"),
        ],
    )
    def test_every_outcome_is_one_json_result(
        self, arguments: list[str], status: int, fields: dict[str, object], project: Path
    ) -> None:
        done = cli("run", *STRICT, "--json", *arguments, cwd=project)
        data = json.loads(done.stdout)
        jsonschema.Draft202012Validator(SCHEMA).validate(data)
        assert (done.returncode, done.stderr) == (status, b"")
        assert {name: data[name] for name in fields} == fields

    def test_captured_command_gets_stdin(self, project: Path) -> None:
        done = cli("run", *STRICT, "--json", "--", "cat", cwd=project, stdin=b"words")
        assert json.loads(done.stdout)["stdout"] == "words"

    def test_endless_stdin_does_not_block_the_command(self, project: Path) -> None:
        command = [sys.executable, "-m", "corral", "run", *STRICT, "--json", "--", "echo", "done"]
        with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["stdout"] == "done\n"
            assert process.wait(DEADLINE_SECONDS) == 0

    def test_captured_output_is_truncated(self, project: Path) -> None:
        (project / "flood.py").write_text("print('x' * 1_000_000)\n")
        data = json.loads(cli("run", *STRICT, "--json", "--", "python3", "flood.py", cwd=project).stdout)
        assert (data["truncated"], data["stdout_bytes"], len(data["stdout"]) < 70_000) == (True, 1_000_001, True)
        assert "truncated" in data["stdout"]


def in_terminal(command: list[str], cwd: Path, typed: bytes = b"", columns: int = 80) -> bytes:
    """Run a command in a terminal of its own, type, and return all that appears there."""
    import fcntl
    import struct
    import termios

    pid, master = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        # Given, not inherited: readline puts COLUMNS into the environment behind Python's back.
        env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        os.execvpe(command[0], command, env | {"TERM": "xterm-256color"})
    os.write(master, typed)
    seen = b""
    try:
        while chunk := os.read(master, 65536):
            seen += chunk
    except OSError:
        # Reading a pseudo-terminal whose other end is closed fails with EIO.
        pass
    finally:
        os.close(master)
        os.waitpid(pid, 0)
    return seen


class TestColour:
    COMMAND = (sys.executable, "-m", "corral", "check", *STRICT, "--", "rm", "x")

    def test_terminal_gets_colour(self, project: Path) -> None:
        assert b"\x1b[1;31m" in in_terminal([*self.COMMAND], project)

    def test_no_color_disables_colour(self, project: Path) -> None:
        seen = in_terminal(["env", "NO_COLOR=1", *self.COMMAND], project)
        assert b"\x1b" not in seen
        assert b"deny" in seen

    def test_pipe_gets_no_colour(self, project: Path) -> None:
        assert b"\x1b" not in cli(*self.COMMAND[3:], cwd=project, TERM="xterm-256color").stderr

    def test_ascii_stream_gets_ascii(self, project: Path) -> None:
        done = cli(*self.COMMAND[3:], cwd=project, PYTHONIOENCODING="ascii")
        assert done.stderr.isascii()
        assert done.stderr.startswith(b"x deny   name-rm - name axis\n")

    def test_lines_fit_a_narrow_terminal(self, project: Path) -> None:
        seen = in_terminal(["env", "NO_COLOR=1", *self.COMMAND[:-1], "y" * 200], project, columns=40)
        assert max(len(line) for line in seen.decode().split("\r\n")) <= 40


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["fly"], id="wrong arguments"),
        pytest.param(["install", "claude", "--root", "x" * 30, "--yes"], id="a refusal"),
        pytest.param(["eval", "tasks.toml"], id="a task file with a wrong key"),
    ],
)
def test_errors_are_wrapped_between_words(arguments: list[str], project: Path) -> None:
    (project / "tasks.toml").write_text('[[task]]\nid = "a"\nunknown_key_of_this_task = 1\n')
    whole = cli(*arguments, cwd=project, HOME=str(project.parent)).stderr.decode()
    command = ["env", "NO_COLOR=1", f"HOME={project.parent}", sys.executable, "-m", "corral", *arguments]
    seen = in_terminal(command, project, columns=60).decode()
    assert max(len(line) for line in whole.splitlines()) > 60
    assert seen.count("\r\n") > whole.count("\n")
    long = [word for word in whole.split() if len(word) > 60]  # a terminal would break these, too
    broken = [word for word in seen.split() if word not in whole.split()]
    assert [word for word in broken if not any(word in each for each in long)] == []
