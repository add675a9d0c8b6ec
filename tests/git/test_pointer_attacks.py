"""Attacks by pointers, links, pipes and second names: git follows them out of its directory, waits for ever, or removes too much."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, HANGS, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

WORKTREE = "git worktree add -q wt side"
SUBMODULE = "git submodule -q add ../remote.git sub; git commit -qm sub"
COMMIT = "echo mine >> f; git commit -qam mine"
CHANGED = "! grep -qx good $OUT/victim || test $(wc -l < $OUT/victim) != 1"
REMOVED = "! test -e $OUT/dir/kept"
FILLED = "test $(find $OUT/dir | wc -l) -gt 2"
# A directory that is a repository, with a program in its configuration.
TRAP = "shutil.copytree('.git', 'trap')\nappend('trap/config', f'[core]\\n\\tfsmonitor = {TOUCH}; false\\n\\tbare = false\\n')\n"
# The user's action for each file that git writes through a link.
WRITTEN = {
    "COMMIT_EDITMSG": COMMIT,
    "FETCH_HEAD": "git fetch -q origin",
    "MERGE_MSG": "git merge -q conflict",
    "logs/HEAD": COMMIT,
    "logs/refs/heads/main": COMMIT,
    "logs/refs/stash": "echo mine >> f; git stash -q; git stash drop -q",
    "config": "git config user.name x",
    "SQUASH_MSG": "git merge -q --squash side",
    "info/sparse-checkout": "git sparse-checkout set dir",
}
# The same, where git refuses a file that it cannot read and makes one that is missing.
PLANTED = {
    "index": "echo mine >> f; git add f",
    "packed-refs": "git pack-refs --all",
    "shallow": "git fetch -q --depth 1 file://$P/../remote.git",
    "objects/info/commit-graph": "git commit-graph write --reachable",
}
# The user's action for each directory in which git makes files.
MADE = {
    "logs": COMMIT,
    "logs/refs/heads": COMMIT,
    "refs/tags": "git tag new",
    "objects/pack": "git gc -q",
    "objects/info": "git commit-graph write --reachable",
    "rr-cache": "git merge -q conflict",
    "worktrees": "git worktree add -q $P/wt side",
    "modules": SUBMODULE,
    "info": "git update-server-info",
}
# The user's action for each file on which git waits if it is a pipe.
WAITED = {
    "index": "git status",
    "HEAD": "git status",
    "packed-refs": "git branch",
    "config": "git status",
    "refs/heads/side": "git branch",
    "info/exclude": "git status",
    "info/attributes": "echo x >> f; git diff",
    "shallow": "git log",
    "info/grafts": "git log",
    "objects/info/alternates": "git log side",
    "MERGE_MSG": "git commit --allow-empty",
    "MERGE_HEAD": "git commit --allow-empty -m x",
    "COMMIT_EDITMSG": COMMIT,
    "logs/HEAD": "git reflog",
    "logs/refs/heads/main": COMMIT,
    "rebase-merge/head-name": "git status",
    "sequencer/todo": "git status",
    "CHERRY_PICK_HEAD": "git status",
    "FETCH_HEAD": "git fetch -q origin",
    "commondir": "git status",
    "worktrees/x/gitdir": "git worktree list",
    "objects/info/commit-graph": "git log",
    "remotes/up": "git fetch -q up",
}
ATTACKS = {
    **{f"link at {path}": Attack(f"replace('.git/{path}', f'{{OUT}}/victim')", victim, CHANGED) for path, victim in WRITTEN.items()},
    **{f"link to a missing file at {path}": Attack(f"replace('.git/{path}', f'{{OUT}}/planted')", victim, "test -e $OUT/planted") for path, victim in PLANTED.items()},
    **{f"link to a directory at {path}": Attack(f"replace('.git/{path}', f'{{OUT}}/dir')", victim, FILLED) for path, victim in MADE.items()},
    **{f"pipe at {path}": Attack(f"fifo('.git/{path}')", victim, HANGS) for path, victim in WAITED.items()},
    "link to a directory at objects": Attack(
        "for first in range(256):\n    path = f'.git/objects/{first:02x}'\n    os.path.exists(path) or os.symlink(f'{OUT}/dir', path)",
        COMMIT,
        FILLED,
    ),
    "link to a directory at rebase-merge": Attack(
        "os.symlink(f'{OUT}/dir', '.git/rebase-merge')", "git rebase --quit", REMOVED
    ),
    "link to a directory at rebase-apply": Attack(
        "os.symlink(f'{OUT}/dir', '.git/rebase-apply')", "git am --quit", REMOVED
    ),
    "link to a directory at sequencer": Attack("os.symlink(f'{OUT}/dir', '.git/sequencer')", "git cherry-pick --quit", REMOVED),
    "link to a directory at worktrees": Attack("os.symlink(OUT, '.git/worktrees')", "git worktree prune", REMOVED),
    "file .git that leads elsewhere": Attack(TRAP + "shutil.rmtree('.git')\nput('.git', 'gitdir: trap\\n')", "git status", CANARY),
    "link .git that leads elsewhere": Attack(TRAP + "shutil.rmtree('.git')\nos.symlink('trap', '.git')", "git status", CANARY),
    "common directory at the top": Attack(TRAP + "put('.git/commondir', '../trap\\n')", "git status", CANARY),
    "common directory of a linked worktree": Attack(TRAP + "put('.git/worktrees/wt/commondir', '../../../trap\\n')", "git -C wt status", CANARY, WORKTREE),
    "common directory of a worktree, by a second name": Attack(
        ("os.link('.git/worktrees/wt/commondir', 'x')", TRAP + "open('x', 'w').write('../../../trap\\n')"), "git -C wt status", CANARY, WORKTREE
    ),
    "common directory of a worktree that a command made": Attack(
        (
            "git('worktree', 'add', '-q', 'wt', 'side')\nos.link('.git/worktrees/wt/commondir', 'x')",
            TRAP + "open('x', 'w').write('../../../trap\\n')",
        ),
        "git -C wt status",
        CANARY,
    ),
    "file .git of a worktree": Attack(TRAP + "put('wt/.git', 'gitdir: ../trap\\n')", "git -C wt status", CANARY, WORKTREE),
    "file .git of a worktree, by a second name": Attack(
        ("os.link('wt/.git', 'x')", TRAP + "open('x', 'w').write('gitdir: ../trap\\n')"), "git -C wt status", CANARY, WORKTREE
    ),
    "file .git of a worktree that a command made": Attack(
        ("git('worktree', 'add', '-q', 'wt', 'side')\nos.link('wt/.git', 'x')", TRAP + "open('x', 'w').write('gitdir: ../trap\\n')"), "git -C wt status", CANARY
    ),
    "file .git of a submodule": Attack(TRAP + "put('sub/.git', 'gitdir: ../trap\\n')", "git status", CANARY, SUBMODULE),
    "directory .git of a submodule": Attack(TRAP + "os.unlink('sub/.git')\nos.rename('trap', 'sub/.git')", "git status", CANARY, SUBMODULE),
    "worktree that lies outside, by repair": Attack(
        "put('.git/worktrees/x/gitdir', f'{OUT}/dir/.git\\n')\nput('.git/worktrees/x/HEAD', 'ref: refs/heads/side\\n')\nput('.git/worktrees/x/commondir', '../..\\n')",
        "git worktree repair",
        "test -e $OUT/dir/.git",
    ),
    "worktree that lies outside, by move": Attack(
        "put('.git/worktrees/wt/gitdir', f'{OUT}/w/.git\\n')", "git worktree move w $OUT/moved", "test -e $OUT/moved", WORKTREE + "; cp -r wt $OUT/w"
    ),
    "worktree that lies outside, by remove": Attack(
        "put('.git/worktrees/wt/gitdir', f'{OUT}/w/.git\\n')", "git worktree remove --force w", "! test -e $OUT/w", WORKTREE + "; cp -r wt $OUT/w"
    ),
    "object store behind a link": Attack(
        "os.rename('.git/objects', 'store')\nos.symlink('../store', '.git/objects')", "true", "test -L .git/objects"
    ),
    "object behind a link": Attack(
        "name = git('rev-parse', 'HEAD:f')\nput('x', packed('blob', b'EVIL\\n'))\nreplace(loose(name), os.path.abspath('x'))", "git show HEAD:f", "grep -q EVIL $SAID"
    ),
    "branch behind a link": Attack(
        "put('x', evil_commit() + '\\n')\nreplace('.git/refs/heads/side', os.path.abspath('x'))", "git branch", "test -L .git/refs/heads/side"
    ),
    "HEAD behind a link": Attack("put('x', evil_commit() + '\\n')\nreplace('.git/HEAD', os.path.abspath('x'))", "true", "test -L .git/HEAD"),
    "HEAD behind a link to a file outside": Attack(
        # The user's own file tells which commit is checked out, and git shows its content in a message.
        "replace('.git/HEAD', f'{OUT}/victim')", "true", "! git status"
    ),
    "log written through a second name": Attack(
        ("os.link('.git/logs/HEAD', 'x')", "tip, evil = git('rev-parse', 'HEAD'), evil_commit()\nappend('x', log_line(tip, evil) + log_line(evil, tip))"),
        "git reset -q --hard HEAD@{1}",
        "grep -q EVIL f",
    ),
    "excludes written through a second name": Attack(
        ("os.link('.git/info/exclude', 'x')", "append('x', 'evil.sh\\n')\nput('evil.sh', '')"), "git status --porcelain -uall", "! grep -q evil.sh $SAID && test -e evil.sh"
    ),
    "packed-refs written through a second name": Attack(
        ("os.link('.git/packed-refs', 'x')", "text = open('x').read()\nat = text.index('\\n', text.rindex('refs/remotes')) + 1\ntext = f'{text[:at]}{evil_commit()} refs/tags/side\\n{text[at:]}'\nopen('x', 'w').write(text)"),
        "git reset -q --hard side",
        "grep -q EVIL f",
        "git pack-refs --all",
    ),
    "hook written through a second name": Attack(
        ("os.link('.git/hooks/pre-commit', 'x')", "append('x', TOUCH + '\\n')"),
        COMMIT,
        CANARY,
        "echo '#!/bin/sh' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    ),
    "directory of the repository without permissions": Attack("os.chmod('.git', 0)", "true", "test $(stat -c %a .git) = 0"),
    "socket in place of the index": Attack(
        "import socket\nos.unlink('.git/index')\nsocket.socket(socket.AF_UNIX).bind('.git/index')", "true", "! git status"
    ),
    "directory in place of the index": Attack("os.unlink('.git/index')\nos.mkdir('.git/index')", "true", "! git status"),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_pointer_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_pointer_attack_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
