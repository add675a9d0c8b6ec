"""Workflows of git with branches: merges, rebases and bisecting."""

from git_workflows import IN_PROGRESS, SEQUENCE, Workflow

EDIT = "GIT_SEQUENCE_EDITOR="
BRANCHES = (
    Workflow(
        "branches made and deleted",
        """git branch one
        git branch two side
        git branch -d one
        ! git branch -d two
        git branch -D two
        git branch -f clash main~1
        git branch -av""",
    ),
    Workflow(
        "branch below a deleted name",
        """git branch topic
        git branch -d topic
        git branch topic/one
        git branch -d topic/one
        git branch topic
        git for-each-ref""",
    ),
    Workflow(
        "branch renamed",
        """git switch -qc old
        git branch -m old new
        git branch -M side
        git status --branch --short
        git log -1 --oneline""",
    ),
    Workflow(
        "branch renamed with its configuration",
        """user$ git config branch.side.description 'what it is for' && git config branch.side.rebase true
        git branch -m side other
        git config branch.other.rebase
        git branch -c other copied
        git branch -d copied || git branch -D copied""",
    ),
    Workflow(
        "branch with a local upstream",
        """git switch -q -c topic --track main
        git commit -q --allow-empty -m ahead
        git status --branch --short
        git branch -u side
        git branch --unset-upstream
        git branch -u main""",
    ),
    Workflow(
        "switch",
        """git switch -q side
        git switch -qc topic
        echo t >t.txt && git add t.txt && git commit -qm t
        git switch -q -
        git switch -q main
        git status --short""",
    ),
    Workflow(
        "switch with local changes",
        """echo x >>run.sh && echo n >n.txt
        git switch -q side
        git status --short
        echo x >>b.txt
        ! git switch -q main
        git switch -q -f main
        git status --short""",
    ),
    Workflow(
        "detached head",
        """git checkout -q HEAD~1
        git commit -q --allow-empty -m loose
        git branch kept
        git checkout -q v1
        git status""",
    ),
    Workflow(
        "checkout of paths",
        """git checkout -q side -- side.txt
        git status --short
        git checkout -q HEAD~1 -- a.txt
        git commit -qm mixed""",
    ),
    Workflow(
        "orphan branch",
        """git checkout -q --orphan fresh
        git rm -rqf .
        echo first >first && git add first
        git commit -qm first
        git log --oneline --all
        git switch -q main""",
    ),
    Workflow(
        "unborn branch",
        """git switch -q --orphan nothing-yet
        git status --branch --short
        echo x >x && git add x""",
    ),
)

MERGES = (
    Workflow(
        "merge forward",
        """git switch -q -c topic v1
        git merge -q --ff-only main
        git log --oneline -1
        git status""",
    ),
    Workflow(
        "merge with a commit",
        """git merge -q --no-ff --no-edit side
        git log --graph --oneline
        git status""",
    ),
    Workflow(
        "merge with conflict, step by step",
        """! git merge clash
        git status --short
        git diff
        echo resolved >a.txt
        git add a.txt
        git status
        git commit -qm merged
        git log --graph --oneline""",
    ),
    Workflow(
        "merge with conflict, continued",
        """! git merge clash
        git checkout --ours a.txt
        git add a.txt
        git -c core.editor=true merge --continue
        git cat-file -p HEAD""",
    ),
    Workflow(
        "merge left in conflict",
        """! git merge clash
        git ls-files -u
        git status""",
    ),
    Workflow(
        "merge resolved but not committed",
        """! git merge clash
        echo resolved >a.txt
        git add a.txt
        git status""",
    ),
    Workflow(
        "merge committed by the user",
        """! git merge clash
        echo resolved >a.txt && git add a.txt
        user$ git commit -qm 'merged by the user'
        git log --graph --oneline
        git status --short""",
    ),
    Workflow(
        "merge begun by the user",
        """user$ ! git merge clash
        git status --short
        echo resolved >a.txt && git add a.txt
        git commit -qm merged
        git log --graph --oneline""",
    ),
    Workflow(
        "merge aborted",
        """! git merge clash
        git merge --abort
        git status --short
        ! git merge clash
        git reset -q --merge
        git status""",
    ),
    Workflow(
        "merge without commit",
        """git merge -q --no-commit --no-ff side
        git status
        git commit -qm 'merged later'
        git log --graph --oneline""",
    ),
    Workflow(
        "merge without commit, left",
        """git merge -q --no-commit --no-ff side
        git status""",
    ),
    Workflow(
        "squash merge",
        """git merge -q --squash side
        git status
        git -c core.editor=true commit -q
        git log -1 --format=%B""",
    ),
    Workflow(
        "squash merge, left",
        """git merge -q --squash side
        git status --short""",
    ),
    Workflow(
        "merge of three branches",
        """git branch other v1 && git switch -q other && echo o >o.txt && git add o.txt && git commit -qm o
        git switch -q main
        git merge -q -m octopus side other
        git cat-file -p HEAD""",
    ),
    Workflow(
        "merge of a file deleted on one side",
        """git rm -q a.txt && git commit -qm gone
        ! git merge clash
        git status --short
        git rm -q a.txt
        git commit -qm 'still gone'""",
    ),
    Workflow(
        "merge with the user's recorded resolution",
        """user$ git config rerere.enabled true
        ! git merge clash
        echo resolved >a.txt && git add a.txt && git commit -qm merged
        git reset -q --hard HEAD~1
        ! git merge clash
        cat a.txt
        git rerere status""",
    ),
)

