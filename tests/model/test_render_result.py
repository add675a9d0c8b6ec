"""Results and verdicts as text, JSON and exit codes. Whole texts are compared."""

import json
import textwrap

import pytest

import golden
from corral._lib.terminal import Terminal, columns
from corral.model.call import (
    DENIED_EXIT_CODE,
    TIMED_OUT_EXIT_CODE,
    Axis,
    Call,
    Decision,
    Effect,
    Finding,
    Step,
    Verdict,
    Violation,
)
from corral.model.render_result import (
    CHECK_STATUS,
    PARTIAL,
    Explanation,
    denial_text,
    exit_status,
    explain_text,
    json_text,
    step_lines,
    verdict_text,
    violation_text,
)
from corral.model.result import SandboxResult

CALL = Call("rm -rf build && cat ../secret", shell=True)
NAME = Finding(
    Axis.NAME, "name-rm", Decision.DENY, "rm is on the denylist.", "rm", 0, 2, instead="Leave the file as it is."
)
PATH = Finding(
    Axis.PATH, "path-cat-read-outside", Decision.ASK, "../secret is outside project root.", "../secret", 20, 9
)
VERDICT = Verdict((PATH, NAME))
STEPS = (
    Step(0, "rm", "rm -rf build", (Effect("delete-inside", "build", Decision.DENY),), 0, 12),
    Step(0, "cat", "cat ../secret", (Effect("read-outside", "../secret", Decision.ASK),), 16, 13),
)
AXIS_OF = {"delete-inside": "path", "read-outside": "path", "code": "argv"}
EXPLANATION = Explanation(CALL, VERDICT, STEPS, AXIS_OF, "strict", "/proj")
PLAIN = Terminal(72)


