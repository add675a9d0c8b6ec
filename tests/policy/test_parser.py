"""Parsing one policy file: every mistake is an error with its position."""

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import golden
from corral.model.errors import PolicyError
from corral.policy.parser import parse
from corral.policy.rule_examples import compile_policy
from corral.policy.settings import MAX_FILE_BYTES
from corral.policy.toml_positions import key_positions

RULE = '[[rule]]\ncommand = "git push"\ndecision = "deny"\ndeny = ["git push"]\n'


def refused(text: str | bytes) -> str:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(PolicyError) as caught:
        compile_policy(parse(data, "F"), "F")
    return str(caught.value)


def test_empty_file_has_no_settings() -> None:
    assert compile_policy(parse(b"", "F"), "F") == {"settings": [], "rules": [], "grants": []}


def test_settings_and_rules_have_positions() -> None:
    text = (
        'profile = "strict"\n# words\n  timeout_seconds = 5\n[containment]\nnetwork = "off"\nread = [\n  "/usr/share",\n]\n\n'
        + RULE
    )
    assert compile_policy(parse(text.encode(), "F"), "F") == {
        "settings": [
            ("profile", "strict", 1, 1),
            ("timeout_seconds", 5, 3, 3),
            ("containment.network", "off", 5, 1),
            ("containment.read", ["/usr/share"], 6, 1),
        ],
        "rules": [{"words": ("git", "push"), "decision": "deny", "line": 10, "column": 1, "lifts": ()}],
        "grants": [],
    }


def test_keys_can_be_dotted_inline_quoted_or_in_tables() -> None:
    wanted = [("containment.network", "off"), ("containment.ptrace", False)]
    for text in (
        'containment.network = "off"\ncontainment.ptrace = false\n',
        'containment = { network = "off", ptrace = false }\n',
        '["containment"]\n\'network\' = """off"""\nptrace = false # why\n',
        '[containment]\r\nnetwork = "off"\r\nptrace = false\r\n',
    ):
        assert [(key, value) for key, value, _, _ in parse(text.encode(), "F")["settings"]] == wanted


