"""Pins the wording of refusals: a call for every effect, group of names, row with its own reason, and rule about the call itself.

The texts are in tests/golden/refusals.txt. Other tests assert rule ids and quoted parts of a call.
"""

import pytest
from rule_tables import ROWS, TABLES

from corral import Containment, SandboxConfig
from corral.guard.axes.structure import SHAPE_RULES
from corral.guard.evaluate import vet
from corral.guard.git_remotes import Remotes
from corral.guard.machine import Machine
from corral.guard.rules.loader import CommandRule, parse_profile
from corral.model.call import Call, Decision
from golden import check, read

ROOT = "/home/user/project"
DENY_ALL = parse_profile("nothing", {})  # decides deny for every effect and group

# Rule id, and a call that meets it. A second call of the same rule has no argument to name.
EFFECTS = [
    ("argv-python-code", "python3 -c 'import os'"),
    ("argv-deno-code", "deno eval x"),
    ("argv-bash-code-stdin", "bash"),
    ("argv-git-code-option", "git -c core.pager='sh x' log"),
    ("argv-choom-code-option", "choom -n 0 sh"),
    ("argv-node-code-loaded", "node -r ./hook.js app.js"),
    ("argv-call-code-loaded", "export BASH_ENV=x"),
    ("structure-code-unproven", 'bash -c "$TEXT"'),
    ("structure-name-unproven", "$TOOL x"),
    ("structure-word-unproven", "git log $REF"),
    ("structure-metacharacter", ["echo", "a;b"]),
    ("structure-metacharacter", ["echo", "a\nb"]),
    ("structure-unparsed", "echo 'x"),
    ("structure-unparsed", "echo \u202ex"),
    ("structure-limit", "env " * 1000 + "ls"),
    ("structure-limit", f"echo {'a' * 1_000_000}"),
    ("structure-shadow", "PATH=./bin:$PATH; ls"),
    ("structure-shadow", "alias x=ls"),
    ("argv-git-network", "git push origin main"),
    ("argv-git-remote", "git remote set-url origin https://a.example/x"),
    ("argv-curl-network", "curl https://a.example https://b.example"),
    ("argv-cloud-network", "gh pr view"),
    ("argv-curl-network-local", "curl http://localhost:8000/x"),
    ("argv-nc-network-listen", "nc -l 80"),
    ("argv-pip-install", "pip install requests rich"),
    ("argv-npm-fetch", "npm ci"),
    ("argv-npx-fetch-missing", "npx prettier --check ."),
    ("argv-unknown-network-maybe", "frobnicate https://a.example"),
    ("argv-curl-network-unproven", "curl https://$HOST/x"),
    ("argv-call-flood", "while true; do ls & done"),
    ("argv-make-secret-inline", "GITHUB_TOKEN=x make"),
    ("argv-corral-privilege", "corral run --grant x ls"),
    ("argv-signal-process", "kill 1234"),
    ("argv-systemctl-system", "systemctl restart nginx"),
    ("argv-git-history", "git push --force origin main"),
    ("argv-git-discard", "git restore ."),
    ("argv-rake-wipe", "rake db:drop"),
    ("argv-python-run-written", "echo 'import os' > x.py; python3 x.py"),
    ("path-run-inside", "./script.sh"),
    ("path-run-scratch", "/tmp/script.sh"),
    ("path-run-system", "/usr/bin/wc"),
    ("path-run-outside", "/srv/data/tool"),
    ("path-run-missing", "/srv/none/tool"),
    ("path-read-inside", "cat notes.txt"),
    ("path-read-env", "cat .env"),
    ("path-read-scratch", "cat /tmp/x"),
    ("path-read-system", "cat /etc/passwd"),
    ("path-read-secret", "cat ~/.ssh/id_rsa"),
    ("path-read-private", "cat /var/log/data/x"),
    ("path-read-outside", "cat /srv/data/x"),
    ("path-read-ancestor", "ls .."),
    ("path-read-missing", "cat /srv/none/x"),
    ("path-read-device", "cat /dev/sda"),
    ("path-write-inside", "echo x > notes.txt"),
    ("path-write-protected", "cp -t .git/hooks x"),
    ("path-write-manifest", "echo x > Makefile"),
    ("path-write-scratch", "echo x > /tmp/x"),
    ("path-write-outside", "echo x > /srv/data/x"),
    ("path-write-secret", "echo x > ~/.bashrc"),
    ("path-write-device", "echo x > /dev/sda"),
    ("path-delete-inside", "rm notes.txt"),
    ("path-delete-root", "rm -rf ."),
    ("path-delete-outside", "rm /srv/data/x"),
    ("path-unproven", "cat $FILE"),
]
GROUPS = {
    "delete": "rm x", "disk": "mkfs.ext4 x", "privilege": "sudo ls", "permission": "chmod +x x", "process": "kill 1", "power": "reboot",
    "network": "curl x", "firewall": "iptables -F", "scheduler": "crontab x", "service": "useradd x", "package": "apt install x",
    "module": "insmod x.ko", "mount": "unshare ls", "container": "docker ps", "evaluate": "eval ls", "session": "tmux", "clipboard": "xclip -o",
}  # fmt: skip
OWN_REASONS = {"mount": "mount a b", "agent": "claude -p x"}  # rows with a `why` of their own
SHAPES = {
    "structure-cwd": Call(["ls"], cwd="a\0b"),
    "structure-empty": Call([]),
    "structure-env": Call(["ls"], env={"A=B": "x"}),
    "structure-list": Call(["ls", "x"], shell=True),
    "structure-nul": Call(["ls", "a\0b"]),
    "structure-size": Call(["ls", *["x"] * 100_000]),
    "structure-string": Call("ls -la"),
    "structure-type": Call(["ls", 3]),
    "path-cwd": Call(["ls"], cwd="/srv/data"),
}


