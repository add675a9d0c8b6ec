"""Names of refs, paths and settings that cross are valid for git, and never hide one of the user's."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.git.config_file import changes, is_safe_url, listed, name_of, parse
from corral.git.names import is_safe_path, is_safe_symref, why_not_ref
from corral.git.refs import read_log, read_refs, read_value, update_ref, write_refs
from corral.git.safe_files import SafeTree

OID = "a" * 40
PIECES = st.sampled_from(
    [
        "a",
        "B",
        ".",
        "..",
        "-",
        "/",
        "~",
        "^",
        ":",
        "@{",
        "@",
        "\\",
        "*",
        "[",
        " ",
        "\n",
        "\0",
        "\x7f",
        "é",
        "\udcff",
        ".lock",
        "HEAD",
    ]
)


@settings(max_examples=80)
@given(st.lists(PIECES, min_size=1, max_size=6).map("".join))
def test_git_takes_every_ref_that_may_cross(short: str) -> None:
    name = f"refs/heads/{short}"
    if why_not_ref(name, ()):
        return

    assert subprocess.run(["git", "check-ref-format", name], check=False).returncode == 0


@pytest.mark.parametrize("name", ["refs/heads/origin", "refs/tags/origin"])
def test_no_ref_hides_the_default_branch_of_a_remote(name: str) -> None:
    assert why_not_ref(name, ()) == ""
    assert why_not_ref(name, ("refs/remotes/origin/HEAD",))


@pytest.mark.parametrize(
    "target",
    [
        "refs/remotes/o/a\0b",
        "refs/remotes/o/../../heads/x",
        "refs/remotes/o/a b",
        "refs/heads/x",
        "refs/remotes/o/\udcff",
    ],
)
def test_a_symbolic_ref_leads_to_a_valid_name(target: str) -> None:
    assert is_safe_symref("refs/remotes/o/HEAD", "refs/remotes/o/main", ())
    assert not is_safe_symref("refs/remotes/o/HEAD", target, ())


@given(
    st.lists(
        st.sampled_from([b"a", b".git", b".GIT", b"git~1", b"..", b".", b"", b"\xe2\x80\x8c.git", b".git ", b"\\"]),
        min_size=1,
        max_size=4,
    )
)
def test_no_safe_path_leads_into_a_git_directory(parts: list[bytes]) -> None:
    path = b"/".join(parts)
    if is_safe_path(path):
        assert not {b".git", b".GIT", b"git~1", b"..", b".", b"", b"\xe2\x80\x8c.git", b".git "} & set(parts)


KEYS = st.sampled_from(["url", "fetch", "pushurl", "uploadpack", "vcs", "remote", "merge", "pushRemote", "fsmonitor"])
VALUES = st.sampled_from(
    [
        "https://x.example/y",
        "ext::sh -c id",
        'ext:":sh -c id"',
        "ext:\\\n:sh -c id",
        "-x",
        "refs/heads/main",
        "origin",
        "ssh://-oProxyCommand=x/y",
        "true",
    ]
)
SECTIONS = st.sampled_from(
    ['remote "new"', 'remote "origin"', 'branch "main"', 'branch "new"', "core", 'filter "x"', "alias"]
)


@settings(max_examples=150)
@given(st.lists(st.tuples(SECTIONS, KEYS, VALUES), max_size=6))
def test_only_harmless_settings_cross(added: list[tuple[str, str, str]]) -> None:
    users = '[remote "origin"]\n\turl = https://good.example/x\n'
    text = users + "".join(f"[{section}]\n\t{key} = {value}\n" for section, key, value in added)
    base = parse(users)

    for each in changes(base, base, parse(text), ("refs/heads/main",)):
        if each.why:
            continue
        (section, subsection, name), values = each.key, each.values
        assert section in ("remote", "branch")
        assert (section, subsection) != ("remote", "origin")
        assert name in ("url", "fetch", "remote", "merge")
        assert not any(value.startswith("-") or "::" in value for value in values)


@settings(max_examples=30)
@given(subsection=st.text(st.sampled_from('ab.-" \\é'), min_size=1, max_size=6), name=st.sampled_from(["url", "merge"]))
def test_names_of_settings_are_those_of_git(
    tmp_path_factory: pytest.TempPathFactory, subsection: str, name: str
) -> None:
    file = tmp_path_factory.mktemp("config") / "config"
    key = ("remote", subsection, name)
    subprocess.run(["git", "config", "--file", file, name_of(key), "value"], check=True)
    done = subprocess.run(
        ["git", "config", "--file", file, "--list", "--show-scope", "-z"], check=True, capture_output=True
    )

    assert ("command", key) in listed(done.stdout)


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c x",
        "ssh://-oProxyCommand=x/y",
        "a@-x:y",
        "fd::1",
        "http://x.example/y",
        "git://x.example/y",
        "-u",
        "https://x y",
        "",
    ],
)
def test_an_address_that_runs_a_program_is_refused(url: str) -> None:
    assert is_safe_url("https://x.example/y")
    assert not is_safe_url(url)


@given(st.text(max_size=60))
def test_a_value_of_a_ref_is_one_line_or_nothing(text: str) -> None:
    value = read_value(text)

    assert value == "" or ("\n" not in value and (value.startswith("ref: refs/") or len(value) == 40))


NAMES = st.sampled_from([f"refs/heads/{name}" for name in ("a", "b/c", "d", "é", "\udcff")])
REFS = st.dictionaries(NAMES, st.sampled_from([OID, "b" * 40]), max_size=4)


@settings(max_examples=40)
@given(first=REFS, second=REFS)
def test_written_refs_are_read_again(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, str], second: dict[str, str]
) -> None:
    with SafeTree(str(tmp_path_factory.mktemp("refs"))) as tree:
        for wanted in (first, second):
            write_refs(tree, wanted)
            assert read_refs(tree) == wanted


def test_a_ref_that_a_command_changes_meanwhile_stays(tmp_path: Path) -> None:
    with SafeTree(str(tmp_path)) as tree:
        write_refs(tree, {"refs/heads/a": OID})
        (tmp_path / "refs/heads/a").write_text(f"{'b' * 40}\n")

        assert not update_ref(tree, "refs/heads/a", OID, "c" * 40)
        assert not update_ref(tree, "refs/heads/a", OID, "")
        assert read_refs(tree) == {"refs/heads/a": "b" * 40}


def test_a_lock_of_a_command_is_respected(tmp_path: Path) -> None:
    with SafeTree(str(tmp_path)) as tree:
        write_refs(tree, {"refs/heads/a": OID})
        (tmp_path / "refs/heads/a.lock").touch()

        assert not update_ref(tree, "refs/heads/a", OID, "b" * 40)
        assert (tmp_path / "refs/heads/a.lock").exists()
        assert read_refs(tree) == {"refs/heads/a": OID}


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "secret").write_text(f"{OID} {OID} x\tm\n")
    (tmp_path / "logs" / "HEAD").symlink_to("../secret")
    os.mkfifo(tmp_path / "packed-refs")
    with SafeTree(str(tmp_path)) as tree:
        assert read_log(tree, "HEAD") == []
        assert read_refs(tree) == {}


@pytest.mark.parametrize(
    ("name", "crosses"),
    [
        ("refs/original/refs/heads/main", True),
        ("refs/original/refs/tags/v1", True),
        ("refs/original/refs/heads/$(id)", False),
        ("refs/original/refs/replace/x", False),
        ("refs/original/heads/main", False),
        ("refs/original/refs/original/refs/heads/main", False),
    ],
)
def test_originals_of_filter_branch_cross(name: str, *, crosses: bool) -> None:
    assert (not why_not_ref(name, ("refs/heads/main", "refs/tags/v1"))) == crosses
