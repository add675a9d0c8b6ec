"""Attacks through values that git accepts and the user's git, shell or prompt then acts on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, EVIL_FILE, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

EXT = "git config --global protocol.ext.allow always"
SUBMODULE = "git submodule -q add ../remote.git sub; git commit -qm sub"
UNUSED = f"{SUBMODULE}; git submodule -q deinit -f sub; rm -rf .git/modules/sub"
COMMIT = "echo x >> f; git add f; git commit -qm mine"
ATTACKS = {
    "second url of a submodule": Attack(
        "append('.git/config', f'[submodule \"sub\"]\\n\\tactive = true\\n\\turl = https://good.example/x\\n\\turl = ext::touch {OUT}/canary\\n')",
        "git submodule update", CANARY, f"{EXT}; {UNUSED}",
    ),
    "upstream that is an address": Attack(
        # For git the section of the remote is part of the value above it.
        "url = f'ext::touch {OUT}/canary'\ngit('branch', 'evil')\n"
        "append('.git/config', f'[x]\\n\\ty = z \\\\\\n[remote \"{url}\"]\\n\\turl = https://good.example/x\\n[branch \"evil\"]\\n\\tremote = {url}\\n\\tmerge = refs/heads/main\\n')",
        "git checkout -q evil; git pull", CANARY, EXT,
    ),
    "fetch setting that git cannot read": Attack(
        "append('.git/config', '[remote \"x\"]\\n\\turl = https://good.example/x\\n\\tfetch = +refs/heads/*:refs/remotes/x/..\\n')",
        "true", "! git fetch -q origin",
    ),
    "remote whose name is no ref": Attack(
        "append('.git/config', '[remote \"a..b\"]\\n\\turl = https://good.example/x\\n\\tfetch = +refs/heads/*:refs/remotes/a..b/*\\n')",
        "true", "! git fetch -q origin",
    ),
    "upstream moved to another remote": Attack(
        "append('.git/config', '[branch \"main\"]\\n\\tremote = other\\n')\ntext = open('.git/config').read().replace('remote = origin\\n\\tmerge', 'merge')\nput('.git/config', text)",
        "echo x >> f; git commit -qam mine; git push -q", "git -C ../other.git rev-parse main",
        "git init -q --bare ../other.git; git remote add other ../other.git",
    ),
    "worktree at a commit that is not there": Attack(
        "git('worktree', 'add', '-q', '--detach', 'wt')\nput('.git/worktrees/wt/HEAD', '12' * 20 + '\\n')", "true", "! git gc -q",
    ),
    "worktree of the user's removed": Attack(
        "shutil.rmtree('.git/worktrees/wt')\nshutil.rmtree('wt')", "true", "! git rev-list --all | grep -q $(cat $OUT/name)",
        "git worktree add -q --detach wt; git -C wt commit -q --allow-empty -m mine; git -C wt rev-parse HEAD > $OUT/name",
    ),
    "entry of a file that is a tree": Attack(
        "forge_index('.git/index', ('100644', git('rev-parse', 'HEAD:dir'), 'x'))", f"{COMMIT}; git fsck", "grep -q 'is a tree, not a blob' $SAID",
    ),
    "entry of a submodule without a commit": Attack("forge_index('.git/index', ('160000', '0' * 40, 'x'))", "echo x >> f; git add f", "! git commit -qm mine"),
    "default branch of a remote that is itself": Attack(
        "put('.git/refs/remotes/origin/HEAD', 'ref: refs/remotes/origin/HEAD\\n')", "git fsck; git fetch; git gc; git log --all", "grep -q 'origin/HEAD' $SAID", "git remote set-head origin main",
    ),
    "tag that alone leads to a commit": Attack(
        "git('tag', '-d', 'kept')", "true", "! git for-each-ref --contains $(cat $OUT/name) | grep -q .",
        "git tag -a kept -m kept $(git commit-tree HEAD^{tree} -m lost); git rev-parse kept^{} > $OUT/name",
    ),
    "tag object": Attack(
        "git('tag', '-d', 'kept')", "true", "! git for-each-ref --format='%(objectname)' | grep -q $(cat $OUT/name)",
        "git tag -a kept -m kept; git rev-parse kept > $OUT/name",
    ),
    "many branches deleted": Attack(
        "sh('git branch --list \"b*\" | xargs git branch -D')", "true", "test $(git for-each-ref --format='%(objectname)' | sort -u | wc -l) -lt 150",
        "for i in $(seq 150); do git branch b$i $(git commit-tree HEAD^{tree} -m $i); done",
    ),
    "branch whose name a prompt runs": Attack(
        "git('checkout', '-q', '-b', f'$(touch${{IFS}}{OUT}/canary)')", 'PS1="$(git branch --show-current) "; echo "${PS1@P}"', CANARY,
    ),
    "branch whose name a prompt runs, with backticks": Attack(
        "put('x', f'touch {OUT}/canary')\ngit('checkout', '-q', '-b', 'a`sh<x`')", 'PS1="$(git branch --show-current) "; echo "${PS1@P}"', CANARY,
    ),
    "tag named like the output of describe": Attack(
        "git('tag', git('describe'), evil_commit())", "git reset -q --hard $(cat $OUT/name)", EVIL_FILE, "git describe > $OUT/name",
    ),
    "notes that are a blob": Attack("put('.git/refs/notes/commits', blob() + '\\n')", "true", "! git log -1"),
    "remote branch that is a blob": Attack("put('.git/refs/remotes/origin/main', blob() + '\\n')", "git status; git fetch; git log --all -1", "grep -q 'error\\|fatal' $SAID"),
    "merge of a blob": Attack("put('.git/MERGE_HEAD', blob() + '\\n')", "echo x >> f; git add f; git status", "! git commit -qm mine"),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_left_behind_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_left_behind_attack_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
