"""Attacks through an index that a command wrote: paths that climb, lying stat data, flags, and extensions."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, EVIL_FILE, EVIL_OUTSIDE, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

CHECKOUT = "git checkout ."
# A review of the Makefile, which the attacker changed.
REVIEW = "git status --porcelain; git diff --stat"
HIDDEN = "grep -q EVIL Makefile && ! grep -q Makefile $SAID"
HOOK = "blob(f'#!/bin/sh\\n{TOUCH}\\n')"
UNREADABLE = "! git status"


def named(path: str) -> str:
    return f"forge_index('.git/index', climbing(path={path!r}))"


ATTACKS = {
    "entry that climbs out": Attack(named("../outside/victim"), CHECKOUT, EVIL_OUTSIDE),
    "entry that climbs out, by restore": Attack(named("../outside/victim"), "git restore .", EVIL_OUTSIDE),
    "entry that climbs out, by checkout-index": Attack(named("../outside/victim"), "git checkout-index -f -a", EVIL_OUTSIDE),
    "entry that climbs out through a directory": Attack(named("dir/../../outside/victim"), CHECKOUT, EVIL_OUTSIDE),
    "entry with an absolute path": Attack(
        "forge_index('.git/index', climbing(path=f'{OUT}/victim'))", CHECKOUT, EVIL_OUTSIDE
    ),
    "entry that is a hook": Attack(
        f"forge_index('.git/index', ('100755', {HOOK}, '.git/hooks/post-checkout'))", CHECKOUT, CANARY
    ),
    "entry that is a hook behind a dot": Attack(
        f"forge_index('.git/index', ('100755', {HOOK}, './.git/hooks/post-checkout'))", CHECKOUT, CANARY
    ),
    "entry that is the configuration": Attack(
        "forge_index('.git/index', ('100644', blob(f'[core]\\n\\tfsmonitor = {TOUCH}; false\\n'), '.git/config'))",
        f"{CHECKOUT}; git status",
        CANARY,
    ),
    "entry in .GIT": Attack(named(".GIT/config"), CHECKOUT, "test -e .GIT/config"),
    "entry in .git with a blank": Attack(named(".git /config"), CHECKOUT, "test -e '.git /config'"),
    "entry in git~1": Attack(named("git~1/config"), CHECKOUT, "test -e git~1/config"),
    "entry in .git of HFS": Attack(
        "forge_index('.git/index', climbing(path='.g\\u200cit/config'))",
        CHECKOUT,
        "test -e $'.g\\xe2\\x80\\x8cit/config'",
        setup="git config core.protectHFS true",
    ),
    "entry in a .git within": Attack(named("dir/.git/config"), CHECKOUT, "test -e dir/.git/config"),
    "shared index of a split index": Attack(
        "shared = index([*staged(), climbing()])\n"
        "put('.git/sharedindex.' + shared[-20:].hex(), shared)\n"
        "nothing = number(0) + number(1) + bytes(8) + number(0)\n"
        "put('.git/index', index([], extension('link', shared[-20:] + nothing * 2)))",
        CHECKOUT,
        EVIL_OUTSIDE,
    ),
    "index of a submodule": Attack(
        "forge_index('.git/modules/sub/index', climbing('sub', '../../outside/victim'), folder='sub')",
        f"cd sub; {CHECKOUT}",
        EVIL_OUTSIDE,
        setup="git submodule -q add ../remote.git sub; git commit -qm sub",
    ),
    "index of a linked worktree": Attack(
        "forge_index('.git/worktrees/wt/index', climbing('wt', '../../outside/victim'), folder='wt')",
        f"cd wt; {CHECKOUT}",
        EVIL_OUTSIDE,
        setup="git worktree add -q wt side",
    ),
    "index of a repository that a command made": Attack(
        "git('init', '-q', 'sub')\nput('sub/x', '')\ngit('-C', 'sub', 'add', 'x')\n"
        "forge_index('sub/.git/index', climbing('sub', '../../outside/victim'), folder='sub')",
        f"cd sub; {CHECKOUT}",
        EVIL_OUTSIDE,
    ),
    "index of a repository within": Attack(
        "forge_index('sub/.git/index', climbing('sub', '../../outside/victim'), folder='sub')",
        f"cd sub; {CHECKOUT}",
        EVIL_OUTSIDE,
        setup="git clone -q ../remote.git sub",
    ),
    "index written through a second name": Attack(
        ("os.link('.git/index', 'x')", "data = index([*staged(), climbing()])\nopen('x', 'r+b').write(data)"),
        CHECKOUT,
        EVIL_OUTSIDE,
        setup="for i in 1 2 3; do echo > padding$i; done; git add .; git commit -qm padding; git rm -q --cached padding*; rm padding*",
    ),
    "stat data of the changed file": Attack(
        "append('Makefile', 'EVIL')\nos.utime('Makefile', (1e9, 1e9))\n"
        "put('.git/index', index([entry(*item, like=item[2]) for item in staged()]))",
        REVIEW,
        HIDDEN,
    ),
    "cached tree that is not of the entries": Attack(
        "root, evil = git('rev-parse', 'HEAD^{tree}'), tree(('100644', 'g', blob()))\n"
        "lie = b'\\0' + b'3 1\\n' + raw(root) + b'dir\\0' + b'1 0\\n' + raw(evil)\n"
        "put('.git/index', index([entry(*item, like=item[2]) for item in staged()], extension('TREE', lie)))",
        "echo more >> f; git commit -qam mine",
        "git show HEAD:dir/g | grep -q EVIL",
    ),
    "skip-worktree": Attack(
        "git('update-index', '--skip-worktree', 'Makefile')\nappend('Makefile', 'EVIL')", REVIEW, HIDDEN
    ),
    "skip-worktree in a linked worktree": Attack(
        "git('-C', 'wt', 'update-index', '--skip-worktree', 'Makefile')\nappend('wt/Makefile', 'EVIL')",
        f"cd wt; {REVIEW}",
        "grep -q EVIL wt/Makefile && ! grep -q Makefile $SAID",
        setup="git worktree add -q wt side",
    ),
    "assume-unchanged": Attack(
        "git('update-index', '--assume-unchanged', 'Makefile')\nappend('Makefile', 'EVIL')", REVIEW, HIDDEN
    ),
    "assume-unchanged in a forged index": Attack(
        "append('Makefile', 'EVIL')\nput('.git/index', index([entry(*item, flags=0x8000) for item in staged()]))",
        REVIEW,
        HIDDEN,
    ),
    "extension of a file monitor": Attack(
        # The user's monitor is honest. The forged extension asks it only about the time after the change.
        "append('Makefile', 'EVIL')\n"
        "forge_index('.git/index', extensions=extension('FSMN', number(2) + b'late\\0' + number(20) + number(0) + number(1) + struct.pack('>Q', 0) + number(0)))",
        REVIEW,
        HIDDEN,
        setup="printf '#!/bin/sh\\n[ \"$2\" = late ] && printf \"late\\\\0\" || printf \"late\\\\0/\\\\0\"\\n' > $OUT/monitor; chmod +x $OUT/monitor; git config core.fsmonitor $OUT/monitor",
    ),
    "extension of the untracked cache": Attack(
        # The stat data of the directory, as it is with the new file in it.
        "git('update-index', '--untracked-cache')\ngit('status')\nput('evil.sh', 'EVIL')\nos.utime('.', (1e9, 1e9))\n"
        "times, dev, ino, *rest = stat_data('.')\ndata = open('.git/index', 'rb').read()[:-20]\n"
        "at = data.index(dev + ino, data.index(b'UNTR')) - 16\nnew = times + dev + ino + b''.join(rest)\n"
        "data = data[:at] + new + data[at + len(new):]\nput('.git/index', data + hashlib.sha1(data).digest())",
        "git status --porcelain",
        "test -e evil.sh && ! grep -q evil.sh $SAID",
    ),
    "extension of resolved conflicts": Attack(
        "name = blob()\nmodes = b'100644\\0' * 3\n"
        "forge_index('.git/index', extensions=extension('REUC', b'f\\0' + modes + raw(name) * 3))",
        "git checkout -m f",
        EVIL_FILE,
    ),
    "extension that git must know": Attack(
        "forge_index('.git/index', extensions=extension('evil', b'x'))", "true", UNREADABLE
    ),
    "two entries of one name": Attack(
        "put('.git/index', index([entry(*item, like=item[2]) for item in staged() * 2]))",
        "git commit -qm mine --allow-empty; git fsck",
        "grep -q duplicateEntries $SAID",
    ),
    "entry with an impossible mode": Attack(
        "put('.git/index', index([('0' * 6, name, path) for _, name, path in staged()]))", "git checkout . ", "! git checkout ."
    ),
    "index cut short": Attack(
        "data = open('.git/index', 'rb').read()\nput('.git/index', data[:20])", "true", UNREADABLE
    ),
    "entry of an object that is not there": Attack(
        "put('x', 'x')\nos.utime('x', (1e9, 1e9))\nforge_index('.git/index', entry('100644', '12' * 20, 'x', like='x'))",
        "echo x >> f",
        "! git commit -qam mine",
    ),
    "entry of a directory in a sparse index": Attack(
        "name = git('rev-parse', 'HEAD:dir')\nentries = [item for item in staged() if item[2] != 'dir/g']\n"
        "entries = [entry(*item, extended=0) for item in entries]\nappend('dir/g', 'EVIL')\n"
        "put('.git/index', index([*entries, entry('040000', name, 'dir/', extended=0x4000)], extension('sdir', b''), 3))",
        REVIEW,
        "grep -q EVIL dir/g && ! grep -q dir/ $SAID",
    ),
    "entry marked as intended": Attack(
        "put('.git/index', index([entry(*item, extended=0x2000 if item[2] == 'Makefile' else 0) for item in staged()], version=3))",
        "echo x >> f; git add f; git commit -qm mine",
        "test -e Makefile && ! git cat-file -e HEAD:Makefile",
    ),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_index_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_index_attack_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
