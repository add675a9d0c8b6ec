"""Tests every shape of broker.toml by its examples, by options that it does not list, and by words in another order."""

from __future__ import annotations

import shlex

import pytest
from rule_tables import TABLES

from corral.guard.broker_shapes import Match, Mismatch, match_shape, sentences_about, shape_of
from corral.guard.rules import compiler
from corral.guard.rules.compiler import RuleError
from corral.guard.rules.loader import broker_programs
from corral.model.grant import Grant

PROGRAMS = TABLES["broker"]
SHAPES = [(program, shape) for program, row in PROGRAMS.items() for shape in row["shape"]]
SLUG = "owner/name"


def examples(kind: str) -> list[object]:
    return [pytest.param(program, shape["id"], text, id=text) for program, shape in SHAPES for text in shape[kind]]


def matched(text: str, slug: str = SLUG) -> Match | Mismatch:
    program, *words = shlex.split(text)
    return match_shape(program, tuple(words), slug)


@pytest.mark.parametrize(("program", "shape", "text"), examples("allow"))
def test_allow_example_has_its_shape(program: str, shape: str, text: str) -> None:
    found = matched(text)
    assert isinstance(found, Match), found
    assert found.target.partition("/")[0] == program
    assert shape in ("HOST", found.target.partition("/")[2])


@pytest.mark.parametrize(("program", "shape", "text"), examples("deny"))
def test_deny_example_has_no_shape(program: str, shape: str, text: str) -> None:
    found = matched(text)
    assert isinstance(found, Mismatch), (program, shape, found)
    assert found.reason


@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param(program, tuple(words), id=f"{program}-{' '.join(words)}")
        for program, row in PROGRAMS.items()
        for entry in row.get("never", [])
        for text in entry["words"]
        for words in [[word.split("|")[0].replace("*", "x") for word in text.split()]]
    ],
)
def test_words_that_are_never_run_give_their_reason(program: str, words: tuple[str, ...]) -> None:
    reasons = {entry["why"] for entry in PROGRAMS[program]["never"]}
    found = match_shape(program, (*words, "x"), SLUG)
    assert isinstance(found, Mismatch)
    assert found.reason in reasons


def listed_options() -> list[object]:
    return [
        pytest.param(program, number, spelling, id=f"{program}-{shape['id']}{spelling}")
        for program, row in broker_programs().items()
        for number, shape in enumerate(row["shapes"])
        for spelling in shape["options"]
    ]


@pytest.mark.parametrize(("program", "number", "spelling"), listed_options())
def test_near_miss_of_an_option_is_refused(program: str, number: int, spelling: str) -> None:
    shape = broker_programs()[program]["shapes"][number]
    allowed = PROGRAMS[program]["shape"][number]["allow"][0]
    every = {name for each in broker_programs()[program]["shapes"] for name in each["options"]}
    first = len(shape["words"][0]) if shape["words"] else 0
    words = shlex.split(allowed)[1:]
    # An abbreviation, a longer name, the name in another case, and the long name behind one dash.
    near = {
        spelling[:-1],
        f"{spelling}x",
        f"-{spelling}",
        spelling.swapcase(),
        spelling[1:] if spelling[1] == "-" else "--",
    }
    for wrong in near - every - {"-", "", "--"}:
        for more in ((wrong,), (wrong, "x"), (f"{wrong}=x",)):
            found = match_shape(program, (*words[:first], *more, *words[first:]), SLUG)
            assert isinstance(found, Mismatch), (wrong, found)


@pytest.mark.parametrize(("program", "shape", "text"), examples("allow"))
def test_unlisted_option_is_refused_in_every_place(program: str, shape: str, text: str) -> None:
    words = shlex.split(text)[1:]
    for at in range(len(words) + 1):
        found = match_shape(program, (*words[:at], "--corral-unlisted", *words[at:]), SLUG)
        if isinstance(found, Match):
            # It has become a value, or a word for the program in the container or on the other machine.
            assert not any(word == "--corral-unlisted" for word in found.argv) or shape in ("run", "HOST")


def test_two_dashes_are_no_way_around_the_list() -> None:
    for text in ("gh pr view -- 3", "kubectl get -- pods", "aws s3 ls -- x", "docker ps -- x", "gh -- pr view 3"):
        assert isinstance(matched(text), Mismatch), text


