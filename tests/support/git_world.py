"""Makes the repositories that git workflows start from, runs steps outside the sandbox, and reads what the user's git shows."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

from corral.guard.git_remotes import UNCONFIRMED

TEMPLATE = r"""
mkdir main empty && cd main && git init -q -b main
mkdir dir build && seq -f 'line %g' 12 >a.txt && echo one >b.txt && echo c >dir/c.txt && printf '*.log\nbuild/\n/tree/\n' >.gitignore
printf '#!/bin/sh\n' >run.sh && chmod +x run.sh && git add . && git commit -qm first
git branch side && echo two >>b.txt && git commit -qam second && git tag v1 && git branch clash
sed -i '1s/.*/main/' a.txt && git commit -qam third
git switch -q side && echo s >side.txt && git add side.txt && git commit -qm 'side one' && echo t >>dir/c.txt && git commit -qam 'side two'
git switch -q clash && sed -i '1s/.*/clash/' a.txt && git commit -qam clash && git switch -q main
cd .. && cp -a main history
git -C main worktree add -q -b here ../linked main && mkdir linked/build
"""
BEGINNING = 1_700_000_000
SECONDS_EACH = 60
PENDING = ("MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "ORIG_HEAD")
SEQUENCER = ("rebase-merge", "rebase-apply", "sequencer", "BISECT_LOG")
STASHES = ["stash", "list", "--format=%gd %H %gs"]
CONFIGURED = ["config", "--local", "--get-regexp", r"^(branch|remote|submodule|filter)\.|^core\.sparse"]


def environment(step: int = 0) -> dict[str, str]:
    """Return git's variables for one step: the same person always, and a time that depends on the step alone."""
    now = f"{BEGINNING + step * SECONDS_EACH} +0000"
    person = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in
              (("NAME", "A Person"), ("EMAIL", "person@example.com"), ("DATE", now))}  # fmt: skip
    return person | {"GIT_EDITOR": "true", "GIT_TERMINAL_PROMPT": "0", "GIT_ADVICE": "0", "LC_ALL": "C.UTF-8"}


def words(step: str) -> list[str]:
    """Return the command of one step."""
    return ["bash", "--noprofile", "--norc", "-e", "-c", step]


def outside(step: str, folder: Path, number: int = 0) -> "subprocess.CompletedProcess[bytes]":
    """Run a step with plain git."""
    env = os.environ | environment(number)
    return subprocess.run(words(step), cwd=folder, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL)


def git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command of the user's that must succeed."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(errors="surrogateescape").strip()


def make_template(folder: Path) -> None:
    """Make the directories that workflows start from: `history`, `empty`, and `linked` with its repository `main`."""
    done = outside(TEMPLATE, folder)
    assert done.returncode == 0, done.stderr


def start_from(template: Path, kind: str, folder: Path) -> Path:
    """Copy the template to a project, and return the project."""
    folder.mkdir()
    project = folder / "project"
    shutil.copytree(template / kind, project, symlinks=True)
    if kind == "linked":
        shutil.copytree(template / "main", folder / "main", symlinks=True)
        private = folder / "main" / ".git" / "worktrees" / "linked"
        (private / "gitdir").write_text(f"{project}/.git\n")
        (project / ".git").write_text(f"gitdir: {private}\n")
    if kind != "empty":
        git(project, "update-index", "-q", "--refresh")
    return project


def _refs(folder: Path) -> str:
    """Return the refs, without the commits of deleted branches that corral keeps."""
    found = _asked(folder, "for-each-ref", "--format=%(refname) %(objectname) %(symref)")
    return "".join(line for line in found.splitlines(keepends=True) if not line.startswith("refs/corral/"))


def view_of(folder: Path, repositories: tuple[str, ...]) -> dict[str, object]:
    """Return what the user's git shows of each repository, and the files beside it. Paths are relative to the folder above the project."""
    view: dict[str, object] = {"files": files_of(folder)}
    for name in repositories:
        for part, value in _shown(folder / name).items():
            view[f"{name}: {part}"] = _without(folder.parent, value)
    return view


def _shown(folder: Path) -> dict[str, object]:
    status = _asked(folder, "status", "--porcelain=v2", "--branch", "-z").split("\0")
    private = Path(folder, _asked(folder, "rev-parse", "--git-dir").strip())
    return {
        "refs": _refs(folder),
        "head": _asked(folder, "symbolic-ref", "-q", "HEAD") + _asked(folder, "rev-parse", "-q", "--verify", "HEAD"),
        "index": _asked(folder, "ls-files", "-s", "-z"),
        "flags": _asked(folder, "ls-files", "-v", "-z"),
        "status": [line for line in status if not line.startswith(("# branch.upstream", "# branch.ab"))],
        "upstream": [line for line in status if line.startswith(("# branch.upstream", "# branch.ab"))],
        "stash": _asked(folder, *STASHES),
        "pending": {name: (private / name).read_text() for name in PENDING if (private / name).exists()},
        "sequencer": [name for name in SEQUENCER if (private / name).exists()],
        "config": sorted(line for line in _asked(folder, *CONFIGURED).splitlines() if UNCONFIRMED not in line),
        "worktrees": _asked(folder, "worktree", "list", "--porcelain"),
        "fsck": subprocess.run(["git", "fsck", "--full"], cwd=folder, capture_output=True, check=False).returncode,
    }


def _asked(folder: Path, *arguments: str) -> str:
    """Return the output of a command that only reads, with its exit code if it failed."""
    env = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(["git", *arguments], cwd=folder, env=env, capture_output=True, check=False)
    return done.stdout.decode(errors="surrogateescape") + (f"[{done.returncode}]" if done.returncode else "")


def _without(folder: Path, value: object) -> object:
    if isinstance(value, str):
        return value.replace(str(folder), "")
    if isinstance(value, list):
        return [_without(folder, item) for item in value]
    return {key: _without(folder, item) for key, item in value.items()} if isinstance(value, dict) else value


def files_of(root: Path) -> dict[str, tuple[bool, bytes]]:
    """Return every file and link below a directory that belongs to no git directory: its executable bit and its content."""
    found: dict[str, tuple[bool, bytes]] = {}
    for above, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _is_git_directory(os.path.join(above, name))]
        links = [name for name in folders if os.path.islink(os.path.join(above, name))]
        for name in [*names, *links]:
            path = os.path.join(above, name)
            mode = os.lstat(path).st_mode
            if name == ".git":
                content = b"leads to a git directory"
            elif stat.S_ISLNK(mode):
                content = os.fsencode(os.readlink(path))
            else:
                content = Path(path).read_bytes()
            found[os.path.relpath(path, root)] = (bool(mode & stat.S_IXUSR), content)
    return found


def _is_git_directory(path: str) -> bool:
    return os.path.basename(path) == ".git" or all(
        os.path.exists(f"{path}/{name}") for name in ("HEAD", "objects", "refs")
    )