MISTAKES = [
    ("syntax", "profile = \n", "1:11"),
    ("end of the document", 'profile = "', "1:12"),
    ("a key twice", 'profile = "strict"\nprofile = "strict"\n', "2:19"),
    ("unknown key", 'profile = "strict"\n\n  colour = 1\n', "3:3"),
    ("misspelled key", 'profle = "strict"\n', "1:1"),
    ("unknown table", "[colour]\nx = 1\n", "1:1"),
    ("unknown key in a table", '[containment]\nnetwork = "on"\nnetwrk = "off"\n', "3:1"),
    ("setting of a single call", '[output]\ndirectory_file = "/x"\n', "2:1"),
    ("the root", 'project_root = "/"\n', "1:1"),
    ("unknown profile", 'profile = "loose"\n', "1:1"),
    ("wrong type of a choice", "[containment]\nnetwork = true\n", "2:1"),
    ("a number for a switch", "[containment]\nptrace = 1\n", "2:1"),
    ("a switch for a number", "timeout_seconds = true\n", "1:1"),
    ("text for a number", '[limits]\nprocesses = "5"\n', "2:1"),
    ("a negative number", "timeout_seconds = -1\n", "1:1"),
    ("not a number", "timeout_seconds = nan\n", "1:1"),
    ("infinity", "timeout_seconds = inf\n", "1:1"),
    ("a number without end", f"timeout_seconds = {'9' * 5000}\n", "1:1"),
    ("a part of a byte", "[limits]\ndisk_bytes = 0.5\n", "2:1"),
    ("more than all of the memory", "[limits]\nmemory_bytes = 1.5\n", "2:1"),
    ("a date", "timeout_seconds = 2020-01-01\n", "1:1"),
    ("a table for a value", "[timeout_seconds]\nx = 1\n", "1:1"),
    ("a value for a table", "limits = 5\n", "1:1"),
    ("a text for a list", 'denylist = "rm"\n', "1:1"),
    ("a number in a list", 'denylist = ["rm",\n  5]\n', "2:3"),
    ("a path in a list of names", 'denylist = ["rm",\n"/bin/rm"]\n', "2:1"),
    ("a pattern in a list of names", 'denylist = ["r*"]\n', "1:13"),
    ("a name twice", 'denylist = ["rm", "rm"]\n', "1:19"),
    ("a relative path", '[containment]\nread = ["/usr", "lib"]\n', "2:17"),
    ("the root as a path", '[containment]\nwrite = ["/"]\n', "2:10"),
    ("the whole home directory", '[containment]\nread = ["~/"]\n', "2:9"),
    ("unknown effect", '[effects]\nnothing = "deny"\n', "2:1"),
    ("unknown group", '[groups]\nnothing = "deny"\n', "2:1"),
    ("unknown decision", '[effects]\nnetwork = "maybe"\n', "2:1"),
    ("a list for a decision", '[effects]\nnetwork = ["deny"]\n', "2:1"),
    ("no list of rules", 'rule = "x"\n', "1:1"),
    ("a rule without a decision", '[[rule]]\ncommand = "x"\n', "1:1"),
    ("unknown key of a rule", RULE + 'becuase = "x"\n', "5:1"),
    ("a rule without words", '[[rule]]\ndecision = "deny"\n', "1:1"),
    ("a rule with shell in it", '[[rule]]\ncommand = "git push | cat"\n', "2:1"),
    ("a rule with a variable", '[[rule]]\ncommand = "git $x"\n', "2:1"),
    ("a rule with a path", '[[rule]]\ncommand = "/bin/rm"\n', "2:1"),
    ("a rule without an example", '[[rule]]\ncommand = "x"\ndecision = "deny"\n', "1:1"),
    ("a rule with another example alone", '[[rule]]\ncommand = "x"\ndecision = "deny"\nallow = ["y"]\n', "1:1"),
    ("an example that is no text", RULE + "allow = [5]\n", "5:1"),
    ("an example twice", RULE + 'allow = ["git push"]\n', "4:9"),
    ("a reason that is no text", RULE + "reason = 5\n", "5:1"),
    ("exact for a refusal", RULE + "exact = true\n", "5:1"),
    ("exact that is no switch", RULE + 'exact = "yes"\n', "5:1"),
    ("a failing example", RULE + 'allow = ["git -C d push"]\n', "1:1"),
    ("an example of another rule", '[[rule]]\ncommand = "git pull"\ndecision = "deny"\ndeny = ["sudo id"]\n', "1:1"),
    ("an example that is allowed anyway", '[[rule]]\ncommand = "make"\ndecision = "allow"\nallow = ["ls"]\n', "1:1"),
    ("an unreachable rule", RULE + RULE.replace('"git push"\n', '"git push origin"\n', 1), "5:1"),
    ("two rules of the same words", RULE + RULE, "5:1"),
    ("rules that contradict each other", RULE + RULE.replace("deny", "ask"), "5:1"),
    ("a rule that the denylist contradicts", 'denylist = ["rm"]\n[[rule]]\ncommand = "rm"\ndecision = "allow"\nallow = ["rm x"]\n', "2:1"),
    ("no list of grants", 'grant = "x"\n', "1:1"),
    ("a grant of nothing", '[[grant]]\ncommand = "npm install"\n', "1:1"),
    ("a grant without words", '[[grant]]\nnetwork = ["@npm"]\n', "1:1"),
    ("unknown key of a grant", '[[grant]]\ncommand = "npm install"\nnetwrok = ["@npm"]\n', "3:1"),
    ("always without a host", '[[grant]]\ncommand = "cat"\nread = ["/srv"]\nalways = true\n', "4:1"),
    ("a grant of a pattern of hosts", '[[grant]]\ncommand = "curl"\nnetwork = ["*.a.example:443"]\n', "3:12"),
    ("a grant of a relative path", '[[grant]]\ncommand = "cat"\nread = ["lib"]\n', "3:9"),
    ("a grant of a tag", '[[grant]]\ncommand = "git push"\npush = ["x refs/tags/*"]\n', "3:9"),
    ("a grant of no shape", '[[grant]]\ncommand = "gh"\nbroker = ["gh"]\n', "3:11"),
    ("a grant of no port", '[[grant]]\ncommand = "npm"\npublish = ["x"]\n', "3:12"),
    ("a grant twice", '[[grant]]\ncommand = "npm"\nnetwork = ["@npm", "@npm"]\n', "3:20"),
    ("a grant for a relative project", '[[grant]]\ncommand = "npm"\nnetwork = ["@npm"]\nproject = "app"\n', "4:1"),
    ("silence that cannot be", "timeout_seconds = 5\noutput.silence_seconds = 9\n", "2:1"),
    ("containment by nothing", 'profile = "workspace"\ncontainment.backend = "none"\n', "2:1"),
    ("not UTF-8", b'profile = "strict"\nx = "\xff"\n', "2:6"),
    ("too long", "#" * (MAX_FILE_BYTES + 1), "1:1"),
    ("too deep", "x = " + "[" * 5000 + "]" * 5000, "1:1"),
    ("too many rules", "".join(RULE.replace("push", f"p{n}") for n in range(501)), "2001:1"),
    ("a NUL", "profile = \"a\0b\"\n", "1:13"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "position"), MISTAKES, ids=[case[0] for case in MISTAKES])
