"""Extraction of here-documents from shell text: near misses, bodies, errors, and the substitutions in a body."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.guard.shell.heredoc import HeredocError, extract, substitutions


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
    assert extract(text.encode())[1] == {}


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
    source, found = extract(text.encode())
    assert [(h.body.decode(), h.quoted) for h in found.values()] == bodies
    assert len(source) == len(text.encode())
    assert b"<<" not in source
    assert source.count(b"\n") == text.count("\n")


@pytest.mark.parametrize(
    "text", ["$(cat <<E\nnever", "cat <<E", "cat <<\nE\n", "cat <<$x\n$x\n", "cat <<'E\nE\n", "$(cat <<E\nE )\n"]
)
def test_heredoc_without_an_end_is_an_error(text: str) -> None:
    with pytest.raises(HeredocError):
        extract(text.encode())


@pytest.mark.parametrize(
    ("body", "commands"),
    [
        ("plain $x ${y}", []),
        ('$(a) `b` $(c "$(d)")', ["a", "b", 'c "$(d)"']),
        ("\\$(no) \\`no\\`", []),
        ("$((1 + $(a)))", ["a"]),
        ("`a \\`b\\``", ["a `b`"]),
        ("$(echo ')' x)", ["echo ')' x"]),
    ],
)
def test_substitutions_in_a_body_are_found(body: str, commands: list[str]) -> None:
    assert [c.decode() for c in substitutions(body.encode())] == commands


@pytest.mark.parametrize("body", ["$(a", "`a", '$(echo "'])
def test_open_substitution_is_an_error(body: str) -> None:
    with pytest.raises(HeredocError):
        substitutions(body.encode())


@given(st.binary() | st.text(alphabet="<E\n'\"\\$(){}`# x-").map(str.encode))
def test_extraction_keeps_the_length(source: bytes) -> None:
    try:
        out, _ = extract(source)
    except HeredocError:
        return
    assert len(out) == len(source)
