"""Workflows of git with several repositories or worktrees, with maintenance, and with plumbing."""

from git_workflows import FLAGS, Workflow

LOCAL = "git -c protocol.file.allow=always"
SPARSE = {
    **FLAGS,
    "status": "Without the flags, files that a sparse checkout left out show as deleted.",
    "config": "The configuration of a sparse checkout stays in the sandbox.",
}
SUBMODULE = {
    "config": "The configuration of a new submodule stays in the sandbox.",
    "status": "A new submodule's repository stays in the sandbox.",
}
SHALLOW = {
    "fsck": "The boundary of a shallow clone stays in the sandbox.",
    "status": "The boundary of a shallow clone stays in the sandbox.",
    "upstream": "The boundary of a shallow clone stays in the sandbox.",
}
LIBRARY = "user$ git init -q --bare -b main ../lib.git && git init -q -b main lib-work && cd lib-work && echo l >l && git add l && git commit -qm l && git push -q ../../lib.git main && cd .. && rm -rf lib-work"
WITH_MODULE = f"{LIBRARY} && {LOCAL} submodule --quiet add ../lib.git lib && git commit -qm module"

WORKTREES = (
    Workflow(
        "worktree added and removed",
        """git worktree add -q tree side
        git worktree list --porcelain
        git -C tree log -1 --oneline
        git worktree remove tree
        git worktree list""",
    ),
    Workflow(
        "worktree with commits",
        """git worktree add -q -b topic tree v1
        cd tree && echo t >t.txt && git add t.txt && git commit -qm t
        cd tree && git status
        git log --oneline topic
        user$ cd tree && git commit -q --allow-empty -m 'by the user'
        cd tree && git log --format=%s -2""",
        repositories=(".", "tree"),
    ),
    Workflow(
        "worktree moved, locked and pruned",
        """git worktree add -q --detach tree
        git worktree lock tree
        git worktree unlock tree
        mkdir -p build/w && git worktree move tree build/w/tree
        git worktree list --porcelain
        rm -rf build/w
        git worktree prune
        git worktree list""",
    ),
    Workflow(
        "merge in a worktree",
        """git worktree add -q tree clash
        cd tree && ! git merge main
        cd tree && git status --short
        cd tree && echo both >a.txt && git add a.txt && git commit -qm both
        git log --graph --oneline clash""",
        repositories=(".", "tree"),
    ),
    Workflow(
        "the project is a linked worktree",
        """git status
        echo x >x.txt && git add x.txt && git commit -qm x
        git branch from-here
        git merge -q --no-edit side
        user$ cd ../main && git commit -q --allow-empty -m 'by the user in main'
        git log --oneline main
        git stash list""",
        start="linked",
        repositories=(".", "../main"),
    ),
    Workflow(
        "rebase in a linked worktree",
        """git switch -q clash
        ! git rebase -q main
        echo both >a.txt && git add a.txt
        GIT_EDITOR=true git rebase --continue
        git log --oneline
        echo y >>b.txt && git stash -q
        user$ cd ../main && git stash list""",
        start="linked",
        repositories=(".", "../main"),
    ),
    Workflow(
        "sparse checkout",
        """git sparse-checkout set dir
        ls
        git status
        git sparse-checkout add none""",
        SPARSE,
    ),
    Workflow(
        "sparse checkout, undone",
        """git sparse-checkout set dir
        echo x >>dir/c.txt && git commit -qam x
        git sparse-checkout disable
        ls
        git status --short""",
        {"config": "The configuration of a sparse checkout stays in the sandbox."},
    ),
)

SUBMODULES = (
    Workflow(
        "submodule added",
        f"""{LIBRARY} && git clone -q --bare ../lib.git build/lib.git
        {LOCAL} submodule --quiet add ./build/lib.git lib
        git status --short
        git commit -qm module
        git submodule status""",
        SUBMODULE,
    ),
    Workflow(
        "commit inside a submodule",
        f"""{WITH_MODULE}
        cd lib && echo more >>l && git commit -qam more
        git status --short
        git add lib && git commit -qm bump
        git submodule status
        git diff --submodule=log HEAD~1""",
        repositories=(".", "lib"),
    ),
    Workflow(
        "submodule updated",
        f"""{WITH_MODULE}
        cd lib && git commit -q --allow-empty -m other
        git submodule --quiet update
        git submodule status
        git status --short
        cd lib && git switch -q main && git log --oneline""",
        repositories=(".", "lib"),
    ),
    Workflow(
        "submodule taken out and in",
        f"""{WITH_MODULE}
        git submodule --quiet deinit -f lib
        git rm -q lib
        git commit -qm 'no module'
        git status --short
        git revert --no-edit HEAD
        git ls-files -s lib""",
        SUBMODULE,
    ),
    Workflow(
        "the user commits inside a submodule",
        f"""{WITH_MODULE}
        user$ cd lib && git commit -q --allow-empty -m 'by the user'
        git status --short
        cd lib && git commit -q --allow-empty -m 'by a command'
        user$ git add lib && git commit -qm bump
        cd lib && git log --format=%s""",
        repositories=(".", "lib"),
    ),
)