class FixedMachine(Machine):
    """A machine whose answers do not depend on this one: /srv/data and /var/log/data exist, and leak is a link to a file there."""

    def resolve(self, path: str, cwd: str) -> str:
        absolute = self.absolute(path, cwd)
        return "/srv/data/x" if absolute == f"{ROOT}/leak" else absolute

    def exists(self, path: str, cwd: str) -> bool:
        return self.absolute(path, cwd).startswith(("/srv/data", "/var/log/data"))

    def is_directory(self, path: str) -> bool:
        return path.endswith("hooks")

    def remotes(self, cwd: str) -> Remotes:
        return Remotes({"origin": "https://forge.example/x"}, {})

    def matches(self, pattern: str, cwd: str) -> list[str]:
        return []


def refusal(argv: object, rule: str, machine: Machine | None = None, **settings: object) -> str:
    """Return a call and the text of its finding of one rule, as in the golden file."""
    call = argv if isinstance(argv, Call) else Call(argv, shell=isinstance(argv, str))  # type: ignore[arg-type]
    config = SandboxConfig("/usr/share", **{"profile": DENY_ALL, **settings})  # type: ignore[arg-type]
    findings = vet(call, config, machine or FixedMachine(ROOT, home="/home/user")).findings
    found = {finding.rule: finding for finding in findings}
    assert rule in found, sorted(found)
    text = call.argv if isinstance(call.argv, str) else repr(list(call.argv))
    shown = text.encode("ascii", "backslashreplace").decode()
    return "\n".join([shown if len(shown) <= 80 else f"{shown[:80]}…", found[rule].reason, found[rule].instead])


def numbered(cases: list[tuple[str, str | list[str]]]) -> list[object]:
    rules = [rule for rule, _ in cases]
    made = []
    for index, (rule, argv) in enumerate(cases):
        name = rule if rules.count(rule) == 1 else f"{rule} {rules[:index].count(rule) + 1}"
        made.append(pytest.param(rule, argv, name, id=name))
    return made


@pytest.mark.parametrize(("rule", "argv", "name"), numbered(EFFECTS))
def test_refusal_of_an_effect(rule: str, argv: str | list[str], name: str) -> None:
    check("refusals", name, refusal(argv, rule))


