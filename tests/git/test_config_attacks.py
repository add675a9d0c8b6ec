"""Attacks through the configuration and the hooks of a repository: git runs the attacker's program, or works elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest
from git_attacks import CANARY, WAYS, Attack, cases, is_stopped, works_unprotected

from corral import Sandbox

ATTRIBUTES = "put('.gitattributes', '* filter=x diff=x merge=x\\n')\n"
SSH = "git fetch ssh://user@example.invalid/x"
SUBMODULE = "git submodule -q add ../remote.git sub; git commit -qm sub"
CREDENTIALS = "printf 'protocol=https\\nhost=example.invalid\\n\\n' | git credential fill"
PATCH = "git format-patch -q --stdout main..side > $OUT/patch"
# Keys whose value is a command, and the user's action that runs it.
COMMANDS = {
    "core.fsmonitor": "git status",
    "core.sshCommand": SSH,
    "core.editor": "unset GIT_EDITOR; git commit --amend",
    "sequence.editor": "git rebase -q -i HEAD~1",
    "diff.external": "echo x >> f; git diff",
    "diff.x.command": "echo x >> f; git diff",
    "diff.x.textconv": "echo x >> f; git diff",
    "merge.x.driver": "git merge conflict",
    "filter.x.clean": "echo x >> f; git add f",
    "filter.x.smudge": "rm f; git checkout f",
    "filter.x.process": "rm f; git checkout f",
    "remote.origin.uploadpack": "git fetch",
    "remote.origin.receivepack": "git push origin side",
    "difftool.x.cmd": "echo x >> f; git difftool -y -t x",
    "mergetool.x.cmd": "git merge conflict; git mergetool -y -t x",
    "tar.tar.x.command": "git archive --format=tar.x HEAD",
    "trailer.x.command": "echo text | git interpret-trailers --trailer x",
    "pager.log": "script -qec 'git log' /dev/null",
    "core.pager": "script -qec 'git log' /dev/null",
    "browser.x.cmd": "git web--browse -b x http://example.invalid",
    "man.x.cmd": "git -c man.viewer=x help log",
}  # Keys whose value is a program, which no shell reads.
PROGRAMS = {
    "core.askPass": CREDENTIALS,
    "core.gitProxy": "git fetch git://example.invalid/x",
    "credential.helper": CREDENTIALS,
    "credential.https://example.invalid.helper": CREDENTIALS,
    "gpg.program": "git commit -q --allow-empty -S -m mine",
    "gpg.ssh.defaultKeyCommand": "git -c gpg.format=ssh commit -q --allow-empty -S -m mine",
}


def config(key: str, value: str, file: str = ".git/config") -> str:
    return f"git('config', '--file', {file!r}, {key!r}, {value})"


# Each ends with failure, so that git does not go on as if the command had answered.
RUNS = "f'{TOUCH}; false'"
PROGRAM = "put('run', f'#!/bin/sh\\n{TOUCH}\\n', 0o755)"
ATTACKS = {
    **{f"command in {key}": Attack(ATTRIBUTES + config(key, RUNS), victim, CANARY) for key, victim in COMMANDS.items()},
    **{f"program in {key}": Attack(f"{PROGRAM}\n" + config(key, "os.path.abspath('run')"), victim, CANARY) for key, victim in PROGRAMS.items()},
    "alias": Attack(config("alias.st", "f'!{TOUCH}'"), "git st", CANARY),
    "command in the update of a submodule": Attack(config("submodule.sub.update", "f'!{TOUCH};'"), "git -C sub checkout -q HEAD~1; git submodule update", CANARY, setup=SUBMODULE),
    "url of a remote that is a command": Attack(
        PROGRAM + "\n" + config("remote.origin.url", "'ext::./run'") + "\n" + config("protocol.ext.allow", "'always'"), "git fetch", CANARY
    ),
    "remote helper": Attack(
        PROGRAM + "\n" + config("remote.origin.vcs", "'ext'") + "\n" + config("remote.origin.url", "'./run'") + "\n" + config("protocol.ext.allow", "'always'"),
        "git fetch",
        CANARY,
    ),
    "hooks elsewhere": Attack("put('h/post-checkout', f'#!/bin/sh\\n{TOUCH}\\n', 0o755)\n" + config("core.hooksPath", "'h'"), "git checkout -q side", CANARY),
    "included file": Attack("put('x', f'[core]\\n\\tfsmonitor = {TOUCH}; false\\n')\n" + config("include.path", "'../x'"), "git status", CANARY),
    "file included for a branch": Attack(
        "put('x', f'[core]\\n\\tfsmonitor = {TOUCH}; false\\n')\n" + config("includeIf.onbranch:side.path", "'../x'"), "git checkout -q side; git status", CANARY
    ),
    "file that the user includes": Attack(
        "append('.git/extra', f'[core]\\n\\tfsmonitor = {TOUCH}; false\\n')", "git status", CANARY, setup="git config include.path extra; touch .git/extra"
    ),
    "file that the user includes and that is missing": Attack(
        "put('.git/extra', f'[core]\\n\\tfsmonitor = {TOUCH}; false\\n')", "git status", CANARY, setup="git config include.path extra"
    ),
    "configuration of a worktree": Attack(
        config("core.fsmonitor", RUNS, ".git/config.worktree"), "git status", CANARY, setup="git config extensions.worktreeConfig true"
    ),
    "configuration of a linked worktree": Attack(
        config("core.fsmonitor", RUNS, ".git/worktrees/wt/config.worktree"), "git -C wt status", CANARY, setup="git config extensions.worktreeConfig true; git worktree add -q wt side"
    ),
    "configuration of a worktree, switched on": Attack(
        config("extensions.worktreeConfig", "'true'") + "\n" + config("core.fsmonitor", RUNS, ".git/config.worktree"), "git status", CANARY
    ),
    "configuration of a submodule": Attack(config("core.fsmonitor", RUNS, ".git/modules/sub/config"), "git status", CANARY, setup=SUBMODULE),
    "configuration by rename": Attack(
        "shutil.copy('.git/config', 'c')\n" + config("core.fsmonitor", RUNS, "c") + "\nos.replace('c', '.git/config')", "git status", CANARY
    ),
    "configuration by a second name": Attack(("os.link('.git/config', 'c')", "append('c', f'[core]\\n\\tfsmonitor = {TOUCH}; false\\n')"), "git status", CANARY),
    "configuration with a byte order mark and odd case": Attack(
        "text = open('.git/config').read()\nput('.git/config', '\\ufeff' + text + f'[CoRe]fsMonitor={TOUCH}\\\\\\n; false\\n')", "git status", CANARY
    ),
    "files of the project outside": Attack(config("core.worktree", "f'{OUT}/dir'"), "git checkout -f main -- .", "test -e $OUT/dir/Makefile"),
    "files of a submodule outside": Attack(config("core.worktree", "f'{OUT}/dir'", ".git/modules/sub/config"), "git -C sub checkout -f main -- .", "test -e $OUT/dir/Makefile", setup=SUBMODULE),
    "repository without files": Attack(config("core.bare", "'true'"), "true", "! git status"),
    "unknown format of the repository": Attack(config("core.repositoryFormatVersion", "'9'"), "true", "! git status"),
    "configuration that git cannot read": Attack("append('.git/config', '[noise')", "true", "! git status"),
    "push goes elsewhere by the url": Attack(
        "git('init', '-q', '--bare', 'evil.git')\n" + config("remote.origin.pushurl", "'./evil.git'"), "git push -q origin side", "git -C evil.git rev-parse side"
    ),
    "push goes elsewhere by another url": Attack(
        "git('init', '-q', '--bare', 'evil.git')\n" + config("url../evil.git.insteadOf", "'../remote.git'"), "git push -q origin side", "git -C evil.git rev-parse side"
    ),
    "push goes elsewhere by another remote": Attack(
        "git('init', '-q', '--bare', 'evil.git')\n" + config("remote.evil.url", "'./evil.git'") + "\n" + config("remote.pushDefault", "'evil'"),
        "git checkout -q side; git -c push.default=current push -q",
        "git -C evil.git rev-parse side",
    ),
    "push goes elsewhere by the branch": Attack(
        "git('init', '-q', '--bare', 'evil.git')\n" + config("branch.main.pushRemote", "'./evil.git'"), "git push -q", "git -C evil.git rev-parse main"
    ),
    "push sends more": Attack(config("remote.origin.push", "'+conflict:main'"), "git push -q origin", "test $(git -C ../remote.git rev-parse main) = $(git rev-parse conflict)"),
    "pull merges another branch": Attack(
        "git('branch', 'evil', evil_commit())\n" + config("branch.main.remote", "'.'") + "\n" + config("branch.main.merge", "'refs/heads/evil'"), "git pull -q --no-rebase", "grep -q EVIL f"
    ),
    "fetch writes to a branch": Attack(
        config("remote.origin.fetch", "'+refs/heads/main:refs/heads/side'"), "git fetch -q", "test $(git rev-parse side) = $(git -C ../remote.git rev-parse main)"
    ),
    "collection loses objects": Attack(
        config("gc.pruneExpire", "'now'") + "\n" + config("gc.reflogExpireUnreachable", "'now'"),
        "git gc -q",
        "! git cat-file -e $(cat $OUT/name)",
        setup="git commit -q --allow-empty -m lost; git rev-parse HEAD > $OUT/name; git reset -q --hard HEAD~1",
    ),
    "excluded files": Attack("put('x', 'evil.sh\\n')\nput('evil.sh', '')\n" + config("core.excludesFile", "'x'"), "git status --porcelain -uall", "! grep -q evil.sh $SAID && test -e evil.sh"),
    "modes are not looked at": Attack(config("core.fileMode", "'false'") + "\nos.chmod('Makefile', 0o755)", "git status --porcelain", "! grep -q Makefile $SAID && test -x Makefile"),
    "submodules are not looked at": Attack("append('sub/f', 'EVIL')\n" + config("submodule.sub.ignore", "'all'"), "git status --porcelain", "! grep -q sub $SAID && grep -q EVIL sub/f", setup=SUBMODULE),
    "file of excludes in info": Attack("append('.git/info/exclude', 'evil.sh\\n')\nput('evil.sh', '')", "git status --porcelain -uall", "! grep -q evil.sh $SAID && test -e evil.sh"),
    "file of attributes in info": Attack("append('Makefile', 'EVIL')\nput('.git/info/attributes', '* -diff\\n')", "git diff", "! grep -q EVIL $SAID && grep -q EVIL Makefile"),
    "file of attributes in info, with a filter of the user's": Attack(
        "put('.git/info/attributes', 'f filter=deploy\\n')", "rm f; git checkout f", CANARY, setup="git config --global filter.deploy.smudge \"touch $OUT/canary; cat\""
    ),
    "remote in a file of old": Attack(
        "git('init', '-q', '--bare', 'evil.git')\nput('.git/remotes/origin', 'URL: ./evil.git\\n')", "git push -q origin side", "git -C evil.git rev-parse side", setup="git remote remove origin"
    ),
    "branch in a file of old": Attack(
        "git('init', '-q', '--bare', 'evil.git')\nput('.git/branches/origin', './evil.git\\n')", "git push -q origin main", "git -C evil.git rev-parse main", setup="git remote remove origin"
    ),
    "remote in a file of old that fetches": Attack(
        "put('.git/remotes/up', 'URL: .\\nPull: refs/heads/conflict:refs/heads/side\\n')", "git fetch -q -f up", "test $(git rev-parse side) = $(git rev-parse conflict)"
    ),
}  # fmt: skip
HOOKS = {
    "applypatch-msg": ("git am -q $OUT/patch", PATCH),
    "pre-applypatch": ("git am -q $OUT/patch", PATCH),
    "post-applypatch": ("git am -q $OUT/patch", PATCH),
    "pre-commit": ("git commit -q --allow-empty -m mine", ""),
    "prepare-commit-msg": ("git commit -q --allow-empty -m mine", ""),
    "commit-msg": ("git commit -q --allow-empty -m mine", ""),
    "post-commit": ("git commit -q --allow-empty -m mine", ""),
    "pre-merge-commit": ("git merge -q side", ""),
    "post-merge": ("git merge -q side", ""),
    "pre-rebase": ("git rebase -q side", ""),
    "post-rewrite": ("git commit -q --amend -m mine", ""),
    "post-checkout": ("git checkout -q side", ""),
    "pre-push": ("git push -q origin side", ""),
    "reference-transaction": ("git branch new", ""),
    "post-index-change": ("echo x > f; git add f", ""),
    "pre-auto-gc": (
        "git -c gc.autoPackLimit=1 gc --auto -q",
        "git gc -q; git commit -q --allow-empty -m x; git repack -q",
    ),
    "pre-receive": ("git -C $OUT/c push -q origin HEAD:new", "git clone -q $P $OUT/c"),
    "update": ("git -C $OUT/c push -q origin HEAD:new", "git clone -q $P $OUT/c"),
    "post-receive": ("git -C $OUT/c push -q origin HEAD:new", "git clone -q $P $OUT/c"),
    "post-update": ("git -C $OUT/c push -q origin HEAD:new", "git clone -q $P $OUT/c"),
    "push-to-checkout": (
        "git -C $OUT/c push -q origin HEAD:main",
        "git config receive.denyCurrentBranch updateInstead; git clone -q $P $OUT/c; git -C $OUT/c commit -q --allow-empty -m x",
    ),
    "fsmonitor-watchman": ("git status", "git config core.fsmonitor .git/hooks/fsmonitor-watchman"),
}


def hook(name: str, folder: str = ".git") -> str:
    return f"put('{folder}/hooks/{name}', f'#!/bin/sh\\n{{TOUCH}}\\n', 0o755)"


ATTACKS |= {f"hook {name}": Attack(hook(name), victim, CANARY, setup) for name, (victim, setup) in HOOKS.items()}
ATTACKS |= {
    "hook of a submodule": Attack(
        hook("post-checkout", ".git/modules/sub"), "git -C sub checkout -q HEAD~1", CANARY, SUBMODULE
    ),
    "hook in a directory put in place": Attack(
        "os.rename('.git/hooks', '.git/old')\n" + hook("post-checkout"), "git checkout -q side", CANARY
    ),
    "hook in a directory behind a link": Attack(
        "shutil.rmtree('.git/hooks')\nos.symlink('../h', '.git/hooks')\n"
        + hook("post-checkout", ".").replace("./hooks", "h"),
        "git checkout -q side",
        CANARY,
    ),
    "hook that was a sample": Attack(
        "open('.git/hooks/pre-commit.sample', 'w').write(f'#!/bin/sh\\n{TOUCH}\\n')\nos.rename('.git/hooks/pre-commit.sample', '.git/hooks/pre-commit')",
        "git commit -q --allow-empty -m mine",
        CANARY,
        "echo > .git/hooks/pre-commit.sample; chmod +x .git/hooks/pre-commit.sample",
    ),
    "hook of the user's, changed": Attack(
        "append('.git/hooks/pre-commit', '\\n' + TOUCH)",
        "git commit -q --allow-empty -m mine",
        CANARY,
        "echo '#!/bin/sh' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    ),
    "hook of the user's, made executable": Attack(
        "os.chmod('.git/hooks/pre-commit', 0o755)",
        "git commit -q --allow-empty -m mine",
        CANARY,
        "printf '#!/bin/sh\\ntouch %s/canary\\n' $OUT > .git/hooks/pre-commit",
    ),
}


@pytest.mark.real
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_config_attack_works_unprotected(tmp_path: Path, attack: Attack) -> None:
    assert works_unprotected(attack, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_config_attack_is_stopped(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], attack: Attack, way: str
) -> None:
    assert is_stopped(attack, tmp_path, way, open_sandbox)