REPOSITORIES = (
    Workflow(
        "init in an empty project",
        """git init -q -b main
        echo x >x.txt && git add x.txt
        git commit -qm first
        git status
        user$ git log --oneline
        git branch topic && git tag one
        user$ git commit -q --allow-empty -m second
        git log --format=%s""",
        start="empty",
    ),
    Workflow(
        "init, staged only",
        """git init -q -b trunk
        echo x >x.txt && git add x.txt
        git status --short""",
        start="empty",
    ),
    Workflow(
        "init in a subdirectory",
        """git init -q -b main sub
        cd sub && echo x >x.txt && git add x.txt && git commit -qm sub
        cd sub && git switch -qc topic
        cd sub && git commit -q --allow-empty -m two
        cd sub && git log --oneline""",
        start="empty",
        repositories=("sub",),
    ),
    Workflow(
        "init again",
        """git init -q
        git status --short
        git commit -q --allow-empty -m x
        git init -q
        git log -1 --format=%s""",
    ),
    Workflow(
        "bare repository",
        """git init -q --bare -b main store.git
        git push -q store.git main side
        git -C store.git log --oneline main
        git ls-remote store.git""",
        repositories=(".", "store.git"),
    ),
    Workflow(
        "push to a bare repository of the user's",
        """user$ git init -q --bare -b main build/store.git
        git push -q build/store.git main
        git push -q build/store.git main~1:refs/heads/old v1
        git push -q build/store.git :old
        git -C build/store.git for-each-ref""",
        repositories=(".", "build/store.git"),
    ),
    Workflow(
        "push to the user's origin",
        """user$ git init -q --bare -b main build/store.git && git remote add origin ./build/store.git && git push -qu origin main
        git commit -q --allow-empty -m ahead
        git status --branch --short
        git push -q
        git status --branch --short
        git push -q -u origin side
        git branch -vv""",
        repositories=(".", "build/store.git"),
    ),
    Workflow(
        "remote added and fetched",
        """user$ git clone -q . build/other && cd build/other && git commit -q --allow-empty -m theirs
        git remote add other ./build/other
        git fetch -q other
        git branch -a
        git merge -q other/main
        git remote -v
        git remote rename other another
        git remote remove another""",
    ),
    Workflow(
        "pull from the user's origin",
        """user$ git clone -q . build/other && cd build/other && git commit -q --allow-empty -m theirs && cd ../.. && git remote add origin ./build/other && git config branch.main.remote origin && git config branch.main.merge refs/heads/main
        git pull -q --ff-only
        git log -1 --format=%s
        user$ cd build/other && git commit -q --allow-empty -m more && git branch extra
        git fetch -q --prune
        git status --branch --short
        git log --oneline origin/extra""",
    ),
    Workflow(
        "clone",
        """git clone -q . build/copy
        cd build/copy && git log --oneline -1 && git branch -a
        cd build/copy && git switch -q side && git commit -q --allow-empty -m here
        cd build/copy && git push -q origin side
        git log -1 --format=%s side""",
        repositories=(".", "build/copy"),
    ),
    Workflow(
        "shallow clone",
        """git clone -q --depth 1 "file://$PWD" build/copy
        cd build/copy && git log --oneline
        cd build/copy && git commit -q --allow-empty -m here
        cd build/copy && git log --oneline""",
        SHALLOW,
        repositories=(".", "build/copy"),
    ),
    Workflow(
        "shallow clone, made deep",
        """git clone -q --depth 1 "file://$PWD" build/copy
        cd build/copy && git fetch -q --unshallow
        cd build/copy && git log --oneline
        cd build/copy && git commit -q --allow-empty -m here""",
        repositories=(".", "build/copy"),
    ),
    Workflow(
        "bundle",
        """git bundle create -q build/all.bundle --all
        git bundle verify -q build/all.bundle
        git clone -q build/all.bundle build/copy
        cd build/copy && git log --oneline -1""",
        repositories=(".", "build/copy"),
    ),
    Workflow(
        "large files by git-lfs",
        """git lfs install --local --skip-repo
        git lfs track '*.bin'
        head -c 100000 /dev/zero >big.bin && git add .gitattributes big.bin
        git commit -qm big
        git lfs ls-files
        rm big.bin && git checkout -- big.bin
        wc -c big.bin""",
        {"config": "A filter is a program, so its configuration does not cross."},
        needs="git-lfs",
    ),
    Workflow(
        "large files by git-lfs on two branches",
        """git lfs install --local --skip-repo
        git lfs track '*.bin' && git lfs track '*.dat'
        head -c 70000 /dev/zero >one.bin && git add . && git commit -qm one
        git switch -q -c large
        head -c 90000 /dev/zero | tr '\\0' x >one.bin && echo x >two.dat && git add . && git commit -qm two
        git switch -q main && wc -c one.bin
        git merge -q --no-edit large && wc -c one.bin two.dat
        git lfs ls-files --all --size
        git lfs fsck
        git lfs untrack '*.dat' && git add --renormalize . && git commit -qm plain
        git cat-file -s HEAD:two.dat
        git stash list && git lfs prune --dry-run""",
        {"config": "A filter is a program, so its configuration does not cross."},
        needs="git-lfs",
    ),
)

