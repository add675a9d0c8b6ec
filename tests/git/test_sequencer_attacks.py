"""Attacks through operations in progress: a rebase, a merge or a bisection that the user continues or aborts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, EVIL_FILE, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

CONTINUE = "git rebase --continue"
BREAK = "sh('GIT_SEQUENCE_EDITOR=\"sed -i 1ibreak\" git rebase -i HEAD~1')\n"
EXEC = "append('.git/rebase-merge/git-rebase-todo', f'exec {TOUCH}\\n')"
# A rebase that stopped, written by hand.
STATE = """
def state(**files):
    tip = git('rev-parse', 'HEAD')
    start = {'head-name': 'refs/heads/main', 'onto': tip, 'orig-head': tip, 'git-rebase-todo': '', 'done': '', 'end': '1', 'msgnum': '1'}
    for name, text in (start | {name.replace('_', '-'): text for name, text in files.items()}).items():
        put(f'.git/rebase-merge/{name}', text + '\\n')
    put('.git/rebase-merge/interactive', '')
"""
# A conflict that the attacker resolved, so that git remembers the resolution.
RESOLVED = (
    "os.makedirs('.git/rr-cache')\nsh('git -c rerere.enabled=true merge conflict')\nput('f', 'EVIL\\n')\n"
    "sh('git -c rerere.enabled=true rerere; git merge --abort; git checkout -f main; rm -f .git/MERGE_RR')"
)
PATCH = "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\nFrom: a <a@a>\nSubject: [PATCH] x\n\n---\ndiff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-good\n+EVIL\n-- \n2\n"  # fmt: skip
AM = (
    f"patch = {PATCH!r}\nfiles = {{'0001': patch, '0002': patch, 'next': '1', 'last': '2', 'applying': '', 'threeway': 'f', 'sign': '', 'utf8': 't', 'keep': '',"
    " 'scissors': '', 'quiet': 't', 'apply-opt': '', 'messageid': '', 'no_inbody_headers': '', 'rerere-autoupdate': '', 'quoted-cr': '',"
    " 'abort-safety': git('rev-parse', 'HEAD')}\nfor name, text in files.items():\n    put(f'.git/rebase-apply/{name}', text + '\\n')\n"
)
ATTACKS = {
    "exec in the list of a rebase": Attack(BREAK + EXEC, CONTINUE, CANARY),
    "exec in the list of a rebase, by skip": Attack(BREAK + EXEC, "git rebase --skip", CANARY),
    "exec, written short": Attack(BREAK + "append('.git/rebase-merge/git-rebase-todo', f'x {TOUCH}\\n')", CONTINUE, CANARY),
    "exec in a rebase written by hand": Attack(STATE + "state(git_rebase_todo=f'exec {TOUCH}')", CONTINUE, CANARY),
    "exec in a rebase of the user's": Attack(EXEC, CONTINUE, CANARY, setup='GIT_SEQUENCE_EDITOR="sed -i 1ibreak" git rebase -q -i HEAD~1'),
    "exec in a rebase of a linked worktree": Attack(
        "sh('cd wt; GIT_SEQUENCE_EDITOR=\"sed -i 1ibreak\" git rebase -i HEAD~1')\nappend('.git/worktrees/wt/rebase-merge/git-rebase-todo', f'exec {TOUCH}\\n')",
        f"cd wt; {CONTINUE}",
        CANARY,
        setup="git worktree add -q wt side",
    ),
    "exec in a rebase of a submodule": Attack(
        "sh('cd sub; GIT_SEQUENCE_EDITOR=\"sed -i 1ibreak\" git rebase -i HEAD~1')\nappend('.git/modules/sub/rebase-merge/git-rebase-todo', f'exec {TOUCH}\\n')",
        f"cd sub; {CONTINUE}",
        CANARY,
        setup="git submodule -q add ../remote.git sub; git commit -qm sub",
    ),
    "exec in a rebase of a repository that a command made": Attack(
        "sh('git clone -q . sub; cd sub; GIT_SEQUENCE_EDITOR=\"sed -i 1ibreak\" git rebase -i HEAD~1')\nappend('sub/.git/rebase-merge/git-rebase-todo', f'exec {TOUCH}\\n')",
        f"cd sub; {CONTINUE}",
        CANARY,
    ),
    "pick of another commit in the user's rebase": Attack(
        "append('.git/rebase-merge/git-rebase-todo', f'pick {evil_commit(parents=(\"main\",))}\\n')",
        CONTINUE,
        EVIL_FILE,
        setup='GIT_SEQUENCE_EDITOR="sed -i 1ibreak" git rebase -q -i HEAD~1',
    ),
    "another origin of the user's rebase": Attack(
        "put('.git/rebase-merge/orig-head', evil_commit(parents=('main',)) + '\\n')",
        "git rebase --abort",
        EVIL_FILE,
        setup='GIT_SEQUENCE_EDITOR="sed -i 1ibreak" git rebase -q -i HEAD~1',
    ),
    "another stash of the user's rebase": Attack(
        "put('.git/rebase-merge/autostash', evil_stash() + '\\n')", "git rebase --abort", EVIL_FILE,
        setup='GIT_SEQUENCE_EDITOR="sed -i 1ibreak" git rebase -q -i HEAD~0',
    ),
    "origin of a rebase written by hand": Attack(STATE + "state(orig_head=evil_commit())", "git rebase --abort", EVIL_FILE),
    "stash of a rebase written by hand": Attack(STATE + "name = evil_stash()\nstate(autostash=name)", "git rebase --abort", EVIL_FILE),
    "refs that a rebase updates": Attack(
        STATE + "state(update_refs=f\"refs/heads/side\\n{git('rev-parse', 'side')}\\n{evil_commit()}\")",
        CONTINUE,
        "git show side:f | grep -q EVIL",
    ),
    "origin of a rebase by patches": Attack(
        "tip = git('rev-parse', 'HEAD')\n" + AM + "put('.git/rebase-apply/rebasing', '')\nos.unlink('.git/rebase-apply/applying')\n"
        "for name, text in {'head-name': 'refs/heads/main', 'onto': tip, 'orig-head': evil_commit()}.items():\n    put(f'.git/rebase-apply/{name}', text + '\\n')",
        "git rebase --abort",
        EVIL_FILE,
    ),
    "patch in progress": Attack(AM, "git am --skip", EVIL_FILE),
    "stash of a merge": Attack(
        "put('.git/MERGE_AUTOSTASH', evil_stash() + '\\n')", "git merge --abort", EVIL_FILE, setup="git merge -q --no-commit --no-ff side"
    ),
    "stash of a merge that commits": Attack(
        "put('.git/MERGE_AUTOSTASH', evil_stash() + '\\n')", "git merge -q side", EVIL_FILE
    ),
    "head of a sequence of picks": Attack(
        "evil = evil_commit()\nput('.git/sequencer/head', evil + '\\n')\nput('.git/sequencer/abort-safety', git('rev-parse', 'HEAD') + '\\n')\n"
        "put('.git/sequencer/todo', 'pick ' + git('rev-parse', 'side') + ' x\\n')",
        "git cherry-pick --abort",
        EVIL_FILE,
    ),
    "list of a sequence of picks": Attack(
        "evil = evil_commit()\nput('.git/sequencer/head', git('rev-parse', 'HEAD') + '\\n')\nput('.git/sequencer/todo', f'pick {evil} x\\n' * 2)\nput('.git/sequencer/opts', '')",
        "git cherry-pick --continue; git cherry-pick --skip",
        EVIL_FILE,
    ),
    "start of a bisection": Attack(
        "put('.git/BISECT_START', evil_commit() + '\\n')\nput('.git/BISECT_LOG', '')\nput('.git/BISECT_NAMES', '\\n')\nput('.git/BISECT_TERMS', 'bad\\ngood\\n')",
        "git bisect reset",
        EVIL_FILE,
    ),
    "start of the user's bisection": Attack(
        "put('.git/BISECT_START', evil_commit() + '\\n')", "git bisect reset", EVIL_FILE, setup="git bisect start HEAD HEAD~1"
    ),
    "remembered resolution": Attack(RESOLVED, "git merge conflict", EVIL_FILE),
    "remembered resolution, by rebase": Attack(RESOLVED, "git rebase conflict", EVIL_FILE),
    "remembered resolution in the user's cache": Attack(
        "import glob\nfor path in glob.glob('.git/rr-cache/*/postimage'):\n    put(path, 'EVIL\\n')",
        "git merge conflict",
        EVIL_FILE,
        setup="mkdir .git/rr-cache; git merge -q conflict || true; echo mine > f; git rerere; git merge --abort",
    ),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_sequencer_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_sequencer_attack_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
