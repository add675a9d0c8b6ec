"""Attacks through the object store: other content under a known name, histories cut short, lost objects, and bombs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import EVIL_FILE, HANGS, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

RESTORE = "rm f; git checkout -q f"
LOG = "git log --format=%s"
CUT = "! grep -q 'first commit' $SAID"
LIES = "grep -q EVIL $SAID"
LOST = 'test "$(git show HEAD:f; git show side:s)" != "good"$\'\\n\'side'
NAME = "name = git('rev-parse', 'HEAD:f')\n"
ATTACKS = {
    "other content in a loose object": Attack(NAME + "substitute(name, 'blob', b'EVIL\\n')", RESTORE, EVIL_FILE),
    "other content, by show": Attack(NAME + "substitute(name, 'blob', b'EVIL\\n')", "git show HEAD:f", LIES),
    "other content by a second name of an object": Attack(
        (NAME + "os.link(loose(name), 'x')", "os.chmod('x', 0o644)\nopen('x', 'wb').write(packed('blob', b'EVIL\\n'))"),
        RESTORE,
        EVIL_FILE,
    ),
    "other content by a rename over an object": Attack(
        NAME + "put('x', packed('blob', b'EVIL\\n'))\nos.replace('x', loose(name))", "git checkout -q side; git checkout -q main", EVIL_FILE
    ),
    "other tree under its name": Attack(
        "name = git('rev-parse', 'HEAD:dir')\nsubstitute(name, 'tree', b'100644 g\\0' + raw(blob()))",
        "rm -r dir; git checkout HEAD -- dir",
        "grep -q EVIL dir/g",
    ),
    "other commit under its name": Attack(
        "name = git('rev-parse', 'HEAD')\ntext = git('cat-file', 'commit', name).replace('second commit', 'EVIL message') + '\\n'\n"
        "substitute(name, 'commit', text.encode())",
        LOG,
        LIES,
    ),
    "pack that answers before the loose object": Attack(NAME + "forged_pack('.git/objects/pack', name)", RESTORE, EVIL_FILE),
    "pack that answers before the user's": Attack(
        NAME + "import glob\nfor path in glob.glob('.git/objects/pack/*'):\n    os.utime(path, (1e9, 1e9))\n"
        "forged_pack('.git/objects/pack', name)",
        RESTORE,
        EVIL_FILE,
        setup="git gc -q",
    ),
    "offsets changed in the user's pack": Attack(
        "import glob\npath, = glob.glob('.git/objects/pack/*.idx')\ndata = bytearray(open(path, 'rb').read()[:-20])\n"
        "count = int.from_bytes(data[1028:1032], 'big')\nnames = [bytes(data[at:at + 20]) for at in range(1032, 1032 + 20 * count, 20)]\n"
        "good, other = (1032 + 24 * count + 4 * names.index(raw(git('rev-parse', ref))) for ref in ('HEAD:f', 'conflict:f'))\n"
        "data[good:good + 4] = data[other:other + 4]\nput(path, bytes(data) + hashlib.sha1(data).digest())",
        RESTORE,
        "grep -q theirs f",
        setup="git gc -q",
    ),
    "offsets changed in a multi-pack-index": Attack(
        "git('multi-pack-index', 'write')\npath = '.git/objects/pack/multi-pack-index'\ndata = bytearray(open(path, 'rb').read()[:-20])\n"
        "at = chunks(data, 12)\ncount = int.from_bytes(data[at['OIDF'] + 1020:at['OIDF'] + 1024], 'big')\n"
        "names = [bytes(data[at['OIDL'] + 20 * row:at['OIDL'] + 20 * row + 20]) for row in range(count)]\n"
        "good, other = (at['OOFF'] + 8 * names.index(raw(git('rev-parse', ref))) for ref in ('HEAD:f', 'conflict:f'))\n"
        "data[good:good + 8] = data[other:other + 8]\nput(path, bytes(data) + hashlib.sha1(data).digest())",
        RESTORE,
        "grep -q theirs f",
        setup="git gc -q",
    ),
    "alternates with a store of the attacker": Attack(
        NAME + "forged_pack('store/pack', name)\nput('.git/objects/info/alternates', os.path.abspath('store') + '\\n')", RESTORE, EVIL_FILE
    ),
    "alternates with a relative path": Attack(
        NAME + "forged_pack('store/pack', name)\nput('.git/objects/info/alternates', '../../store\\n')", RESTORE, EVIL_FILE
    ),
    "alternates of a submodule": Attack(
        "name = git('-C', 'sub', 'rev-parse', 'HEAD:f')\nforged_pack('store/pack', name)\n"
        "put('.git/modules/sub/objects/info/alternates', os.path.abspath('store') + '\\n')",
        "cd sub; rm f; git checkout -q f",
        "grep -q EVIL sub/f",
        setup="git submodule -q add ../remote.git sub; git commit -qm sub",
    ),
    "replaced blob": Attack(NAME + "git('replace', name, blob())", RESTORE, EVIL_FILE),
    "replaced commit": Attack("git('replace', 'HEAD', evil_commit(parents=('HEAD~1',)))", LOG, LIES),
    "replaced blob in packed-refs": Attack(
        NAME + "append('.git/packed-refs', f'{blob()} refs/replace/{name}\\n')", RESTORE, EVIL_FILE
    ),
    "replaced blob in a linked worktree": Attack(
        "git('-C', 'wt', 'replace', git('rev-parse', 'HEAD:f'), blob())", RESTORE, EVIL_FILE, setup="git worktree add -q wt side"
    ),
    "grafts": Attack("put('.git/info/grafts', git('rev-parse', 'HEAD') + '\\n')", LOG, CUT),
    "grafts with another parent": Attack(
        "put('.git/info/grafts', git('rev-parse', 'HEAD') + ' ' + evil_commit(parents=()) + '\\n')", LOG, LIES
    ),
    "shallow": Attack("put('.git/shallow', git('rev-parse', 'HEAD') + '\\n')", LOG, CUT),
    "commit-graph that cuts the history": Attack(
        "git('commit-graph', 'write', '--reachable')\npath = '.git/objects/info/commit-graph'\ndata = bytearray(open(path, 'rb').read()[:-20])\n"
        "at = chunks(data, 8)\ncount = int.from_bytes(data[at['OIDF'] + 1020:at['OIDF'] + 1024], 'big')\n"
        "names = [bytes(data[at['OIDL'] + 20 * row:at['OIDL'] + 20 * row + 20]) for row in range(count)]\n"
        "row = at['CDAT'] + 36 * names.index(raw(git('rev-parse', 'HEAD')))\ndata[row + 20:row + 24] = number(0x70000000)\n"
        "put(path, bytes(data) + hashlib.sha1(data).digest())",
        LOG,
        CUT,
    ),
    "commit-graph that git cannot read": Attack(
        "os.makedirs('.git/objects/info', exist_ok=True)\ngit('commit-graph', 'write', '--reachable')\npath = '.git/objects/info/commit-graph'\n"
        "data = bytearray(open(path, 'rb').read()[:-20])\nat = chunks(data, 8)\ndata[at['CDAT']:at['CDAT'] + 24] = b'\\x11' * 24\n"
        "put(path, bytes(data) + hashlib.sha1(data).digest())",
        "true",
        "! git log --all --topo-order --format=%T",
    ),
    "object overwritten with noise": Attack(NAME + "put(loose(name), b'noise', 0o444)", "git fsck", LOST),
    "object emptied": Attack(NAME + "put(loose(name), b'', 0o444)", "git gc -q", LOST),
    "objects removed": Attack("shutil.rmtree('.git/objects')\nos.makedirs('.git/objects')", "git fsck", LOST),
    "packs removed": Attack("shutil.rmtree('.git/objects/pack')", "git fsck", LOST, setup="git gc -q"),
    "objects pruned": Attack(
        "sh('rm -rf .git/logs .git/refs/heads/side; git reflog expire --expire=now --all; git prune --expire=now')",
        "true",
        "! git cat-file -e $(cat $OUT/name)",
        setup="git rev-parse side > $OUT/name",
    ),
    "objects pruned by gc": Attack(
        "sh('git branch -D side; git -c gc.reflogExpire=now -c gc.reflogExpireUnreachable=now gc -q --prune=now')",
        "true",
        "! git cat-file -e $(cat $OUT/name)",
        setup="git rev-parse side > $OUT/name",
    ),
    "object whose header claims a terabyte": Attack(
        NAME + "put(loose(name), zlib.compress(b'blob 1099511627776\\0EVIL'), 0o444)", "true", LOST
    ),
    "tree with .git in it": Attack(
        "hook = tree(('100755', 'post-checkout', blob('#!/bin/sh\\n')))\ntop = tree(('40000', '.git', tree(('40000', 'hooks', hook))))\n"
        "git('update-ref', 'refs/heads/evil', git('commit-tree', top, '-m', 'x'))",
        "git fsck",
        "grep -q hasDotgit $SAID",
    ),
    "tree with .. in it": Attack(
        "top = tree(('40000', '..', tree(('40000', 'outside', tree(('100644', 'victim', blob()))))))\n"
        "git('update-ref', 'refs/heads/evil', git('commit-tree', top, '-m', 'x'))",
        "git fsck",
        "grep -q hasDotdot $SAID",
    ),
    "tree in which a name stands twice": Attack(
        "top = tree(('100644', 'f', blob('x')), ('100644', 'f', blob()))\n"
        "git('update-ref', 'refs/heads/evil', git('commit-tree', top, '-m', 'x'))",
        "git fsck",
        "grep -q duplicateEntries $SAID",
    ),
    "tree with entries out of order": Attack(
        "top = tree(('100644', 'z', blob()), ('100644', 'a', blob()))\n"
        "git('update-ref', 'refs/heads/evil', git('commit-tree', top, '-m', 'x'))",
        "git fsck",
        "grep -q treeNotSorted $SAID",
    ),
    "commit with a broken author": Attack(
        "text = git('cat-file', 'commit', 'HEAD').replace('<user@example.org>', '<<', 1) + '\\n'\n"
        "git('update-ref', 'refs/heads/evil', obj('commit', text))",
        "git fsck",
        "grep -q '^error in commit' $SAID",
    ),
    "commit that names a missing tree": Attack(
        "text = git('cat-file', 'commit', 'HEAD').replace(git('rev-parse', 'HEAD^{tree}'), '12' * 20) + '\\n'\n"
        "put('.git/refs/heads/evil', obj('commit', text) + '\\n')",
        "true",
        "! git gc -q",
    ),
    ".gitmodules whose name climbs": Attack(
        "text = '[submodule \"../../x\"]\\n\\tpath = x\\n\\turl = ./x\\n'\n"
        "git('update-ref', 'refs/heads/evil', git('commit-tree', tree(('100644', '.gitmodules', blob(text))), '-m', 'x'))",
        "git fsck",
        "grep -q gitmodulesName $SAID",
    ),
    ".gitmodules with a url that is an option": Attack(
        "text = '[submodule \"x\"]\\n\\tpath = x\\n\\turl = -u./evil\\n'\n"
        "git('update-ref', 'refs/heads/evil', git('commit-tree', tree(('100644', '.gitmodules', blob(text))), '-m', 'x'))",
        "git fsck",
        "grep -q gitmodulesUrl $SAID",
    ),
    "tree that unfolds to a billion files": Attack(
        "name = tree(*(('100644', f'{n}', blob()) for n in range(10)))\n"
        "for _ in range(9):\n    name = tree(*(('40000', f'{n}', name) for n in range(10)))\n"
        "git('update-ref', 'refs/heads/main', git('commit-tree', name, '-p', 'HEAD', '-m', 'x'))",
        "git status",
        HANGS,
    ),
    "store of large files poisoned": Attack(
        "put('.git/lfs/objects/ab/cd/abcd', 'EVIL')",
        "rm large; git checkout -q large",
        "grep -q EVIL large",
        # Stands in for git-lfs, which does not verify its store either when it fills in a file.
        setup="git config --global filter.store.smudge 'p=$(git rev-parse --git-common-dir)/lfs/objects/ab/cd/abcd; test -e $p && cat $p || cat'\n"
        "echo 'large filter=store' > .gitattributes; echo 'oid sha256:abcd' > large; git add .; git commit -qm large",
    ),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_object_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_object_attack_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
