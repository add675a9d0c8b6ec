"""Attacks by repositories of unusual forms that commands make, and by settings, refs and files of unusual forms."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, EVIL_FILE, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

STATUS = "git status"
HERE = "os.getcwd()"


def runs(folder: str, option: str = "-C") -> str:
    """Return lines that let the status of a repository run a program."""
    return f"git({option!r}, {folder!r}, 'config', 'core.fsmonitor', TOUCH + '; false')\n"


def entered(folder: str) -> str:
    """Return lines that make a bare repository one with the project as its working tree."""
    return f"{runs(folder)}git('-C', {folder!r}, 'config', 'core.bare', 'false')\ngit('-C', {folder!r}, 'config', 'core.worktree', {HERE})\n"


def seen(command: str) -> str:
    """Return the victim's text if the user only has to see something."""
    return f"{command} && touch $OUT/canary"


REPOSITORIES = {
    "git directory in upper case": Attack(
        "git('init', '-q', 's')\nos.rename('s/.git', 's/.GIT')\nput('s/.GIT/config', '[core]\\n\\tfsmonitor = ' + TOUCH + '; false\\n')\nput('s/.git', 'gitdir: .GIT\\n')",
        f"cd s && {STATUS}",
        CANARY,
    ),
    "separate git directory": Attack(f"git('init', '-q', '--separate-git-dir', 'gd', 's')\n{runs('gd', '--git-dir')}", f"cd s && {STATUS}", CANARY),
    "separate git directory that is entered": Attack(f"git('init', '-q', '--separate-git-dir', 'gd', 's')\n{entered('gd')}", f"cd gd && {STATUS}", CANARY),
    "bare repository with other files": Attack(f"git('init', '-q', '--bare', 'b')\n{entered('b')}put('b/README', 'x')\nput('b/src/x', 'x')", f"cd b && {STATUS}", CANARY),
    "bare repository whose HEAD is a link": Attack(f"git('init', '-q', '--bare', 'b')\n{entered('b')}os.unlink('b/HEAD')\nos.symlink('refs/heads/main', 'b/HEAD')", f"cd b && {STATUS}", CANARY),
    "bare repository with a configuration of its worktree": Attack(
        "git('init', '-q', '--bare', 'b')\n"
        "put('b/config', '[core]\\n\\trepositoryformatversion = 1\\n\\tbare = false\\n[extensions]\\n\\tworktreeConfig = true\\n')\n"
        f"put('b/config.worktree', '[core]\\n\\tfsmonitor = ' + TOUCH + '; false\\n\\tworktree = ' + {HERE} + '\\n')",
        f"cd b && {STATUS}",
        CANARY,
    ),
    "repository with other hashes": Attack(f"git('init', '-q', '--object-format=sha256', 's')\n{runs('s')}", f"cd s && {STATUS}", CANARY),
    "repository with an unknown extension": Attack(f"git('init', '-q', 's')\ngit('-C', 's', 'config', 'extensions.foo', '1')\n{runs('s')}", f"cd s && {STATUS}", CANARY),
    "repository whose name has a line break": Attack(f"os.makedirs('a\\nb')\ngit('init', '-q', 'a\\nb')\n{runs('a' + chr(10) + 'b')}", f"cd a*b && {STATUS}", CANARY),
    "repository in node_modules": Attack(f"git('init', '-q', 'node_modules/x')\n{runs('node_modules/x')}", f"cd node_modules/x && {STATUS}", CANARY),
    "repository renamed twice": Attack(("git('init', '-q', 'x/y')", f"{runs('x/y')}os.rename('x', 'z')", "os.rename('z', 'q')"), f"cd q/y && {STATUS}", CANARY),
    "file that leads to a bare repository of an earlier run": Attack(
        ("git('init', '-q', '--bare', 'b')", "os.makedirs('w')\nput('w/.git', 'gitdir: ../b\\n')\nput('b/config', '[core]\\n\\tbare = false\\n\\tfsmonitor = ' + TOUCH + '; false\\n')"),
        f"cd w && {STATUS}",
        CANARY,
    ),
    "worktree of a repository that a command made": Attack(f"git('init', '-q', 'm')\nsh('cd m && git commit -q --allow-empty -m x && git worktree add -q ../mw')\n{runs('m')}", f"cd mw && {STATUS}", CANARY),
    "file of a worktree that was removed": Attack(
        (
            "git('worktree', 'add', '-q', 'w1', 'side')",
            f"shutil.rmtree('.git/worktrees/w1')\nput('w1/.git', 'gitdir: ../gd\\n')\ngit('init', '-q', '--bare', 'gd')\n{runs('gd', '--git-dir')}git('--git-dir', 'gd', 'config', 'core.bare', 'false')",
        ),
        f"cd w1 && {STATUS}",
        CANARY,
    ),
}  # fmt: skip
SETTINGS = {
    "description with codes for the terminal": Attack("git('config', 'branch.main.description', '\\x1b]0;x\\x07EVIL')", seen("git config branch.main.description | grep -q $'\\x1b'"), CANARY),
    "name for commits that a prompt runs": Attack("git('config', 'user.name', '$(touch ' + OUT + '/canary)')", 'eval "echo $(git config user.name)"', CANARY),
    "address for commits that a prompt runs": Attack("git('config', 'user.email', '`touch ' + OUT + '/canary`')", 'eval "echo $(git config user.email)"', CANARY),
    "remote that is a mirror": Attack("git('remote', 'add', '--mirror=push', 'new', 'https://example.invalid/x')", seen("git config remote.new.mirror"), CANARY),
    "remote with a proxy": Attack("git('remote', 'add', 'new', 'https://example.invalid/x')\ngit('config', 'remote.new.proxy', 'http://evil.invalid')", seen("git config remote.new.proxy"), CANARY),
    "remote with a helper": Attack("git('remote', 'add', 'new', 'https://example.invalid/x')\ngit('config', 'remote.new.vcs', 'evil')", seen("git config remote.new.vcs"), CANARY),
    "header for a server": Attack("git('config', 'http.https://example.invalid/.extraheader', 'x: y')", seen("git config --get-regexp extraheader"), CANARY),
    "update of a submodule": Attack("git('config', 'submodule.x.update', '!' + TOUCH)\ngit('config', 'submodule.x.url', 'https://example.invalid/x')", seen("git config submodule.x.update"), CANARY),
}  # fmt: skip
OTHERS = {
    "entry in .git with a dot at its end": Attack("forge_index('.git/index', ('100644', blob(), '.git./config'))", "git checkout -f .", "test -e .git./config"),
    "branch that looks like a lock": Attack("put('.git/refs/heads/x.lock', evil_commit() + '\\n')", seen("test -e .git/refs/heads/x.lock"), CANARY),
    "branch whose name is written backwards": Attack("put('.git/refs/heads/a\\u202ex', evil_commit() + '\\n')", seen("git branch | grep -q $'\\xe2\\x80\\xae'"), CANARY),
    "tag that hides a remote branch": Attack("git('update-ref', 'refs/tags/origin/main', evil_commit())", "git reset -q --hard origin/main", EVIL_FILE),
    "branch that hides a remote branch": Attack("git('update-ref', 'refs/heads/origin/main', evil_commit())", "git reset -q --hard origin/main", EVIL_FILE),
    "remote branch moved without a trace": Attack("git('update-ref', 'refs/remotes/origin/main', evil_commit())", seen("git log origin/main | grep -q EVIL && ! git reflog origin/main | grep -q corral"), CANARY),
    "prefetched ref": Attack("git('update-ref', 'refs/prefetch/remotes/origin/main', evil_commit())", seen("git rev-parse -q --verify refs/prefetch/remotes/origin/main"), CANARY),
    "ORIG_HEAD that is a tree": Attack("put('.git/ORIG_HEAD', git('rev-parse', 'HEAD^{tree}') + '\\n')", seen("git rev-parse -q --verify ORIG_HEAD"), CANARY),
    "MERGE_HEAD that is a blob": Attack("put('.git/MERGE_HEAD', git('rev-parse', 'HEAD:f') + '\\n')", "git commit -q --allow-empty -m x || touch $OUT/canary", CANARY),
    "MERGE_MSG with codes for the terminal": Attack("put('.git/MERGE_HEAD', git('rev-parse', 'side') + '\\n')\nput('.git/MERGE_MSG', 'x\\n\\x1b]EVIL')", seen("grep -q $'\\x1b' .git/MERGE_MSG"), CANARY),
    "large file that is a link": Attack(
        "name = hashlib.sha256(b'good\\n').hexdigest()\nreplace(f'.git/lfs/objects/{name[:2]}/{name[2:4]}/{name}', OUT + '/victim')",
        seen("find .git/lfs -type l -o -type f | grep -q ."),
        CANARY,
    ),
    "worktree in a directory of the user's": Attack(
        "folder = os.getcwd() + '/dir'\ncommit = git('commit-tree', tree(('100644', 'g', blob())), '-m', 'x')\ngit('update-ref', 'refs/heads/evil', commit)\n"
        "for name, text in {'gitdir': folder + '/.git', 'commondir': '../..', 'HEAD': 'ref: refs/heads/evil'}.items():\n"
        "    put('.git/worktrees/w/' + name, text + '\\n')\n"
        "put('dir/.git', 'gitdir: ' + os.getcwd() + '/.git/worktrees/w\\n')\ngit('-C', 'dir', 'read-tree', 'evil')",
        "cd dir && git checkout .",
        "grep -q EVIL dir/g",
    ),
    "worktree at the branch of the user's": Attack("git('worktree', 'add', '-q', '-f', 'w', 'main')", "git switch -q side && git switch -q main || touch $OUT/canary", CANARY),
    "worktree whose path has a line break": Attack("git('worktree', 'add', '-q', '--detach', 'a\\nworktree /evil')", "git worktree list --porcelain > $SAID", "grep -qx 'worktree /evil' $SAID"),
    "submodule whose name has codes for the terminal": Attack("git('config', 'submodule.x\\x1b[2Jy.active', 'true')", "git config --list > $SAID", "grep -q $'\\x1b' $SAID"),
    "branch named like a file": Attack("git('branch', 'f', evil_commit())", "git checkout f", EVIL_FILE),
    "default branch of a remote of the user's": Attack(
        "git('update-ref', 'refs/remotes/origin/evil', evil_commit())\ngit('symbolic-ref', 'refs/remotes/origin/HEAD', 'refs/remotes/origin/evil')",
        "git reset -q --hard origin",
        EVIL_FILE,
        setup="git remote set-head origin main",
    ),
    "settings of submodules that are a link": Attack(
        "name = git('hash-object', '-w', '--stdin', data='f')\nforge_index('.git/index', ('120000', name, '.gitmodules'))",
        seen("git ls-files -s | grep -q '^120000.*gitmodules'"),
        CANARY,
    ),
    "files that git keeps for a pack": Attack("sh('git gc -q; for p in .git/objects/pack/*.pack; do touch ${p%.pack}.promisor ${p%.pack}.keep; done')", seen("ls .git/objects/pack | grep -q promisor"), CANARY),
    "ref of a namespace": Attack("git('update-ref', 'refs/namespaces/x/refs/heads/main', evil_commit())", seen("git for-each-ref | grep -q namespaces"), CANARY),
    "files of git-lfs": Attack("put('.git/lfs/config', 'x')\nput('.git/lfs/tmp/x', 'x')\nput('.git/lfs/cache/locks/x', 'x')", seen("find .git/lfs -type f | grep -q ."), CANARY),
}  # fmt: skip
ATTACKS = REPOSITORIES | SETTINGS | OTHERS


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_odd_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_odd_attack_is_stopped(tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