REBASES = (
    Workflow(
        "rebase",
        """git switch -q side
        git rebase -q main
        git log --oneline
        git switch -q main
        git merge -q --ff-only side""",
    ),
    Workflow(
        "rebase onto another base",
        """git rebase -q --onto v1 main~2 side
        git log --oneline side
        git status""",
    ),
    Workflow(
        "rebase with conflict, continued",
        """git switch -q clash
        ! git rebase -q main
        git status --short
        echo both >a.txt && git add a.txt
        GIT_EDITOR=true git rebase --continue
        git log --oneline""",
    ),
    Workflow(
        "rebase with conflict, skipped",
        """git switch -q clash
        ! git rebase -q main
        git rebase --skip
        git log --oneline -2
        git status""",
    ),
    Workflow(
        "rebase aborted",
        """git switch -q clash
        ! git rebase -q main
        git status
        git rebase --abort
        git log --oneline -1
        git status""",
    ),
    Workflow(
        "rebase left in conflict",
        """git switch -q clash
        ! git rebase -q main
        git diff --name-only""",
        IN_PROGRESS,
    ),
    Workflow(
        "rebase continued after the user's look",
        """git switch -q clash
        ! git rebase -q main
        user$ git log -1 --oneline; git diff --stat
        echo both >a.txt && git add a.txt
        GIT_EDITOR=true git rebase --continue
        git log --oneline""",
    ),
    Workflow(
        "interactive rebase, reordered and dropped",
        f"""git switch -q side
        {EDIT}'sed -i 1d' git rebase -q -i HEAD~2
        git log --oneline
        git reset -q --hard ORIG_HEAD
        git log --oneline""",
    ),
    Workflow(
        "interactive rebase, edited over several commands",
        f"""git switch -q side
        {EDIT}'sed -i s/^pick/edit/' git rebase -q -i HEAD~2
        git status
        echo more >>side.txt && git add side.txt
        git commit -q --amend --no-edit
        git rebase --continue
        git commit -q --allow-empty -m between
        git rebase --continue
        git log --oneline""",
    ),
    Workflow(
        "interactive rebase, squashed and reworded",
        f"""git switch -q side
        {EDIT}'sed -i 2s/^pick/squash/' GIT_EDITOR='sed -i 1s/^/both/' git rebase -q -i HEAD~2
        git log --format=%B -1
        {EDIT}'sed -i 1s/^pick/reword/' GIT_EDITOR='sed -i 1s/.*/reworded/' git rebase -q -i HEAD~1
        git log --format=%s -1""",
    ),
    Workflow(
        "interactive rebase with commands",
        f"""git switch -q side
        {EDIT}true git rebase -q -i -x 'test -e a.txt && echo ran >>build/log' HEAD~2
        cat build/log
        ! {EDIT}true git rebase -q -i -x false HEAD~1
        git rebase --abort
        git status""",
    ),
    Workflow(
        "interactive rebase, list edited between two commands",
        f"""git switch -q side
        {EDIT}'sed -i 1ibreak' git rebase -q -i HEAD~2
        {EDIT}'sed -i 2d' git rebase --edit-todo || true
        git rebase --continue
        git log --oneline""",
    ),
    Workflow(
        "interactive rebase, left",
        f"""git switch -q side
        {EDIT}'sed -i 1s/^pick/edit/' git rebase -q -i HEAD~2
        git log -1 --oneline""",
        IN_PROGRESS,
    ),
    Workflow(
        "rebase with autostash",
        """git switch -q side
        echo x >>b.txt
        git rebase -q --autostash main
        git status --short
        git stash list""",
    ),
    Workflow(
        "rebase of merges",
        """git switch -q side
        git merge -q --no-ff --no-edit v1 || true
        git rebase -q --rebase-merges main
        git log --graph --oneline""",
    ),
    Workflow(
        "rebase with moved branches",
        """git switch -q side && git branch below HEAD~1
        git rebase -q --update-refs main
        git log --oneline --decorate""",
    ),
    Workflow(
        "bisect",
        """for n in 1 2 3 4 5 6 7; do echo $n >>b.txt; git commit -qam $n; done
        git bisect start
        git bisect bad
        git bisect good v1
        git bisect good
        git bisect bad
        git bisect log
        git bisect reset
        git status""",
    ),
    Workflow(
        "bisect by a command",
        """for n in 1 2 3 4 5; do echo $n >>b.txt; git commit -qam $n; done
        git bisect start HEAD v1
        git bisect run sh -c '! grep -q 3 b.txt'
        git bisect reset""",
    ),
    Workflow(
        "bisect left",
        """for n in 1 2 3 4 5; do echo $n >>b.txt; git commit -qam $n; done
        git bisect start HEAD v1
        git bisect good""",
        IN_PROGRESS | {"refs": "The marks of a bisect (refs/bisect) stay in the sandbox."},
    ),
    Workflow(
        "revert of a range left in conflict",
        """sed -i 1s/.*/changed/ a.txt && git commit -qam changed
        ! git revert --no-edit HEAD~1 HEAD~2
        git status""",
        SEQUENCE,
    ),
)