def test_program_gets_words_in_one_order_and_spelling() -> None:
    found = matched("kubectl -n web get pods -o wide")
    assert isinstance(found, Match)
    assert found.argv == ("get", "--namespace=web", "--output=wide", "pods")
    found = matched("gh pr create -t '--web' -b '- one' -H fix")
    assert isinstance(found, Match)
    assert found.argv == ("pr", "create", "--repo=owner/name", "--title=--web", "--body=- one", "--head=fix")


def test_files_are_named_by_position() -> None:
    found = matched("kubectl apply -f a.yaml -n web -f b.yaml")
    assert isinstance(found, Match)
    assert found.argv == ("apply", "--filename=a.yaml", "--namespace=web", "--filename=b.yaml")
    assert found.files == ((1, "--filename="), (3, "--filename="))


def test_host_of_ssh_is_the_target() -> None:
    assert shape_of("ssh", ("-p", "2222", "ann@build.example", "ls", "-la")) == "ssh/ann@build.example"
    assert shape_of("ssh", ("build.example", "-oProxyCommand=id", "ls")) is None


def test_habits_of_agents_with_ssh_are_left_out() -> None:
    words = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "build.example", "ls")
    found = match_shape("ssh", words)
    assert isinstance(found, Match)
    assert found.argv[-2:] == ("build.example", "ls")
    assert "-oStrictHostKeyChecking=yes" in found.argv
    assert not any(
        "=no" in word or "/dev/null" in word for word in found.argv if "StrictHost" in word or "Known" in word
    )
    assert isinstance(match_shape("ssh", ("-o", "ProxyCommand=id", "build.example", "ls")), Mismatch)


def test_remote_of_another_repository_is_refused_only_if_known() -> None:
    words = ("pr", "list", "-R", "other/name")
    assert shape_of("gh", words, SLUG) is None
    assert shape_of("gh", words) == "gh/read"


def test_unknown_program_and_empty_command_have_no_shape() -> None:
    assert shape_of("curl", ("x",)) is None
    for program in PROGRAMS:
        assert shape_of(program, ()) is None
        assert shape_of(program, ("",)) is None
        assert shape_of(program, ("a\0b",)) is None


def broken(**changes: object) -> dict[str, object]:
    shape = {"id": "a", "words": ["x"], "asks": "once", "deny": [], "allow": [], "options": ["-a --all"]}
    return {"box": "none", "shape": [shape | changes]}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (broken(colour="red"), "colour"),
        (broken(asks="never"), "asks"),
        (broken(options=["-a --all", "-a:"]), "'-a'"),
        (broken(options=["all"]), "'all'"),
        (broken(needs=["--none"]), "--none"),
        (broken(refuse={"--all": "("}), "--all"),
        (broken(refuse={"-a": "x"}), "'-a'"),
        ({"box": "none", "shape": []}, "needs shapes"),
        ({"shape": []}, "box"),
        ({"box": {"write": []}, "shape": []}, "write"),
        ({"box": "none", "never": [{"words": ["x"]}], "shape": []}, "never 1"),
        ({"box": "none", "colour": 1}, "colour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_error_names_file_row_and_key(row: dict[str, object], named: str) -> None:
    with pytest.raises(RuleError) as raised:
        compiler._broker_program("tool", row)
    assert "broker.toml: [tool]" in str(raised.value)
    assert named in str(raised.value)


@pytest.mark.parametrize(("program", "shape"), [pytest.param(p, s, id=f"{p}-{s['id']}") for p, s in SHAPES])
def test_shape_has_examples_of_both_kinds(program: str, shape: dict[str, object]) -> None:
    assert shape["allow"]
    assert shape["deny"]


def test_question_says_what_a_command_outside_does() -> None:
    targets = ("kubectl/apply 0123", "ssh/build.example 0123", "docker/logs")
    told = sentences_about([Grant("broker", target) for target in (*targets, "docker/logs")])
    assert told == [
        "It changes the cluster of your kubectl configuration.",
        "A file that it names is handed over as it is when the command runs.",
        "It runs a command on another machine, as you.",
        "It reads the output of a container of this machine.",
    ]
    assert sentences_about([Grant("network", "a.example:443")]) == []