MAINTENANCE = (
    Workflow(
        "collect garbage",
        """echo x >x.txt && git add x.txt && git commit -qm x
        git gc -q
        git log --oneline
        git gc -q --prune=now --aggressive
        git commit -q --allow-empty -m y
        git fsck""",
    ),
    Workflow(
        "repack and pack refs",
        """git commit -q --allow-empty -m x
        git repack -qad
        git pack-refs --all
        git branch extra
        git branch -d extra
        git tag -d v1
        git for-each-ref""",
    ),
    Workflow(
        "fsck, prune and count",
        """git fsck --full
        git count-objects
        git prune --expire=now
        git hash-object -w a.txt
        git fsck --unreachable""",
        {"output": "Commands have loose objects of their own, and `git count-objects` counts only these."},
    ),
    Workflow(
        "reflog expired",
        """git commit -q --allow-empty -m x
        git reset -q --hard HEAD~1
        git reflog -3
        git reflog expire --expire=now --all
        git reflog
        git gc -q --prune=now""",
    ),
    Workflow(
        "commit graph and index of packs",
        """git repack -qad
        git commit-graph write --reachable
        git multi-pack-index write
        git log --oneline -1
        git commit -q --allow-empty -m x
        git fsck""",
    ),
    Workflow(
        "filter-branch",
        """FILTER_BRANCH_SQUELCH_WARNING=1 git filter-branch -f --msg-filter 'tr a-z A-Z' -- main >/dev/null
        git log --format=%s
        git for-each-ref refs/original
        git update-ref -d refs/original/refs/heads/main
        git status""",
    ),
    Workflow(
        "export and import",
        """git fast-export --all >build/stream
        git init -q -b main build/copy
        cd build/copy && git fast-import --quiet <../stream
        cd build/copy && git reset -q --hard
        cd build/copy && git log --oneline""",
        repositories=(".", "build/copy"),
    ),
    Workflow(
        "import into a branch",
        """git fast-export main | sed 's#refs/heads/main#refs/heads/imported#' | git fast-import --quiet --force
        git log --oneline imported
        git diff main imported""",
    ),
    Workflow(
        "flags of the index",
        """git update-index --assume-unchanged a.txt
        git update-index --skip-worktree b.txt
        git ls-files -v
        git status --short""",
        FLAGS,
    ),
    Workflow(
        "index by plumbing",
        r"""git update-index --add --cacheinfo 100755,$(git rev-parse HEAD:a.txt),by-hash
        git update-index --force-remove b.txt
        printf '0 %040d\ta.txt\n' 0 | git update-index --index-info
        git update-index -q --refresh || true
        git ls-files -s""",
    ),
    Workflow(
        "trees by plumbing",
        """git read-tree v1
        git read-tree --prefix=below/ side
        git write-tree
        git update-ref refs/heads/made $(git commit-tree -p main -m made $(git write-tree))
        git read-tree -m -u made || git read-tree --reset -u made
        git log --oneline made""",
    ),
    Workflow(
        "commit by an index of its own",
        """export GIT_INDEX_FILE=build/index; git read-tree side && git rm -qf --cached a.txt && git update-ref refs/heads/own $(git commit-tree -p side -m own $(git write-tree))
        git log --stat -1 own
        git status --short""",
    ),
    Workflow(
        "references by plumbing",
        r"""git update-ref refs/heads/one main~1
        git update-ref -m why refs/heads/one main main~1
        printf 'create refs/heads/two main\ndelete refs/heads/side\nupdate refs/heads/clash v1^{}\n' | git update-ref --stdin
        git update-ref -d refs/heads/one
        ! git update-ref refs/heads/two side
        git for-each-ref""",
    ),
    Workflow(
        "symbolic references",
        """git symbolic-ref HEAD refs/heads/side
        git status --short
        git symbolic-ref HEAD refs/heads/main
        git symbolic-ref HEAD
        git status --short""",
    ),
    Workflow(
        "references of a namespace of the command's",
        """git update-ref refs/pull/1/head side
        git update-ref refs/keep/this/one v1
        git log --oneline -1 refs/pull/1/head
        git update-ref -d refs/pull/1/head""",
        {
            "refs": "References other than branches, remote branches, tags, notes and `refs/original` stay in the sandbox."
        },
    ),
)
