"""Attacks by repositories that a command made, in every kind of directory, at once or over several sandboxes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

STATUS = "git status"
MONITOR = "f'[core]\\n\\trepositoryFormatVersion = 0\\n\\tbare = false\\n\\tfsmonitor = {TOUCH}; false\\n'"
# The places in which a command makes a repository. The user, an editor or a prompt later runs git there.
PLACES = [
    *(
        "sub",
        "a/b/c/d",
        "dist/x.git",
        "node_modules/package",
        "node_modules/.cache/package",
        ".github",
        ".github/workflows",
    ),
    *(
        ".vscode",
        ".config",
        ".cache",
        ".local/share/x",
        ".venv/lib",
        ".claude",
        ".husky",
        "logs",
        "refs",
        "hooks",
        "modules",
    ),
]
ORDINARY = ["sub", "a/b/c/d", "node_modules/package", ".github", ".config", ".venv/lib"]
# Directories within the user's own .git.
WITHIN = ["x", "logs", "refs/heads", "modules/x", "lfs"]


def bare(place: str) -> str:
    """Return the program that makes a bare repository of as few files as git accepts."""
    return (
        f"for name in ('objects', 'refs'):\n    os.makedirs({place!r} + '/' + name, exist_ok=True)\n"
        f"put({place!r} + '/HEAD', 'ref: refs/heads/main\\n')\nput({place!r} + '/config', {MONITOR} + '\\tworktree = .\\n')\n"
    )


def full(place: str) -> str:
    """Return the program that makes a repository with a working tree, whose configuration runs a program."""
    return f"os.makedirs({place!r}, exist_ok=True)\ngit('init', '-q', {place!r})\nappend({place!r} + '/.git/config', {MONITOR})\n"


INIT = "git('init', '-q', 'sub')\n"
COMMITTED = "sh('git init -q sub; cd sub; echo x > x; git add x; git commit -qm x; git checkout -q -b other')\n"
ATTACKS = {
    **{f"bare repository in {place}": Attack(bare(place), f"cd {place} && {STATUS}", CANARY) for place in PLACES},
    **{f"bare repository in {place}, from a directory below": Attack(bare(place) + f"os.makedirs('{place}/deep/er')", f"cd {place}/deep/er && {STATUS}", CANARY) for place in ("sub", ".github")},
    **{f"repository in {place}": Attack(full(place), f"cd {place} && {STATUS}", CANARY) for place in ORDINARY},
    **{f"bare repository in .git/{place}": Attack(bare(f".git/{place}"), f"cd .git/{place} && {STATUS}", CANARY) for place in WITHIN},
    "bare repository in a project without one": Attack(bare("."), STATUS, CANARY, setup="rm -rf .git"),
    "repository in a project without one": Attack(full("."), STATUS, CANARY, setup="rm -rf .git"),
    "bare repository with a common directory": Attack(
        bare("y") + "append('y/config', f'[alias]\\n\\tst = !{TOUCH}\\n')\nput('x/HEAD', 'ref: refs/heads/main\\n')\nput('x/commondir', '../y\\n')", "cd x && git st", CANARY
    ),
    "bare repository with links in it": Attack(
        bare("y") + "os.makedirs('x')\nfor name in os.listdir('y'):\n    os.symlink(f'../y/{name}', f'x/{name}')\nput('x/HEAD', 'ref: refs/heads/main\\n')", f"cd x && {STATUS}", CANARY
    ),
    "bare repository behind a link": Attack(bare(".store") + "os.symlink('.store', 'x')", f"cd x && {STATUS}", CANARY),
    "directory .git behind a link": Attack(bare("store") + "os.makedirs('sub')\nos.symlink('../store', 'sub/.git')", f"cd sub && {STATUS}", CANARY),
    "file .git that leads to a directory of other name": Attack(bare("store") + "put('sub/.git', 'gitdir: ../store\\n')", f"cd sub && {STATUS}", CANARY),
    "file .git with an absolute path": Attack(bare("store") + "put('sub/.git', f\"gitdir: {os.path.abspath('store')}\\n\")", f"cd sub && {STATUS}", CANARY),
    "configuration changed by a second sandbox": Attack((INIT, f"append('sub/.git/config', {MONITOR})"), f"cd sub && {STATUS}", CANARY),
    "configuration changed by a second name": Attack(
        (INIT + "os.link('sub/.git/config', 'x')", f"append('x', {MONITOR})"), f"cd sub && {STATUS}", CANARY
    ),
    "configuration changed by a third sandbox": Attack(
        (INIT, "os.link('sub/.git/config', 'x')", f"append('x', {MONITOR})"), f"cd sub && {STATUS}", CANARY
    ),
    "configuration of a bare repository changed by a second name": Attack(
        ("git('init', '-q', '--bare', 'dist/x.git')\nos.link('dist/x.git/config', 'x')", f"append('x', {MONITOR} + '\\tworktree = .\\n')"), f"cd dist/x.git && {STATUS}", CANARY
    ),
    "configuration behind a link, changed later": Attack(
        (INIT + "os.rename('sub/.git/config', 'c')\nos.symlink('../../c', 'sub/.git/config')", f"append('c', {MONITOR})"), f"cd sub && {STATUS}", CANARY
    ),
    "included file, made later": Attack(
        (INIT + "append('sub/.git/config', '[include]\\n\\tpath = ../../later\\n')", f"put('later', {MONITOR})"), f"cd sub && {STATUS}", CANARY
    ),
    "repository renamed after the run that made it": Attack((INIT, f"os.rename('sub', 'other')\nappend('other/.git/config', {MONITOR})"), f"cd other && {STATUS}", CANARY),
    "repository copied by a second sandbox": Attack((INIT, f"shutil.copytree('sub', 'other')\nappend('other/.git/config', {MONITOR})"), f"cd other && {STATUS}", CANARY),
    "directory .git swapped by a second sandbox": Attack((INIT, "os.rename('sub/.git', 'old')\n" + full("sub")), f"cd sub && {STATUS}", CANARY),
    "files that become a bare repository in steps": Attack(
        ("os.makedirs('x/objects')\nos.makedirs('x/refs')", f"put('x/config', {MONITOR} + '\\tworktree = .\\n')", "put('x/HEAD', 'ref: refs/heads/main\\n')"), f"cd x && {STATUS}", CANARY
    ),
    "hook in a repository that a command made": Attack(
        COMMITTED + "put('sub/.git/hooks/post-checkout', f'#!/bin/sh\\n{TOUCH}\\n', 0o755)", "cd sub && git checkout -q -", CANARY
    ),
    "hook put there by a second sandbox": Attack(
        (COMMITTED, "put('sub/.git/hooks/post-checkout', f'#!/bin/sh\\n{TOUCH}\\n', 0o755)"), "cd sub && git checkout -q -", CANARY
    ),
    "hook changed by a second name": Attack(
        (
            COMMITTED + "put('sub/.git/hooks/post-checkout.sample', '#!/bin/sh\\n', 0o755)\nos.link('sub/.git/hooks/post-checkout.sample', 'x')",
            "append('x', TOUCH + '\\n')\nos.rename('sub/.git/hooks/post-checkout.sample', 'sub/.git/hooks/post-checkout')",
        ),
        "cd sub && git checkout -q -",
        CANARY,
    ),
    "filter in a repository that a command made": Attack(
        COMMITTED + "append('sub/.git/config', f'[filter \"x\"]\\n\\tsmudge = {TOUCH}; cat\\n')\nput('sub/.gitattributes', '* filter=x\\n')", "cd sub && rm x && git checkout x", CANARY
    ),
    "alias in a repository that a command made": Attack(INIT + "append('sub/.git/config', f'[alias]\\n\\tst = !{TOUCH}\\n')", "cd sub && git st", CANARY),
    "exclusion in a repository that a command made": Attack(
        COMMITTED + "append('sub/.git/info/exclude', 'evil.sh\\n')\nput('sub/evil.sh', '')", "git -C sub status --porcelain", "test -e sub/evil.sh && ! grep -q evil.sh $SAID"
    ),
    "object in a repository that a command made": Attack(
        COMMITTED + "name = git('-C', 'sub', 'rev-parse', 'HEAD:x')\nput(f'sub/.git/objects/{name[:2]}/{name[2:]}', packed('blob', b'EVIL\\n'))",
        "git -C sub show HEAD:x",
        "grep -q EVIL $SAID",
    ),
    "submodule that a command made": Attack(
        "sh('git -c protocol.file.allow=always submodule add ./.git sub || git -c protocol.file.allow=always submodule add $PWD/.git sub')\n"
        f"append('.git/modules/sub/config', {MONITOR})",
        STATUS,
        CANARY,
    ),
    "submodule that a command made, changed later": Attack(
        (
            "sh('git -c protocol.file.allow=always submodule add $PWD/.git sub')",
            f"append('.git/modules/sub/config', {MONITOR})",
        ),
        STATUS,
        CANARY,
    ),
    "submodule by hand": Attack(
        "name = git('rev-parse', 'HEAD')\ngit('update-index', '--add', '--cacheinfo', f'160000,{name},sub')\n" + full("sub"), STATUS, CANARY
    ),
    "worktree that a command made, with its own configuration": Attack(
        "git('worktree', 'add', '-q', 'wt', 'side')\nput('.git/worktrees/wt/config.worktree', f'[core]\\n\\tfsmonitor = {TOUCH}; false\\n')",
        f"cd wt && {STATUS}",
        CANARY,
        setup="git config extensions.worktreeConfig true",
    ),
    "clone with a template of hooks": Attack(
        "put('t/hooks/post-checkout', f'#!/bin/sh\\n{TOUCH}\\n', 0o755)\nsh('git clone -q -n --template=t . sub')", "cd sub && git checkout -q -f main", CANARY
    ),
    "remote at a repository that is not finished": Attack(
        "for name in ('objects', 'refs/heads'):\n    os.makedirs('x/' + name)\n"
        "put('x/HEAD', 'ref: refs/heads/main\\n')\nput('x/hooks/post-receive', '#!/bin/sh\\n' + TOUCH + '\\n', 0o755)\ngit('remote', 'add', 'x', './x')",
        "git push -q x main",
        CANARY,
    ),
    "worktree in a directory that is a bare repository too": Attack(
        "git('worktree', 'add', '-q', '--detach', 'w')\nfor name in ('objects', 'refs'):\n    os.makedirs('w/' + name)\n"
        "put('w/HEAD', 'ref: refs/heads/main\\n')\nput('w/config', '[core]\\n\\tbare = true\\n\\tfsmonitor = ' + TOUCH + '\\n')",
        "cd w; git --git-dir=. --work-tree=. status; rm -f .git; git status",
        CANARY,
    ),
    "worktree whose file .git becomes a directory": Attack(
        (
            "git('worktree', 'add', '-q', '--detach', 'w')",
            "os.unlink('w/.git')\nshutil.copytree('.git', 'w/.git')\nput('w/.git/config', '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = ' + TOUCH + '\\n')",
        ),
        "cd w && git status",
        CANARY,
    ),
    "common directory of a repository that a command made": Attack(
        "git('init', '-q', 's')\ngit('init', '-q', 'e')\nput('e/.git/config', '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = ' + TOUCH + '\\n')\n"
        "put('s/.git/commondir', '../../e/.git\\n')",
        "cd s && git status",
        CANARY,
    ),
    "objects of a repository that a command made, behind a link": Attack(
        "git('init', '-q', 's')\nreplace('s/.git/objects', OUT + '/dir')", "cd s && echo x | git hash-object -w --stdin", "ls -d $OUT/dir/??"
    ),
    "message file of a repository that a command made, a link": Attack(
        "git('init', '-q', 's')\nput('s/x', 'x')\nreplace('s/.git/COMMIT_EDITMSG', OUT + '/victim')",
        "cd s && git add x && git commit -q -m EVIL",
        "grep -q EVIL $OUT/victim",
    ),
    "repository made while a process still runs": Attack(
        # The process outlives the command if nothing ends it, and writes after the search.
        INIT + f"if os.fork() == 0:\n    os.setsid()\n    for number in (0, 1, 2):\n        os.close(number)\n    import time\n    time.sleep(0.3)\n    append('sub/.git/config', {MONITOR})\n    os._exit(0)",
        f"sleep 0.6; cd sub && {STATUS}",
        CANARY,
    ),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_made_repository_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_made_repository_attack_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
