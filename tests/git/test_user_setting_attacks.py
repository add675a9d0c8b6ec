"""Attacks by files of the project that the user's own git uses: hooks behind links, included files, programs that settings name."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

COMMIT = "git commit -q --allow-empty -m mine"
STATUS = "git status"
MONITOR = "'[core]\\n\\tfsmonitor = ' + TOUCH + '; false\\n'"
EMPTY = "echo '#!/bin/sh'"


def program(path: str) -> str:
    """Return a line that writes a program of the attacker."""
    return f"put({path!r}, '#!/bin/sh\\n' + TOUCH + '\\n', 0o755)"


ATTACKS = {
    "hooks in the project, for all repositories": Attack(program(".githooks/pre-commit"), COMMIT, CANARY, "git config --global core.hooksPath .githooks"),
    "hooks in the project, for all repositories, changed": Attack(
        program(".githooks/pre-commit"),
        COMMIT,
        CANARY,
        f"git config --global core.hooksPath .githooks; mkdir .githooks; {EMPTY} > .githooks/pre-commit; chmod +x .githooks/pre-commit",
    ),
    "hooks in the project": Attack(program(".githooks/pre-commit"), COMMIT, CANARY, "git config core.hooksPath .githooks"),
    "hooks of a worktree in the project": Attack(program(".githooks/pre-commit"), "cd ../wt && git commit -q --allow-empty -m x", CANARY, "git config core.hooksPath $P/.githooks; git worktree add -q ../wt side"),
    "hook that is a link": Attack(program("scripts/x"), COMMIT, CANARY, f"mkdir scripts; {EMPTY} > scripts/x; chmod +x scripts/x; ln -s ../../scripts/x .git/hooks/pre-commit"),
    "hook that is a link to a missing file": Attack(program("scripts/x"), COMMIT, CANARY, "mkdir scripts; ln -s ../../scripts/x .git/hooks/pre-commit"),
    "hooks that are a link": Attack(program("scripts/pre-commit"), COMMIT, CANARY, "mkdir scripts; rm -rf .git/hooks; ln -s ../scripts .git/hooks"),
    "hook of a submodule that is a link": Attack(
        program("scripts/x"),
        "cd sub; git commit -q --allow-empty -m x",
        CANARY,
        f"git submodule -q add ../remote.git sub; git commit -qm sub; mkdir scripts; {EMPTY} > scripts/x; chmod +x scripts/x; ln -s $P/scripts/x .git/modules/sub/hooks/pre-commit",
    ),
    "script that a hook manager's hook starts": Attack(
        program(".husky/pre-commit"),
        COMMIT,
        CANARY,
        "git config core.hooksPath .husky/_; mkdir -p .husky/_; printf '#!/bin/sh\\nsh .husky/pre-commit\\n' > .husky/_/pre-commit; chmod +x .husky/_/pre-commit",
    ),
    "file that the user includes everywhere": Attack(f"put('team', {MONITOR})", STATUS, CANARY, "git config --global include.path $P/team"),
    "file that the user includes on a condition": Attack(f"put('team', {MONITOR})", STATUS, CANARY, "git config --global includeIf.gitdir:$P/.path $P/team"),
    "file that an included file includes": Attack(f"put('team', {MONITOR})", STATUS, CANARY, "git config --global include.path $OUT/mine; git config --file $OUT/mine include.path $P/team"),
    "attributes for all repositories": Attack(
        "put('attrs', '* filter=x\\n')",
        "rm f; git checkout f",
        CANARY,
        "git config --global core.attributesFile $P/attrs; git config --global filter.x.smudge \"touch $OUT/canary; cat\"",
    ),
    "file monitor": Attack(program("tools/x"), STATUS, CANARY, "git config --global core.fsmonitor tools/x"),
    "file monitor, started by an interpreter": Attack(program("tools/x"), STATUS, CANARY, f"mkdir tools; {EMPTY} > tools/x; git config core.fsmonitor 'sh tools/x'"),
    "signer": Attack(program("sign"), "git commit -q -S --allow-empty -m x", CANARY, "git config --global gpg.program ./sign"),
    "credential helper": Attack(program("x"), "printf 'protocol=https\\nhost=example.invalid\\n\\n' | git credential fill", CANARY, "git config --global credential.helper $P/x"),
    "ssh": Attack(program("x"), "git fetch ssh://user@example.invalid/x", CANARY, "git config --global core.sshCommand ./x"),
    "converter for diffs": Attack(f"{program('x')}\nput('.gitattributes', '* diff=x\\n')", "echo x >> f; git diff", CANARY, "git config diff.x.textconv ./x"),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_attack_by_the_users_settings_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_attack_by_the_users_settings_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
