"""Tests the user's own rules: a refusing rule matches every spelling, an allowing rule only its exact words."""

import pytest

from corral import SandboxConfig
from corral.guard.axes import user_rules
from corral.guard.evaluate import commands_of, vet
from corral.guard.machine import Machine
from corral.model.call import Axis, Call, Decision
from corral.policy.parser import parse
from corral.policy.rule_examples import config_of

ROOT = "/nonexistent/project"
PUSH = """
[[rule]]
command = "git push"
decision = "deny"
reason = "a person pushes"
instead = "Commit."
deny = ["git push"]
"""


def policy(text: str) -> SandboxConfig:
    return config_of(parse(text.encode(), "corral.toml"))


def decide(text: str, command: str) -> Decision:
    return vet(Call(command, shell=True), policy(text), Machine(ROOT)).decision


def rules_in(text: str, command: str) -> set[str]:
    return {finding.rule for finding in vet(Call(command, shell=True), policy(text), Machine(ROOT)).findings}


NEAR_MISSES = [
    "git status",
    "git stash push",
    "git commit -m push",
    "git commit -m 'git push'",
    "git log --grep push",
    "git log --author=push",
    "git add push",
    "git -C push status",
    "git -c push.default=simple status",
    "git branch push",
    "git help push",
    "git add $f",
    'git commit -m "$message"',
    "echo git push",
    "grep -r 'git push' docs",
    "cat <<'E'\ngit push\nE",
    "pushd src",
]


@pytest.mark.parametrize("command", NEAR_MISSES)
def test_near_misses_of_a_rule_are_not_refused(command: str) -> None:
    assert "policy-git-push" not in rules_in(PUSH, command)
    assert decide(PUSH, command) is decide("", command)


REFUSED = [
    "git push",
    "git push origin main",
    "git -c x=y push",
    "git -C d push",
    "git --git-dir d push",
    "git --git-dir=d push",
    "git --no-pager push",
    "git -P -C d -c a.b=c push --force",
    "git --unknown push",
    "git --unknown value push",
    "git -- push",
    "command git push",
    "builtin command git push",
    "env git push",
    "env -i A=b git push",
    "A=b git push",
    "/usr/bin/git push",
    "../../usr/bin/git push",
    "\\git push",
    "'git' \"push\"",
    "g'i't pu\"s\"h",
    "$'\\x67it' push",
    "g=git; $g push",
    "p=push; git $p",
    "x='git push'; $x",
    "x='git push'; eval $x",
    "eval 'git push'",
    "alias p='git push'; p",
    "git -c alias.p=push p",
    "f() { git push; }; f",
    "f() { git \"$@\"; }; f push",
    "echo origin | xargs git push",
    "echo push | xargs git",
    "xargs -n1 git push < list",
    "find . -maxdepth 0 -exec git push \\;",
    "bash -c 'git push'",
    "sh -c \"sh -c 'git push'\"",
    "nohup git push &",
    "timeout 5 git push",
    "nice -n 5 git push",
    "time git push",
    "! git push",
    "(git push)",
    "{ git push; }",
    "true && git push",
    "false || git push",
    "echo $(git push)",
    "echo `git push`",
    "cat <(git push)",
    "if git push; then :; fi",
    "for x in push; do git $x; done",
    "for x in fetch push; do git $x; done",
    "trap 'git push' EXIT",
    "sudo git push",
    "git-push",
    "/usr/lib/git-core/git-push origin",
    "$(echo git) push",
    "git $(echo push)",
    "git $what",
    "git \"$option\" push",
    "git pus?",
    "git {push,origin}",
    "ln -s /usr/bin/git g && ./g push",
    "cp /usr/bin/git g && ./g push",
    "bash <<< 'git push'",
    "bash <<E\ngit push\nE",
    "echo 'git push' | sh",
    "exec git push",
    "exec -a ls git push",
    "busybox env git push",
    "coproc git push",
    "git push | cat",
    "git push > log 2>&1",
    ">log git push",
]  # fmt: skip


@pytest.mark.parametrize("command", REFUSED)
def test_every_spelling_of_a_refused_command_is_refused(command: str) -> None:
    assert "policy-git-push" in rules_in(PUSH, command)
    assert decide(PUSH, command) is Decision.DENY


def test_unknown_subcommand_is_asked_about() -> None:
    verdict = vet(Call("git lg", shell=True), policy(PUSH), Machine(ROOT))
    assert [(f.rule, f.decision) for f in verdict.findings] == [("policy-git-push", Decision.ASK)]
    assert "`git push`" in verdict.reason


def test_finding_repeats_words_reason_and_instead() -> None:
    (found,) = [
        f for f in vet(Call(["git", "push"]), policy(PUSH), Machine(ROOT)).findings if f.rule == "policy-git-push"
    ]
    assert (found.axis, found.instead, found.argument) == (Axis.ARGV, "Commit.", 0)
    assert "`git push`" in found.reason
    assert "a person pushes" in found.reason


FORCE = '[[rule]]\ncommand = "git push --force"\ndecision = "deny"\ndeny = ["git push --force"]\n[effects]\nnetwork = "allow"\nhistory = "allow"\n'


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("git push", Decision.ALLOW),
        ("git push --force-with-lease", Decision.ALLOW),
        ("git push -- --force", Decision.ALLOW),
        ("git push --force", Decision.DENY),
        ("git push origin main --force", Decision.DENY),
        ("git push --forc", Decision.DENY),
        ("git -C d push --force", Decision.DENY),
        ("git push origin \"$branch\"", Decision.ASK),
    ],
)  # fmt: skip
def test_option_of_a_rule_matches_at_any_position(command: str, decision: Decision) -> None:
    assert decide(FORCE, command) is decision


