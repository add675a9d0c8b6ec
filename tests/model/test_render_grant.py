"""Grants as text: what a call needs, what a yes means, and what the user can type after a refusal."""

import pytest

import golden
from corral.model.call import Axis, Call, Decision, Finding, Verdict
from corral.model.grant import GRANT_KINDS, Grant
from corral.model.render_grant import (
    by_hand,
    declined_text,
    grant_text,
    is_own_network,
    meanings,
    needs_text,
    refusal_text,
    required_word,
    scope_text,
)

GRANTS = {
    "network": Grant("network", "index.example:443"),
    "registry": Grant("registry", "npm"),
    "read": Grant("read", "/home/me/lib"),
    "write": Grant("write", "/srv/data"),
    "create": Grant("create", "/home/me/new.txt"),
    "list": Grant("list", "/root"),
    "list of a tree": Grant("list", "/root/**"),
    "local": Grant("local", "5432"),
    "publish": Grant("publish", "3000"),
    "transport fetch": Grant("transport", "fetch git@forge.example:me/app.git"),
    "transport push": Grant("transport", "push git@forge.example:me/app.git refs/heads/fix"),
    "transport push of any branch": Grant("transport", "push git@forge.example:me/app.git"),
    "broker": Grant("broker", "gh/read"),
    "broker ssh": Grant("broker", "ssh/build.example"),
    "own network": Grant("network", "192.168.1.4:8080"),
}


def test_every_kind_of_grant_has_words() -> None:
    assert {name.partition(" ")[0] for name in GRANTS} >= set(GRANT_KINDS)


@pytest.mark.parametrize("name", GRANTS)
def test_words_of_a_grant(name: str) -> None:
    grant = GRANTS[name]
    text = "\n".join([grant_text(grant), *meanings([grant]), scope_text("cmd x", [grant]), required_word([grant])])
    golden.check("grants", name, text)


def test_control_characters_of_a_target_are_escaped() -> None:
    for kind in GRANT_KINDS:
        assert "\x1b" not in grant_text(Grant(kind, "push \x1b[2J x"))


def test_grants_are_listed_in_one_phrase() -> None:
    a, b, c = (Grant("network", f"{name}.example:1") for name in "abc")
    assert [needs_text(grants) for grants in ((), (a,), (a, b), (a, b, c))] == [
        "",
        "a.example:1",
        "a.example:1 and b.example:1",
        "a.example:1, b.example:1 and c.example:1",
    ]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("index.example:443", False),
        ("93.184.216.34:80", False),
        ("192.168.1.4:80", True),
        ("127.0.0.1:80", True),
        ("169.254.169.254:80", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("printer.local:631", True),
        ("nas:80", True),
    ],
)
def test_addresses_of_the_own_network_are_recognised(target: str, expected: bool) -> None:
    assert is_own_network(target) == expected


@pytest.mark.parametrize(
    ("kind", "target", "word"),
    [
        ("write", "/srv/x", "write"),
        ("transport", "push u refs/heads/main", "push"),
        ("transport", "push u refs/heads/fix refs/tags/v1", "push"),
        ("transport", "push u refs/heads/fix", ""),
        ("transport", "fetch u", ""),
        ("broker", "gh/pr-create", "create"),
        ("broker", "kubectl/apply", "apply"),
        ("broker", "docker/run", "run"),
        ("broker", "ssh/host", "ssh"),
        ("broker", "gh/read", ""),
        ("network", "a.example:1", ""),
    ],
)
def test_delicate_grants_need_a_word(kind: str, target: str, word: str) -> None:
    assert required_word([Grant("network", "b.example:1"), Grant(kind, target)]) == word


def finding(rule: str, *grants: Grant, decision: Decision = Decision.DENY, axis: Axis = Axis.ARGV) -> Finding:
    return Finding(axis, rule, decision, "It does something.", grants=grants, family="pip install" if grants else "")


def test_refusal_says_what_is_needed_and_what_to_do() -> None:
    grants = Grant("network", "index.example:443"), Grant("network", "files.example:443")
    verdict = Verdict((finding("argv-pip-install", *grants, decision=Decision.ASK),))
    golden.check("grants", "refusal", refusal_text(verdict, "7f3a"))
    golden.check("grants", "refusal without an id", refusal_text(verdict, ""))


def test_refusal_after_a_no_says_when_it_was() -> None:
    said = [declined_text(0.0, now, never=False) for now in (10.0, 61.0, 150.0)]
    golden.check("grants", "after a no", "\n".join([*said, declined_text(0.0, 1.0, never=True)]))


@pytest.mark.parametrize(
    ("call", "findings", "line"),
    [
        (Call(("apt-get", "install", "-y", "ffmpeg")), ("argv-apt-install",), "sudo apt-get install -y ffmpeg"),
        (Call("systemctl restart x", shell=True), ("argv-systemctl-system",), "systemctl restart x"),
        (Call("sudo id", shell=True), ("argv-sudo-privilege",), "sudo id"),
        (Call("apt update; apt install x", shell=True), ("argv-apt-install",), "apt update; apt install x"),
        (
            Call("gh pr create --title 'a b' --fill", shell=True),
            ("argv-cloud-network",),
            "gh pr create --title 'a b' --fill",
        ),
        (Call("git push --tags", shell=True), ("argv-git-network",), "git push --tags"),
        (Call("git add -A && git push --tags", shell=True), ("argv-git-network",), "git add -A && git push --tags"),
        (Call("git fetch up && make", shell=True), ("argv-git-network",), ""),
        (Call("git push --tags &&", shell=True), ("argv-git-network",), ""),
        (Call("git push --tags | sh", shell=True), ("argv-git-network",), ""),
        (Call("gh auth token", shell=True), ("argv-cloud-network",), ""),
        (Call("curl https://a.example/x", shell=True), ("argv-curl-network",), ""),
        (Call("ssh host `id`", shell=True), ("argv-ssh-network",), ""),
        (Call("git worktree add ../x -b y", shell=True), ("path-write-outside",), "git worktree add ../x -b y"),
        (Call("git worktree add ../x; id", shell=True), ("path-write-outside",), ""),
        (Call("cp x ../y", shell=True), ("path-write-outside",), ""),
        (Call("cat ~/.ssh/id_rsa", shell=True), ("path-read-secret",), ""),
        (Call("apt install x; cat ~/.ssh/k", shell=True), ("argv-apt-install", "path-read-secret"), ""),
        (Call("apt install x\ncurl y", shell=True), ("argv-apt-install",), ""),
        (Call("apt install \u202ex", shell=True), ("argv-apt-install",), ""),
        (Call("apt install " + "x" * 400, shell=True), ("argv-apt-install",), ""),
        (Call("x", shell=True), ("structure-limit",), ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_hard_refusal_names_the_command_to_run_by_hand(call: Call, findings: tuple[str, ...], line: str) -> None:
    assert by_hand(call, Verdict(tuple(map(finding, findings)))) == line


def test_program_refused_by_name_can_be_run_by_hand() -> None:
    call = Call("docker compose up", shell=True)
    assert by_hand(call, Verdict((finding("name-docker", axis=Axis.NAME),))) == "docker compose up"
    assert by_hand(call, Verdict((finding("name-docker", axis=Axis.NAME),), complete=False)) == ""
    assert by_hand(call, Verdict()) == ""
