"""One policy file: every mistake is an error with its place, and what is right comes out as plain data."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.errors import PolicyError
from corral.policy.parser import MAX_FILE_BYTES, parse
from corral.policy.rule_examples import compile_policy
from corral.policy.toml_positions import key_positions

RULE = '[[rule]]\ncommand = "git push"\ndecision = "deny"\ndeny = ["git push"]\n'


def refused(text: str | bytes) -> str:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(PolicyError) as caught:
        compile_policy(parse(data, "F"), "F")
    return str(caught.value)


def test_an_empty_file_says_nothing() -> None:
    assert compile_policy(parse(b"", "F"), "F") == {"settings": [], "rules": []}


def test_settings_and_rules_come_with_their_places() -> None:
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
    }


def test_keys_may_be_dotted_inline_quoted_or_in_tables() -> None:
    wanted = [("containment.network", "off"), ("containment.ptrace", False)]
    for text in (
        'containment.network = "off"\ncontainment.ptrace = false\n',
        'containment = { network = "off", ptrace = false }\n',
        '["containment"]\n\'network\' = """off"""\nptrace = false # why\n',
        '[containment]\r\nnetwork = "off"\r\nptrace = false\r\n',
    ):
        assert [(key, value) for key, value, _, _ in parse(text.encode(), "F")["settings"]] == wanted


MISTAKES = [
    ("syntax", "profile = \n", "F:1:11: this is not TOML: Invalid value"),
    ("end of the document", 'profile = "', 'F:1:12: this is not TOML: Unterminated string'),
    ("a key twice", 'profile = "strict"\nprofile = "strict"\n', "F:2:19: this is not TOML: Cannot overwrite a value"),
    ("unknown key", 'profile = "strict"\n\n  colour = 1\n', "F:3:3: unknown key 'colour'; known: profile, "),
    ("a slip", 'profle = "strict"\n', "F:1:1: unknown key 'profle', did you mean 'profile'?; known: profile, "),
    ("unknown table", "[colour]\nx = 1\n", "F:1:1: unknown key 'colour'"),
    ("unknown key in a table", '[containment]\nnetwork = "on"\nnetwrk = "off"\n', "F:3:1: containment has no 'netwrk', did you mean 'network'?; known: backend"),
    ("what belongs to one call", '[output]\ndirectory_file = "/x"\n', "F:2:1: output has no 'directory_file'"),
    ("the root", 'project_root = "/"\n', "F:1:1: unknown key 'project_root'"),
    ("unknown profile", 'profile = "loose"\n', "F:1:1: profile must be one of 'workspace', 'strict', not 'loose'"),
    ("wrong type of a choice", "[containment]\nnetwork = true\n", "F:2:1: containment.network must be off, on, or a list of destinations such as 'index.example:443', not True"),
    ("a number for a switch", "[containment]\nptrace = 1\n", "F:2:1: containment.ptrace must be one of true, false, not 1"),
    ("a switch for a number", "timeout_seconds = true\n", "F:1:1: timeout_seconds must be a number, not True"),
    ("text for a number", '[limits]\nprocesses = "5"\n', "F:2:1: limits.processes must be a number, not '5'"),
    ("a negative number", "timeout_seconds = -1\n", "F:1:1: timeout_seconds must be a number above 0"),
    ("no number", "timeout_seconds = nan\n", "F:1:1: timeout_seconds must be a number above 0"),
    ("an endless number", "timeout_seconds = inf\n", "F:1:1: timeout_seconds must be at most 1e+09, not inf"),
    ("a number without end", f"timeout_seconds = {'9' * 5000}\n", "F:1:1: this is not TOML: Exceeds the limit"),
    ("a part of a byte", "[limits]\ndisk_bytes = 0.5\n", "F:2:1: limits.disk_bytes must be a whole number from 1 to 2**62, or 0 for none, not 0.5"),
    ("more than all of the memory", "[limits]\nmemory_bytes = 1.5\n", "F:2:1: limits.memory_bytes must be a whole number"),
    ("a date", "timeout_seconds = 2020-01-01\n", "F:1:1: timeout_seconds must be a number"),
    ("a table for a value", "[timeout_seconds]\nx = 1\n", "F:1:1: timeout_seconds must be a number"),
    ("a value for a table", "limits = 5\n", "F:1:1: limits must be a table, as in: [limits]"),
    ("a text for a list", 'denylist = "rm"\n', "F:1:1: denylist must be a list of names, not 'rm'"),
    ("a number in a list", 'denylist = ["rm",\n  5]\n', "F:2:3: denylist must be a list of names; this is 5"),
    ("a path in a list of names", 'denylist = ["rm",\n"/bin/rm"]\n', "F:2:1: denylist holds '/bin/rm'"),
    ("a pattern in a list of names", 'denylist = ["r*"]\n', "F:1:13: denylist takes whole names, not 'r*'"),
    ("a name twice", 'denylist = ["rm", "rm"]\n', "F:1:19: 'rm' stands in denylist twice"),
    ("a relative path", '[containment]\nread = ["/usr", "lib"]\n', "F:2:17: containment.read must be a list of absolute paths"),
    ("the root as a path", '[containment]\nwrite = ["/"]\n', "F:2:10: containment.write must be a list of absolute paths"),
    ("unknown effect", '[effects]\nnothing = "deny"\n', "F:2:1: effects has no 'nothing'"),
    ("unknown group", '[groups]\nnothing = "deny"\n', "F:2:1: groups has no 'nothing'"),
    ("unknown decision", '[effects]\nnetwork = "maybe"\n', "F:2:1: effects.network must be one of allow, ask, deny, not 'maybe'"),
    ("a list for a decision", '[effects]\nnetwork = ["deny"]\n', "F:2:1: effects.network must be one of"),
    ("no list of rules", 'rule = "x"\n', "F:1:1: rules are written as [[rule]]"),
    ("a rule without a decision", '[[rule]]\ncommand = "x"\n', "F:1:1: a rule needs a decision, one of allow, ask, deny"),
    ("unknown key of a rule", RULE + 'becuase = "x"\n', "F:5:1: a rule has no 'becuase'"),
    ("a rule without words", '[[rule]]\ndecision = "deny"\n', "F:1:1: command must be the first words of a command"),
    ("a rule with shell in it", '[[rule]]\ncommand = "git push | cat"\n', "F:2:1: command takes plain words, and '|' is none"),
    ("a rule with a variable", '[[rule]]\ncommand = "git $x"\n', "F:2:1: command takes plain words, and '$x' is none"),
    ("a rule with a path", '[[rule]]\ncommand = "/bin/rm"\n', "F:2:1: command begins with a program's name"),
    ("a rule without an example", '[[rule]]\ncommand = "x"\ndecision = "deny"\n', "F:1:1: a rule needs an example of what it decides"),
    ("a rule with another example alone", '[[rule]]\ncommand = "x"\ndecision = "deny"\nallow = ["y"]\n', "F:1:1: a rule needs an example"),
    ("an example that is no text", RULE + "allow = [5]\n", "F:5:1: allow must be a list of commands"),
    ("an example twice", RULE + 'allow = ["git push"]\n', "F:4:9: the example 'git push' stands here twice, as allow and as deny"),
    ("a reason that is no text", RULE + "reason = 5\n", "F:5:1: reason must be a text"),
    ("exact for a refusal", RULE + "exact = true\n", "F:5:1: exact is for rules that allow"),
    ("exact that is no switch", RULE + 'exact = "yes"\n', "F:5:1: exact must be true or false"),
    ("a failing example", RULE + 'allow = ["git -C d push"]\n', "F:1:1: the example 'git -C d push' should give allow, and gives deny"),
    ("an example of another rule", '[[rule]]\ncommand = "git pull"\ndecision = "deny"\ndeny = ["sudo id"]\n', "F:1:1: the example 'sudo id' gives deny, but not by this rule"),
    ("an example that is allowed anyway", '[[rule]]\ncommand = "make"\ndecision = "allow"\nallow = ["ls"]\n', "F:1:1: the example 'ls' gives allow, but not by this rule"),
    ("an unreachable rule", RULE + RULE.replace('"git push"\n', '"git push origin"\n', 1), "F:5:1: this rule is never reached: the one for 'git push' in line 1 decides first"),
    ("two rules of the same words", RULE + RULE, "F:5:1: this rule is never reached"),
    ("rules that contradict each other", RULE + RULE.replace("deny", "ask"), "F:5:1: this rule contradicts the one for 'git push' in line 1, which says deny"),
    ("a rule that the denylist contradicts", 'denylist = ["rm"]\n[[rule]]\ncommand = "rm"\ndecision = "allow"\nallow = ["rm x"]\n', "F:2:1: this rule allows rm, and denylist refuses it"),
    ("silence that cannot be", "timeout_seconds = 5\noutput.silence_seconds = 9\n", "F:2:1: 9 seconds of silence never pass"),
    ("containment by nothing", 'profile = "workspace"\ncontainment.backend = "none"\n', "F:2:1: workspace runs nothing that is not contained"),
    ("not UTF-8", b'profile = "strict"\nx = "\xff"\n', "F:2:6: not UTF-8"),
    ("too long", "#" * (MAX_FILE_BYTES + 1), "F:1:1: longer than"),
    ("too deep", "x = " + "[" * 5000 + "]" * 5000, "F:1:1: nested too deeply"),
    ("too many rules", "".join(RULE.replace("push", f"p{n}") for n in range(501)), "F:2001:1: more than 500 rules"),
    ("a NUL", "profile = \"a\0b\"\n", "F:1:13: this is not TOML: Illegal character"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_a_mistake_is_an_error_with_its_place(text: str | bytes, message: str) -> None:
    assert refused(text).startswith(message)


def test_a_key_inside_a_text_of_several_lines_is_no_key() -> None:
    text = f"{RULE}reason = '''\nprofile = 1\n[containment]\n'''\nbecuase = 1\n"
    assert refused(text).startswith("F:9:1: a rule has no 'becuase'")


@pytest.mark.parametrize("zero", ["timeout_seconds = 0", "limits.processes = 0", "output.silence_seconds = 0", "output.spill_bytes = 0"])  # fmt: skip
def test_nought_may_be_written_where_it_means_none(zero: str) -> None:
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
def test_every_key_of_a_text_is_found_where_it_stands(items: list[tuple[str, str, int]]) -> None:
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
def test_no_bytes_are_anything_but_a_policy_or_an_error_of_it(data: bytes) -> None:
    assert (mistake(data) or "F:").startswith("F:")


@given(st.text(alphabet='profile="strict"\n[]{}.rule # command', max_size=60))
def test_no_text_is_anything_but_a_policy_or_an_error_of_it(text: str) -> None:
    assert (mistake(text.encode()) or "F:").startswith("F:")