CLUSTER = '[[rule]]\ncommand = "tool -rf"\ndecision = "deny"\ndeny = ["tool -rf"]\n'


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("tool -r", Decision.ALLOW),
        ("tool x", Decision.ALLOW),
        ("tool -fr x", Decision.DENY),
        ("tool -r x -f", Decision.DENY),
        ("tool -vfr", Decision.DENY),
    ],
)
def test_option_letters_match_together_and_apart(command: str, decision: Decision) -> None:
    assert decide(CLUSTER, command) is decision


GOAL = '[[rule]]\ncommand = "mvn deploy"\ndecision = "deny"\ndeny = ["mvn deploy"]\n'


def test_goals_match_in_any_order() -> None:
    assert decide(GOAL, "mvn -q clean deploy") is Decision.DENY
    assert decide(GOAL, "mvn clean test") is Decision.ALLOW


def test_abbreviated_subcommand_matches() -> None:
    text = '[[rule]]\ncommand = "npm publish"\ndecision = "deny"\ndeny = ["npm publish"]\n'
    assert decide(text, "npm publis") is Decision.DENY
    assert decide(text, "npm run publish") is Decision.ALLOW


def test_rule_of_one_word_matches_every_use() -> None:
    text = '[[rule]]\ncommand = "make"\ndecision = "ask"\nask = ["make all"]\n'
    assert decide(text, "env make -j4") is Decision.ASK
    assert decide(text, "cmake .") is Decision.ALLOW


ALLOW = """
profile = "workspace"
[[rule]]
command = "git push origin dev"
decision = "allow"
allow = ["git push origin dev"]
[[rule]]
command = "git push"
decision = "deny"
deny = ["git push origin main"]
"""


def test_first_matching_rule_counts() -> None:
    assert decide(ALLOW, "git push origin dev") is Decision.ALLOW
    assert decide(ALLOW, "git push origin main") is Decision.DENY


@pytest.mark.parametrize(
    "command",
    [
        "git -C d push origin dev",
        "/usr/bin/git push origin dev",
        "./git push origin dev",
        "git push origin de?",
        "git push origin $b",
        "git push $x origin dev",
        "git push --receive-pack='sh x' origin dev",
        "git -c core.sshCommand='sh x' push origin dev",
        "$g push origin dev",
    ],
)
def test_allowing_rule_matches_only_its_exact_words(command: str) -> None:
    assert decide(ALLOW, command) > Decision.ALLOW


def test_rule_lifts_only_effects_of_its_examples() -> None:
    text = 'profile = "strict"\n[[rule]]\ncommand = "git push"\ndecision = "allow"\nallow = ["git push origin dev"]\n'
    assert decide(text, "git push origin other") is Decision.ALLOW
    assert decide(text, "git push --receive-pack='sh x' origin dev") is Decision.DENY
    both = text.replace('["git push origin dev"]', '["git push origin dev", "git push --receive-pack=x origin dev"]')
    # The value is shell text that runs. The rule is about git, not about the commands that git starts.
    assert decide(both, "git push --receive-pack='rm -rf x' origin dev") is Decision.DENY
    assert decide(both, "git push --receive-pack=x origin dev") is Decision.ALLOW


def test_allowing_rule_does_not_lift_paths() -> None:
    text = 'profile = "strict"\neffects.delete-inside = "allow"\n[[rule]]\ncommand = "rm"\ndecision = "allow"\nallow = ["rm -r build"]\n'
    assert decide(text, "rm -r build") is Decision.ALLOW
    assert decide(text, "rm -r ../other") is Decision.DENY
    assert decide(text, "rm -r .git/hooks") is Decision.DENY


def test_exact_rule_allows_no_further_words() -> None:
    text = 'profile = "strict"\n[[rule]]\ncommand = "python3 -c pass"\nexact = true\ndecision = "allow"\nallow = ["python3 -c pass"]\n'
    assert decide(text, "python3 -c pass") is Decision.ALLOW
    assert decide(text, "python3 -c pass x") is Decision.DENY
    assert decide(text, "python3 -c 'pass; x'") is Decision.DENY


def test_redefined_allowed_name_is_judged_by_its_body() -> None:
    text = 'profile = "strict"\n[[rule]]\ncommand = "git push"\ndecision = "allow"\nallow = ["git push"]\n'
    assert decide(text, "git() { rm -rf x; }; git push") is Decision.DENY
    assert decide(text, "alias git='rm -rf x'; git push") is Decision.DENY


def test_many_unknown_options_do_not_take_exponential_time() -> None:
    (command,) = commands_of(Call(["tool", *[f"--o{n}" for n in range(400)], "push"]), Machine(ROOT))[0]
    file = policy('[[rule]]\ncommand = "tool push"\ndecision = "deny"\ndeny = ["tool push"]\n').rules.commands[0]
    assert [match.certainty for match in user_rules.matches(command, file)] == [user_rules.SURE]


def test_stricter_rule_of_two_files_counts() -> None:
    allowing = policy('[[rule]]\ncommand = "git push"\ndecision = "allow"\nallow = ["git push"]\n').rules
    refusing = policy(PUSH).rules
    config = SandboxConfig("/usr", profile=allowing.replace(commands=(*allowing.commands, *refusing.commands)))
    assert vet(Call("git push", shell=True), config, Machine(ROOT)).decision is Decision.DENY