def block(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


@pytest.mark.parametrize(
    ("result", "status"),
    [
        pytest.param(SandboxResult(("x",), 0), 0, id="success"),
        pytest.param(SandboxResult(("x",), 3), 3, id="the command's own"),
        pytest.param(SandboxResult(("x",), 143, signal=15), 143, id="a signal"),
        pytest.param(SandboxResult(("x",), 127), 127, id="not found"),
        pytest.param(SandboxResult(("x",), DENIED_EXIT_CODE, denied=True), 126, id="denied"),
        pytest.param(SandboxResult(("x",), TIMED_OUT_EXIT_CODE, timed_out=True), 124, id="timed out"),
    ],
)
def test_exit_code_of_a_result(result: SandboxResult, status: int) -> None:
    assert exit_status(result) == status


def test_exit_code_of_a_decision() -> None:
    assert CHECK_STATUS == {Decision.ALLOW: 0, Decision.ASK: 3, Decision.DENY: 126}


def test_json_is_one_line_of_ascii() -> None:
    assert json_text({"a": "é\n\u2028\ud800"}) == '{"a": "\\u00e9\\n\\u2028\\ud800"}'


def test_strictest_finding_is_first_and_each_is_underlined() -> None:
    assert verdict_text(CALL, VERDICT, PLAIN) == block("""
        ✗ deny   name-rm · name axis
            rm -rf build && cat ../secret
            ^^
            why      rm is on the denylist.
            instead  Leave the file as it is.

        ? ask    path-cat-read-outside · path axis
            rm -rf build && cat ../secret
                                ^^^^^^^^^
            why      ../secret is outside project root.
    """)


def test_allowed_call_is_one_line() -> None:
    assert verdict_text(Call(["ls", "-la"]), Verdict(), PLAIN) == "✓ allow  ls -la"


def test_verdict_in_ascii() -> None:
    assert verdict_text(CALL, Verdict((NAME,)), Terminal(36, unicode=False)) == block("""
        x deny   name-rm - name axis
            rm -rf build && cat ../secret
            ^^
            why      rm is on the denylist.
            instead  Leave the file as it
                     is.
    """)


def test_colour_changes_no_text() -> None:
    painted = explain_text(EXPLANATION, Terminal(72, color=True))
    for code in ("1;31", "1;33", "1;32", "1", "2", "0"):
        painted = painted.replace(f"\x1b[{code}m", "")
    assert painted == explain_text(EXPLANATION, PLAIN)


def test_partial_verdict_is_marked() -> None:
    text = verdict_text(CALL, Verdict((NAME,), complete=False), PLAIN)
    assert text == f"{verdict_text(CALL, Verdict((NAME,)), PLAIN)}\n{PARTIAL}"


def test_denial_without_findings_shows_the_reason() -> None:
    result = SandboxResult(("x",), DENIED_EXIT_CODE, denied=True, reason="The user said no.\x1b[2J")
    assert denial_text(Call(["x"]), result, PLAIN) == "✗ deny   The user said no.\\x1b[2J"


def test_reasons_cannot_control_the_terminal() -> None:
    hostile = NAME.replace(rule="r\x1b", reason="\x1b]0;owned\x07", instead="\u202e")
    assert verdict_text(Call(["x\x1b[2J"]), Verdict((hostile,)), PLAIN).replace("\n", "").isprintable()


@pytest.mark.parametrize("width", [24, 30, 36, 45, 60, 100])
def test_explanation_fits_a_terminal_of_any_width(width: int) -> None:
    assert max(columns(line) for line in explain_text(EXPLANATION, Terminal(width)).splitlines()) <= width


@pytest.mark.parametrize(
    ("violation", "text"),
    [
        pytest.param(
            Violation("planted", "/p/.envrc", "it was moved to /q", "Ask the user."),
            "corral: planted: /p/.envrc: it was moved to /q. Ask the user.",
            id="with a target",
        ),
        pytest.param(
            Violation("cpu-limit", detail="limits.cpu_seconds is 1", inferred=True),
            "corral: cpu-limit: limits.cpu_seconds is 1 (inferred).",
            id="inferred, without a target",
        ),
        pytest.param(
            Violation("hidden", "/a\x1b[2J\nb", "x"), "corral: hidden: /a\\x1b[2J\\nb: x.", id="a hostile name"
        ),
    ],
)
def test_violation_is_one_line(violation: Violation, text: str) -> None:
    assert violation_text(violation) == text


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_violation_is_wrapped_on_a_terminal(width: int) -> None:
    violation = Violation(
        "planted", "/p/.git/hooks/post-checkout", "it was moved to /q/w/e/r/t/y", "Ask the user to look."
    )
    lines = violation_text(violation, width).splitlines()
    assert max(columns(line) for line in lines) <= width
    assert " ".join(line.strip() for line in lines) == violation_text(violation)


def test_explanation_shows_call_commands_axes_and_findings() -> None:
    golden.check("explanation", "rm and cat", explain_text(EXPLANATION, PLAIN))


def test_explanation_as_json() -> None:
    assert json.loads(json_text(EXPLANATION.to_dict())) == {
        "profile": "strict",
        "root": "/proj",
        "cwd": None,
        "shell": True,
        "call": "rm -rf build && cat ../secret",
        "decision": "deny",
        "complete": True,
        "findings": [PATH.to_dict(), NAME.to_dict()],
        "reason": "rm is on the denylist. Leave the file as it is.",
        "axes": [
            {"axis": "name", "decision": "deny", "looked_at": ["rm", "cat"], "rules": ["name-rm"]},
            {"axis": "argv", "decision": "allow", "looked_at": [], "rules": []},
            {"axis": "structure", "decision": "allow", "looked_at": ["rm -rf build", "cat ../secret"], "rules": []},
            {
                "axis": "path",
                "decision": "ask",
                "looked_at": ["build", "../secret"],
                "rules": ["path-cat-read-outside"],
            },
        ],
        "steps": [
            {
                "depth": 0,
                "name": "rm",
                "text": "rm -rf build",
                "effects": [{"key": "delete-inside", "text": "build", "decision": "deny"}],
                "start": 0,
                "length": 12,
                "argument": None,
            },
            {
                "depth": 0,
                "name": "cat",
                "text": "cat ../secret",
                "effects": [{"key": "read-outside", "text": "../secret", "decision": "ask"}],
                "start": 16,
                "length": 13,
                "argument": None,
            },
        ],
    }


def test_steps_are_a_tree() -> None:
    runs = Effect("run-system", "x", Decision.ALLOW)
    steps = [Step(depth, name, name, (runs,)) for depth, name in ((0, "a"), (1, "b"), (2, "c"), (1, "d"), (0, "e"))]
    assert step_lines(Call(["a"]), steps, PLAIN) == [
        "  ├─ a",
        "  │  │  ✓ allow run-system       x",
        "  │  ├─ b",
        "  │  │  │  ✓ allow run-system       x",
        "  │  │  └─ c",
        "  │  │     ✓ allow run-system       x",
        "  │  └─ d",
        "  │     ✓ allow run-system       x",
        "  └─ e",
        "     ✓ allow run-system       x",
    ]
    assert len(step_lines(Call([]), [], PLAIN)) == 1


def test_step_keeps_the_quotes_of_the_shell_string() -> None:
    call = Call("timeout 5 bash -c 'rm x'", shell=True)
    steps = [
        Step(0, "timeout", "timeout 5 bash -c rm x", (), 0, 24),
        Step(1, "rm", "rm x", (), 19, 4),
        Step(1, "y", "y z"),
    ]
    assert step_lines(call, steps, PLAIN) == ["  └─ timeout 5 bash -c 'rm x'", "     ├─ rm x", "     └─ y z"]


def test_step_before_its_parent_is_drawn_higher() -> None:
    steps = [Step(3, "rm", "rm x", (), 4, 5), Step(0, "cat", "cat"), Step(2, "y", "y")]
    call = Call("cat <<EOF\n$(rm x)\nEOF", shell=True)
    assert step_lines(call, steps, PLAIN) == ["  ├─ rm x", "  └─ cat", "     └─ y"]


def test_ten_thousand_steps_are_drawn() -> None:
    steps = [Step(n % 50, "x", "x") for n in range(10_000)]
    assert len(step_lines(Call(["a"]), steps, PLAIN)) == 10_000