def test_mistake_is_an_error_with_its_position(name: str, text: str | bytes, position: str) -> None:
    message = refused(text)
    assert message.startswith(f"F:{position}: ")
    # The text of tomllib differs between versions of Python, and the reason of a verdict belongs to the guard.
    golden.check("policy-errors", name, re.sub("(invalid TOML|but gives deny).*", r"\1", message, flags=re.DOTALL))


def test_key_inside_a_multiline_string_is_ignored() -> None:
    text = f"{RULE}reason = '''\nprofile = 1\n[containment]\n'''\nbecuase = 1\n"
    assert refused(text).startswith("F:9:1: ")


@pytest.mark.parametrize("zero", ["timeout_seconds = 0", "limits.processes = 0", "output.silence_seconds = 0", "output.spill_bytes = 0"])  # fmt: skip
def test_zero_means_no_limit(zero: str) -> None:
    assert len(parse(zero.encode(), "F")["settings"]) == 1


KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True)
SCALARS = st.one_of(
    st.integers(-5, 5).map(str),
    st.booleans().map(lambda value: str(value).lower()),
    st.text(alphabet="ab =[]#{},.\t'", max_size=8).map(lambda text: f'"{text}"'),
    st.text(alphabet='ab =[]#{},.\n"', max_size=8).map(lambda text: f"'''{text}'''"),
    st.sampled_from(['"""a"b""c"""', '"\\"="', "'\\'", '"""\\""""']),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ # why\n" + ",\n ".join(items) + "]"),
        st.dictionaries(KEYS, inner.filter(lambda text: "\n" not in text), max_size=3).map(
            lambda table: "{" + ", ".join(f"{key} = {value}" for key, value in table.items()) + "}"
        ),
    ),
    max_leaves=5,
)


@given(st.lists(st.tuples(KEYS, VALUES, st.integers(0, 3)), unique_by=lambda item: item[0]))
def test_position_of_every_key_is_found(items: list[tuple[str, str, int]]) -> None:
    text, wanted = "", {}
    for key, value, indent in items:
        text += "# = [x]\n" + " " * indent
        wanted[key,] = (text.count("\n") + 1, indent + 1)
        text += f"{key} = {value}\n"
    tree = tomllib.loads(text)
    found = key_positions(text)
    assert {path: place for path, place in found.items() if len(path) == 1} == wanted
    assert {path for path in found if path} == _paths(tree, ())


def _paths(value: Any, path: tuple[str | int, ...]) -> set[tuple[str | int, ...]]:
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)  # type: ignore[assignment]
    else:
        return set()
    return {deeper for key, item in inner for deeper in ({(*path, key)} | _paths(item, (*path, key)))}


def mistake(data: bytes) -> str | None:
    try:
        compile_policy(parse(data, "F"), "F")
    except PolicyError as error:
        return str(error)
    return None


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_raise_policy_error(data: bytes) -> None:
    assert (mistake(data) or "F:").startswith("F:")


@given(st.text(alphabet='profile="strict"\n[]{}.rule # command', max_size=60))
def test_any_text_parses_or_raises_policy_error(text: str) -> None:
    assert (mistake(text.encode()) or "F:").startswith("F:")
