"""Attacks on a project, and the outcome of all attacks where the kernel makes no namespaces. SECURITY.md has the table."""

from attack_bodies import AS_ROOT, FILES, KERNEL, PROCESSES, SERVERS, WARDEN, WARDEN_AS_ROOT

# Landlock stops these.
KEPT = {
    "write git's configuration": "return open('.git/config', 'a').write('x')",
    "plant a git hook": "return open('.git/hooks/post-commit', 'w').write('x')",
    "move HEAD": "return open('.git/HEAD', 'w').write('x')",
    "make a file in the git directory": "os.mkdir('.git/made')\nreturn True",
    "rename the git directory": "os.rename('.git', 'moved')\nreturn True",
    "exchange the git directory with another": "return call(316 if X86 else 276, -100, b'sub', -100, b'.git', 2) == 0",
    "move a file into the git directory": "os.rename('sub/f', '.git/hooks/post-merge')\nreturn True",
    "link a file into the git directory": "os.link('sub/f', '.git/hooks/post-merge')\nreturn True",
    "write a file of git through a hard link": "os.link('.git/config', 'sub/config')\nreturn open('sub/config', 'a').write('x')",
    "write a file of git through a symbolic link": "os.symlink('../.git/config', 'sub/link')\ntry:\n    return open('sub/link', 'a').write('x')\nfinally:\n    os.unlink('sub/link')",
    "commit": "return subprocess.run(['git', 'commit', '-q', '--allow-empty', '-m', 'x'], capture_output=True).returncode == 0",
    "write the configuration of a nested repository": "return open('nested/.git/config', 'a').write('x')",
    "write a protected file beside a git directory": "return open('.envrc', 'w').write('x')",
    "remove a protected file beside a git directory": "os.unlink('.envrc')\nreturn True",
    "plant a protected file beside a git directory": "return open('.bashrc', 'w').write('x')",
    "plant a protected file beside it by a rename": "open('sub/made', 'w').write('x')\ntry:\n    os.rename('sub/made', '.bashrc')\n    return True\nfinally:\n    if os.path.exists('sub/made'):\n        os.unlink('sub/made')",
}
# Supervision undoes these at the end of the command.
UNDONE = {
    "change a protected file in a directory": "return open('sub/inner/.envrc', 'w').write('x')",
    "change the mode of a protected file": "os.chmod('sub/inner/.envrc', 0o777)\nreturn True",
    "remove a protected file in a directory": "os.unlink('sub/inner/.envrc')\nreturn True",
    "put a link in the place of a protected file": "os.unlink('sub/inner/.envrc')\nos.symlink('../f', 'sub/inner/.envrc')\nreturn True",
    "put a directory in the place of a protected file": "os.unlink('sub/inner/.envrc')\nos.mkdir('sub/inner/.envrc')\nreturn True",
    "rename the directory of a protected file": "os.rename('sub/inner', 'sub/moved')\nreturn True",
    "put a link in the place of that directory": "os.rename('sub/inner', 'sub/moved')\nos.symlink('moved', 'sub/inner')\nreturn True",
    "plant a protected file in a directory": "return open('sub/.envrc', 'w').write('x')",
    "make a repository": "return subprocess.run(['git', 'init', '-q', 'sub/new']).returncode == 0",
    "make a bare repository": "return subprocess.run(['git', 'init', '-q', '--bare', 'sub/bare']).returncode == 0",
    "change the .git file of a working tree": "return open('module/.git', 'w').write('gitdir: ../sub/bare')",
    "plant a .git file": "return open('sub/.git', 'w').write('gitdir: ../x')",
}
# Landlock knows no modes.
LOST = {"change the mode of a file of git": "os.chmod('.git/config', 0o640)\nreturn True"}
ON_THE_PROJECT = KEPT | UNDONE | LOST
GROUPS = {
    "files": ("a file outside", FILES),
    "processes": ("another process", PROCESSES),
    "servers": ("a server outside", SERVERS),
    "kernel": ("the kernel", KERNEL),
    "root": ("the kernel, as root", AS_ROOT),
    "warden": ("the warden", WARDEN),
    "warden of root": ("the warden, as root", WARDEN_AS_ROOT),
    "project": ("the project's git directories and protected files", ON_THE_PROJECT),
}
NOT_STOPPED = {
    "files": (
        "see that a file exists outside",
        "change the mode of a directory outside",
        "change the times of a file outside",
        "set an attribute of a file outside",
        "open a directory outside without reading it",
        "read the target of a link outside",
        "watch a directory outside",
        "ask for the handle of a file outside",
        "change the mode of a file outside",
        "change owner and group of a file outside",
    ),
    "processes": ("see the command line", "change its processors"),
    "warden": ("see it in the list of processes",),
    "warden of root": ("list its descriptors",),
    "project": tuple(LOST),
}
# Where there are mounts, the host checks and writes these itself.
CROSSING = ("commit", "make a repository", "make a bare repository")
# Of the others, what the kernel itself refuses to root without capabilities, and to ordinary users.
REFUSED_TO_ROOT = {"change its processors"}
REFUSED_TO_USERS = {"list its descriptors"}
HEADER = "| attacks on | number | `full` stops | `partial` stops | `partial` undoes | `partial` does not stop |\n|---|---|---|---|---|---|\n"


def tier_table() -> str:
    """Return the table of SECURITY.md."""
    rows = []
    for group, (target, bodies) in GROUPS.items():
        lost, undone = NOT_STOPPED.get(group, ()), UNDONE if group == "project" else ()
        stopped = len(bodies) - len(lost) - len(undone)
        named = [f"{len(names)}: {'; '.join(names)}" if names else "–" for names in (undone, lost)]
        full = f"all but {len(CROSSING)}, which cross checked: {'; '.join(CROSSING)}" if group == "project" else "all"
        rows.append(f"| {target} | {len(bodies)} | {full} | {stopped} | {' | '.join(named)} |\n")
    return HEADER + "".join(rows)
