"""Workflows of git that must give the same repository with each step contained as with plain git: work on files, branches and history.

A workflow is one step per line, and each step is a bash command of its own. `user$` begins a step that the user runs outside the sandbox.
`differs` names the parts of the outside view that may differ from plain git, each with its reason. The documentation lists them.
"""

from corral._lib.records import Record, frozen

USER = "user$ "
PARTS = ("refs", "head", "index", "flags", "status", "upstream", "stash", "pending", "sequencer")
PARTS += ("config", "worktrees", "fsck", "files", "output")
IN_PROGRESS = {
    "sequencer": "The state of a rebase, am or bisect stays in the sandbox: only later commands can continue it."
}
SEQUENCE = {"sequencer": "The list of remaining commits stays in the sandbox: only later commands can continue it."}
CONFIG = {
    "config": "Only keys that cannot run or redirect anything cross from a command's configuration.",
    "upstream": "The upstream of a branch is configuration, and a command's configuration need not cross.",
}
FLAGS = {"flags": "The flags of index entries do not cross: they would hide changes from the user."}


@frozen
class Workflow(Record):
    """One workflow: a name, its steps, the template that it starts from, and the repositories that are compared."""

    name: str
    script: str
    differs: dict[str, str] = {}  # noqa: RUF012  a record is frozen
    start: str = "history"  # a directory of the template: history, empty, or linked
    repositories: tuple[str, ...] = (".",)
    needs: str = ""  # the program that the workflow cannot do without

    @property
    def steps(self) -> list[str]:
        """Return the steps in order."""
        return [line.strip() for line in self.script.strip().splitlines()]


FILES = (
    Workflow(
        "status and add",
        """git status --short
        echo new >new.txt && echo more >>a.txt
        git status --short
        git add new.txt
        git add -u
        git status""",
    ),
    Workflow(
        "add one hunk of two",
        r"""sed -i '1s/$/ first/; 12s/$/ last/' a.txt
        printf 'y\nn\n' | git add -p a.txt
        git diff --cached
        git diff""",
    ),
    Workflow(
        "commit hunk after hunk",
        r"""sed -i '1s/$/ first/; 12s/$/ last/' a.txt
        printf 'n\ny\n' | git add -p a.txt
        git commit -qm last
        printf 'y\n' | git add -p
        git commit -qm first
        printf 'y\n' | git checkout -p HEAD~1 -- a.txt || true""",
    ),
    Workflow(
        "intent to add",
        """echo text >later.txt
        git add -N later.txt
        git diff
        git status --short""",
        {
            "index": "An entry that is only intended is a flag without content, and does not cross.",
            "status": "The file is untracked for the user until a command adds its content.",
            "flags": "An intended entry is a flag, and flags do not cross.",
        },
    ),
    Workflow(
        "intent to add, then commit",
        r"""printf 'one\ntwo\n' >later.txt
        git add -N later.txt
        printf 'y\n' | git add -p later.txt
        git commit -qm later""",
    ),
    Workflow(
        "remove files",
        """git rm -q b.txt
        git rm -rq dir
        git status --short
        git commit -qm less""",
    ),
    Workflow(
        "remove from the index alone",
        """git rm -q --cached b.txt
        git status --short
        echo b.txt >>.gitignore
        git add -A""",
    ),
    Workflow(
        "move files",
        """git mv a.txt moved.txt
        git mv dir folder
        git status --short
        git commit -qm moved
        git log --follow --oneline moved.txt""",
    ),
    Workflow(
        "change the case of a name",
        """git mv a.txt A.txt
        git commit -qm case
        git mv A.txt a.TXT
        git ls-files""",
    ),
    Workflow(
        "executable bit",
        """chmod +x a.txt
        git add a.txt
        git update-index --chmod=-x run.sh
        git status --short
        git commit -qm modes
        git ls-files -s""",
    ),
    Workflow(
        "symbolic links",
        """ln -s a.txt link && ln -s nowhere dangling && ln -s dir folder
        git add .
        git commit -qm links
        rm link && echo file >link
        git status --short
        git commit -qam 'a link became a file'
        git checkout -q HEAD~1""",
    ),
    Workflow(
        "strange names",
        r"""touch $'new\nline' $'not-\xff-utf8' -- '-dash' ' space ' 'quo"te' $'tab\t' 'back\slash' 'stern*' ':colon' '~' 'é'
        git add -A
        git status -z
        git commit -qm strange
        git mv -- -dash --double
        git rm -q ':(literal)stern*'
        git commit -qm stranger
        git ls-files""",
    ),
    Workflow(
        "line endings by attribute",
        r"""printf '*.txt text eol=crlf\n*.bin -text\n' >.gitattributes
        printf 'one\r\ntwo\r\n' >dos.txt && printf 'a\r\n' >raw.bin
        git add .
        git commit -qm endings
        git add --renormalize .
        rm a.txt dos.txt && git checkout -q -- a.txt dos.txt
        git status --short""",
    ),
    Workflow(
        "filter of the user's configuration",
        r"""user$ git config filter.upper.clean 'tr a-z A-Z' && git config filter.upper.smudge 'tr A-Z a-z'
        echo '*.up filter=upper' >.gitattributes
        echo quiet >x.up
        git add . && git commit -qm filtered
        git cat-file -p HEAD:x.up
        rm x.up && git checkout -- x.up
        cat x.up && git status --short""",
    ),
    Workflow(
        "ignored files",
        """touch a.log && mkdir -p build && touch build/out
        git status --short --ignored
        git add -f a.log
        git check-ignore -v build/out
        git commit -qm forced""",
    ),
    Workflow(
        "clean",
        """touch junk a.log && mkdir -p junks && touch junks/x
        git clean -nd
        git clean -fdq
        git clean -fdxq
        git status --short""",
    ),
    Workflow(
        "reset of three kinds",
        """git reset -q --soft HEAD~1
        git status --short
        git reset -q HEAD~1
        git status --short
        git reset -q --hard side~1
        git status""",
    ),
    Workflow(
        "reset of a path, and back by the reflog",
        """git reset -q HEAD~1 -- a.txt
        git status --short
        git reset -q --hard HEAD~1
        git reset -q --hard 'HEAD@{1}'
        git log --oneline""",
    ),
    Workflow(
        "restore",
        """echo x >>a.txt && echo y >>b.txt && git add b.txt
        git restore --staged b.txt
        git restore a.txt b.txt
        git restore --source=HEAD~1 --staged --worktree a.txt
        git status --short""",
    ),
    Workflow(
        "a file and a directory change places",
        """git rm -q b.txt && mkdir b.txt && echo in >b.txt/in && git add b.txt
        git commit -qm 'b is a directory'
        git rm -rq dir && echo file >dir && git add dir
        git commit -qm 'dir is a file'
        git checkout -q HEAD~2
        git switch -q main""",
    ),
    Workflow(
        "apply a patch to files and index",
        """git diff HEAD~1 >build/p.diff
        git apply -R build/p.diff
        git checkout -q -- .
        git apply -R --index build/p.diff
        git apply --cached build/p.diff
        git status --short""",
    ),
    Workflow(
        "read only commands",
        """git log --graph --oneline --all
        git blame a.txt
        git diff main side
        git grep -n one main
        git show --stat v1
        git shortlog -sn HEAD
        git describe --tags --always
        git cat-file -p HEAD^{tree}
        git rev-list --count --all""",
    ),
)

