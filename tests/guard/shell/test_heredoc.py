"""Preparation of shell text for the grammar: here-documents, their bodies as strings, continued lines, errors."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.guard.shell.heredoc import HeredocError, as_string, prepare


@pytest.mark.parametrize(
    "text",
    [
        "cat x",
        "echo '<<E'",
        'echo "<<E"',
        "echo $((1<<2))",
        "((x = 1 << 2))",
        "cat <<<x",
        "# <<E",
        "echo \\<<E",
        "echo ${x:-<<E}",
    ],
)
def test_text_that_looks_like_a_heredoc_is_unchanged(text: str) -> None:
    assert prepare(text.encode(), bool)[1] == {}


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        pytest.param("cat <<E\na\nE\n", [("a\n", False)], id="plain"),
        pytest.param("cat <<'E'\na\nE", [("a\n", True)], id="quoted, no newline at the end"),
        pytest.param('cat <<"E F"\na\nE F\n', [("a\n", True)], id="delimiter with a blank"),
        pytest.param("cat <<\\E\na\nE\n", [("a\n", True)], id="escaped"),
        pytest.param("cat <<-E\n\ta\n\tE\n", [("a\n", False)], id="tabs stripped"),
        pytest.param("cat << E\nE\n", [("", False)], id="empty, with a blank"),
        pytest.param("cat <<A <<B\n1\nA\n2\nB\n", [("1\n", False), ("2\n", False)], id="two on one line"),
        pytest.param("cat <<A; cat <<B\n1\nA\n2\nB\n", [("1\n", False), ("2\n", False)], id="two in a list"),
        pytest.param('x="$(cat <<E\na "b\nE\n)"', [('a "b\n', False)], id="inside a substitution inside quotes"),
        pytest.param("cat <<E | sh\nE E\nE\n", [("E E\n", False)], id="body line that begins like the delimiter"),
        pytest.param("cat <<E\nnever ended", [("never ended\n", False)], id="to the end of the text"),
        pytest.param("cat 3<<E\nx\nE\n", [("x\n", False)], id="with a descriptor"),
    ],
)
def test_body_is_extracted(text: str, bodies: list[tuple[str, bool]]) -> None:
    source, found, _ = prepare(text.encode(), bool)
    assert [(h.body.decode(), h.quoted) for h in found.values()] == bodies
    assert len(source) == len(text.encode())
    assert b"<<" not in source
    assert source.count(b"\n") == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "$(cat <<E\nnever",
        "cat <<E",
        "cat <<\nE\n",
        "cat <<$x\n$x\n",
        "cat <<'E\nE\n",
        "$(cat <<E\nE )\n",
        '<<"A\\"B"\nA"B\n',
        "<<A $(\n)\nA\n",
        "<<A `\n`\nA\n",
        '<<A "\n"\nA\n',
        "$(: <<A)\nA\n",
        "$(case x in x) : <<A\nA\n;; esac)",
        "$((a); b) <<A\nA\n",
        "`'`' <<A\nA\n",
    ],
)
def test_text_that_cannot_be_read_with_certainty_is_an_error(text: str) -> None:
    with pytest.raises(HeredocError):
        prepare(text.encode(), bool)


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("a \\\n b", "a  b"),
        ("$\\\n\\\n(a)", "$(a)"),
        ('"$\\\n{x}"', '"${x}"'),
        ("'a\\\nb'", "'a\\\nb'"),
        ("$\\\n'\\'\\\n'", "$'\\'\\\n'"),
        ("# a\\\nb", "# a\\\nb"),
        ("a\\\n# b\\\n", "a# b"),
        ("a\\\\\nb", "a\\\\\nb"),
        ("<\\\n<'A'\na\\\nA\n", "<0000\n  \n \n"),
        ("`a\\\nb`", "`ab`"),
    ],
)
def test_lines_are_joined_as_in_bash(text: str, joined: str) -> None:
    made, _, joints = prepare(text.encode(), bool)
    assert made.decode() == joined
    assert len(made) + 2 * len(joints) == len(text.encode())


@pytest.mark.parametrize(
    "body",
    [
        "plain $x ${y}\n",
        'a "b" \\"c\\" \\\\"d"\n',
        "'$x' \\$x \\`x\\`\n",
        "$(echo \"a\" ')' # )\n)\n",
        '$(cat <<F\n)"$x\nF\n)\n',
        '`echo "a"` $((1 + 1)) ${x:-a b}\n',
        "{ } ( ) # < > | & ; ~ * {a,b}\n",
    ],
)
def test_body_as_a_string_expands_to_the_same_text(body: str) -> None:
    script = f"x=1; cat <<E\n{body}E\nprintf '%s' " + as_string(body.encode(), bool).decode()
    done = subprocess.run(["/bin/bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    half = len(done.stdout) // 2
    assert done.stdout[:half] == done.stdout[half:] != ""


@pytest.mark.parametrize("body", ["$(a", "`a", '$(echo "', "${a", '${x:-"a"}', "${x:-'a'}", "$((a); b)"])
def test_body_that_cannot_be_read_with_certainty_is_an_error(body: str) -> None:
    with pytest.raises(HeredocError):
        as_string(body.encode(), bool)


@given(st.binary() | st.text(alphabet="<E\n'\"\\$(){}`# x-").map(str.encode))
def test_preparation_only_removes_continued_lines(source: bytes) -> None:
    try:
        out, _, joints = prepare(source, bool)
    except HeredocError:
        return
    assert len(out) + 2 * len(joints) == len(source)