@pytest.mark.parametrize("name", GROUPS)
def test_refusal_of_a_group_of_names(name: str) -> None:
    program = GROUPS[name].partition(" ")[0].partition(".")[0]
    text = refusal(GROUPS[name], f"name-{program}")
    assert TABLES["groups"][name]["why"] in text
    check("refusals", f"group {name}", text)


@pytest.mark.parametrize("name", OWN_REASONS)
def test_refusal_of_a_row_with_its_own_reason(name: str) -> None:
    text = refusal(OWN_REASONS[name], f"name-{OWN_REASONS[name].partition(' ')[0]}")
    assert ROWS[name]["why"] in text
    check("refusals", f"row {name}", text)


@pytest.mark.parametrize("rule", SHAPES)
def test_refusal_of_the_call_itself(rule: str) -> None:
    check("refusals", rule, refusal(SHAPES[rule], rule))


def test_refusal_of_a_link_that_leads_outside() -> None:
    profile = parse_profile("links", {"effects": {"read-outside": "allow"}})
    check("refusals", "path-link-out", refusal("cat leak", "path-link-out", profile=profile))


def test_question_about_a_missing_path() -> None:
    text = refusal("rm /srv/none/x", "path-change-missing", profile="workspace", posture="balanced")
    check("refusals", "path-change-missing", text)


def test_question_about_a_push_without_a_repository() -> None:
    text = refusal("git push origin fix", "argv-git-push-missing", profile="workspace", posture="balanced")
    check("refusals", "argv-git-push-missing", text)


@pytest.mark.parametrize("address", ["https://other.example/x", "other.example"])
def test_refusal_of_a_destination_that_is_not_granted(address: str) -> None:
    granted = Containment(network=("granted.example:443",))
    text = refusal(f"curl {address}", "argv-curl-network-elsewhere", containment=granted)
    check("refusals", f"argv-curl-network-elsewhere {address}", text)


def test_refusal_of_a_name_that_the_user_lists() -> None:
    check("refusals", "name listed by the user", refusal("ls -la", "name-ls", denylist={"ls"}))


def test_refusal_of_a_listed_program_under_another_name() -> None:
    check("refusals", "name by path", refusal("/usr/bin/rm.real x", "name-rm", denylist={"rm.*"}))


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("git push", CommandRule(("git", "push"), Decision.DENY, "a person pushes", "Commit.")),
        ("git push", CommandRule(("git", "push"), Decision.ASK, source="corral.toml:7")),
        ("git lg", CommandRule(("git", "push"), Decision.DENY, "a person pushes", "Commit.")),
        ("npm test", CommandRule(("npm",), Decision.DENY, "use pnpm!")),
    ],
    ids=["with a reason", "without a reason", "a possible alias", "by name"],
)
def test_refusal_by_a_rule_of_the_user(request: pytest.FixtureRequest, command: str, rule: CommandRule) -> None:
    profile = DENY_ALL.replace(commands=((rule,),))
    check("refusals", f"policy {request.node.callspec.id}", refusal(command, rule.id, profile=profile))


def test_refusal_of_a_call_on_which_the_guard_crashes() -> None:
    class Broken(Machine):
        def resolve(self, path: str, cwd: str) -> str:
            raise RuntimeError(path)

    check("refusals", "structure-crash", refusal("cat x", "structure-crash", Broken(ROOT)))


def test_every_refusal_has_a_golden_entry() -> None:
    asked = {"path-link-out", "path-change-missing", "argv-git-push-missing", "argv-curl-network-elsewhere"}
    rules = {rule for rule, _ in EFFECTS} | asked
    for key, data in TABLES["effects"].items():
        assert any(rule.startswith(data["axis"]) and rule.endswith(f"-{key}") for rule in rules), key
    assert set(GROUPS) == set(TABLES["groups"])
    assert set(OWN_REASONS) == {name for name, row in ROWS.items() if "why" in row}
    assert {*SHAPES, "structure-crash"} == set(SHAPE_RULES)


def test_refusals_use_plain_words() -> None:
    texts = read("refusals")
    odd = [name for name, text in texts.items() if " owner " in text or "({" in text or not text.endswith((".", "!"))]
    assert odd == []