COMMITS = (
    Workflow(
        "commit",
        """echo x >x.txt
        git add x.txt
        git commit -qm 'add x'
        git log -1 --stat --format=%s""",
    ),
    Workflow(
        "amend",
        """echo x >>a.txt
        git commit -qam x
        echo y >>a.txt
        git commit -qa --amend --no-edit
        git commit -q --amend -m 'another message' --author='B <b@x.y>'
        git log -3 --format='%h %an %s'""",
    ),
    Workflow(
        "commit some paths only",
        """echo x >>a.txt && echo y >>b.txt && git add b.txt
        git commit -qm 'only a' a.txt
        git status --short
        git commit -qm rest""",
    ),
    Workflow(
        "commit by an editor",
        """echo x >>a.txt
        GIT_EDITOR='sed -i 1s/^/edited/' git commit -qa
        git log -1 --format=%s%n%b""",
    ),
    Workflow(
        "empty commits",
        """git commit -q --allow-empty -m one
        git commit -q --allow-empty -m two
        git log --format=%s -3""",
    ),
    Workflow(
        "fixup and autosquash",
        """echo x >>a.txt && git commit -qam x
        echo y >>b.txt && git commit -qam y
        echo z >>a.txt && git commit -qa --fixup HEAD~1
        GIT_SEQUENCE_EDITOR=true git rebase -q -i --autosquash HEAD~3
        git log --oneline""",
    ),
    Workflow(
        "revert",
        """git revert --no-edit HEAD
        git revert --no-edit HEAD~2
        git revert -n HEAD
        git status --short
        git commit -qm 'reverted again'""",
    ),
    Workflow(
        "revert with conflict",
        """sed -i 1s/.*/changed/ a.txt && git commit -qam changed
        ! git revert --no-edit HEAD~1
        git status --short
        echo resolved >a.txt && git add a.txt
        git revert --continue --no-edit || git -c core.editor=true revert --continue
        git log --oneline""",
    ),
    Workflow(
        "revert left in conflict",
        """sed -i 1s/.*/changed/ a.txt && git commit -qam changed
        ! git revert --no-edit HEAD~1
        git status""",
    ),
    Workflow(
        "cherry-pick",
        """git cherry-pick side
        git cherry-pick -x side~1
        git log --oneline -3
        git cherry-pick -n clash~1 || true
        git status --short""",
    ),
    Workflow(
        "cherry-pick of a range",
        """git switch -qc picked v1
        git cherry-pick main~2..side
        git log --oneline""",
    ),
    Workflow(
        "cherry-pick with conflict",
        """! git cherry-pick clash
        git diff --name-only --diff-filter=U
        echo both >a.txt && git add a.txt
        git -c core.editor=true cherry-pick --continue
        git log -1 --stat""",
    ),
    Workflow(
        "cherry-pick of a range with conflict",
        """! git cherry-pick clash side~1 side
        git status --short
        git checkout -q --theirs a.txt && git add a.txt
        git -c core.editor=true cherry-pick --continue
        git log --oneline""",
    ),
    Workflow(
        "cherry-pick aborted",
        """! git cherry-pick clash
        git cherry-pick --abort
        git status --short
        git log -1 --oneline""",
    ),
    Workflow(
        "cherry-pick left in conflict",
        """! git cherry-pick clash
        git status""",
    ),
    Workflow(
        "cherry-pick of a range left in conflict",
        """! git cherry-pick clash side~1 side
        git status""",
        SEQUENCE,
    ),
    Workflow(
        "stash",
        """echo x >>a.txt
        git stash
        git stash list
        git status --short
        git stash pop -q
        git status --short""",
    ),
    Workflow(
        "several stashes",
        """echo 1 >>a.txt && git stash push -qm one
        echo 2 >>b.txt && git stash push -qm two
        echo 3 >new && git stash push -qum three
        git stash list
        git stash show -p stash@{1}
        git stash drop -q stash@{1}
        git stash apply -q stash@{0}
        git stash list""",
    ),
    Workflow(
        "stash with index",
        """echo x >>a.txt && git add a.txt && echo y >>a.txt
        git stash push -q --keep-index
        git status --short
        git reset -q --hard && git stash pop -q --index
        git status --short""",
    ),
    Workflow(
        "stash of one path, then a branch of it",
        """echo x >>a.txt && echo y >>b.txt
        git stash push -qm path -- a.txt
        git status --short
        git checkout -q b.txt && git stash branch from-stash
        git stash list""",
    ),
    Workflow(
        "stash with conflict",
        """echo x >>a.txt && git stash -q
        echo y >>a.txt && git commit -qam y
        ! git stash pop
        git status --short
        git checkout -q --theirs a.txt && git add a.txt
        git stash drop -q""",
    ),
    Workflow(
        "stash cleared",
        """echo 1 >>a.txt && git stash -q
        echo 2 >>a.txt && git stash -q
        git stash clear
        git stash list""",
    ),
    Workflow(
        "tags",
        """git tag light
        git tag -a noted -m 'a note'
        git tag -f light HEAD~1
        git tag -d v1
        git tag -n
        git cat-file -t noted
        git tag tree-tag HEAD^{tree}
        git describe""",
    ),
    Workflow(
        "notes",
        """git notes add -m 'a note'
        git notes append -m more
        git log -1 --format=%N
        git notes add -f -m other HEAD~1
        git notes remove HEAD
        git notes list""",
    ),
    Workflow(
        "patches by mail",
        """git format-patch -q -o build/mail v1..side
        git switch -qc mailed v1
        git am -q build/mail/*.patch
        git log --format='%h %s' v1..""",
    ),
    Workflow(
        "patch by mail with conflict",
        """git format-patch -q -o build/mail -1 clash
        ! git am -q -3 build/mail/*.patch
        git status --short
        echo resolved >a.txt && git add a.txt
        git am -q --continue
        git log -1 --format=%s""",
    ),
    Workflow(
        "patch by mail aborted",
        """git format-patch -q -o build/mail -1 clash
        ! git am -q -3 build/mail/*.patch
        git am --abort
        git status""",
    ),
    Workflow(
        "patch by mail left in conflict",
        """git format-patch -q -o build/mail -1 clash
        ! git am -q -3 build/mail/*.patch
        git status --short""",
        IN_PROGRESS,
    ),
)
