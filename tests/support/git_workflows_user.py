"""Workflows in which the user runs git between two contained commands."""

from git_workflows import Workflow

WITH_USER = (
    Workflow(
        "the user commits between two commands",
        """echo 1 >one && git add one && git commit -qm one
        user$ echo 2 >two && git add two && git commit -qm two
        git log --oneline
        echo 3 >three && git add three && git commit -qm three
        user$ git commit -q --allow-empty -m four
        git log --format=%s -5""",
    ),
    Workflow(
        "the user stages between two commands",
        """echo x >>a.txt && git add a.txt
        user$ echo y >>b.txt && git add b.txt
        git status --short
        git commit -qm both
        user$ git rm -q dir/c.txt
        git status --short""",
    ),
    Workflow(
        "the user switches between two commands",
        """echo x >x.txt && git add x.txt && git commit -qm x
        user$ git switch -q side
        git status --branch --short
        echo s >s.txt && git add s.txt && git commit -qm s
        user$ git switch -q main
        git log -1 --format=%s""",
    ),
    Workflow(
        "the user stashes and a command pops",
        """echo x >>a.txt
        user$ git stash push -qm 'by the user'
        git stash list
        git stash pop -q
        echo y >>b.txt && git stash push -qm 'by a command'
        user$ git stash pop -q
        git stash list
        git status --short""",
    ),
    Workflow(
        "both stash",
        """echo x >>a.txt && git stash push -qm one
        user$ echo y >>b.txt && git stash push -qm two
        git stash list
        echo z >>b.txt && git stash push -qm three
        user$ git stash drop -q stash@{1}
        git stash list""",
    ),
    Workflow(
        "the user deletes a branch",
        """git branch extra
        user$ git branch -D extra side
        git branch --list
        git branch side main
        user$ git branch -m clash conflict
        git branch --list""",
    ),
    Workflow(
        "the user resets",
        """echo x >x.txt && git add x.txt && git commit -qm x
        user$ git reset -q --hard HEAD~2
        git log --oneline
        git status --short
        echo z >z.txt && git add z.txt && git commit -qm z""",
    ),
    Workflow(
        "the user amends",
        """echo x >x.txt && git add x.txt && git commit -qm x
        user$ git commit -q --amend -m 'better words'
        git log -1 --format=%s
        echo y >>x.txt && git commit -qa --amend --no-edit
        user$ git log -1 --format=%s""",
    ),
    Workflow(
        "the user tags and moves tags",
        """git tag mine
        user$ git tag -f mine HEAD~1 && git tag yours
        git tag -n
        git tag -d yours
        user$ git tag -d mine""",
    ),
    Workflow(
        "the user packs and collects",
        """echo x >x.txt && git add x.txt && git commit -qm x
        user$ git gc -q --prune=now
        git log --oneline
        echo y >y.txt && git add y.txt && git commit -qm y
        user$ git pack-refs --all && git repack -qad && git prune --expire=now
        git status --short
        git commit -q --amend -m z""",
    ),
    Workflow(
        "the user collects during a rebase",
        """git switch -q clash
        ! git rebase -q main
        user$ git gc -q --prune=now
        echo both >a.txt && git add a.txt
        GIT_EDITOR=true git rebase --continue
        git log --oneline""",
    ),
    Workflow(
        "the user collects after a command's reset",
        """echo x >x.txt && git add x.txt && git commit -qm x
        git tag kept && git reset -q --hard HEAD~1
        user$ git reflog expire --expire=now --all && git gc -q --prune=now
        git reset -q --hard kept
        git status""",
    ),
    Workflow(
        "the user changes configuration",
        """git status --short
        user$ git config user.name Changed && git config core.abbrev 12
        git config user.name
        git log -1 --oneline
        user$ git config --unset user.name
        ! git config user.name""",
    ),
    Workflow(
        "the user makes a worktree beside the project",
        """git branch topic
        user$ git worktree add -q ../beside topic && cd ../beside && git commit -q --allow-empty -m beside
        git log -1 --format=%s topic
        user$ git worktree remove ../beside
        git branch -D topic""",
    ),
    Workflow(
        "the user makes the repository again",
        """echo x >x.txt && git add x.txt
        user$ rm -rf .git && git init -q -b other && git add -A && git commit -qm again
        git log --oneline
        echo y >y.txt && git add y.txt && git commit -qm y
        git status --branch --short""",
    ),
)
