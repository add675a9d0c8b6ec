"""Makes repositories to measure git commands in."""

import subprocess
from pathlib import Path

FILES_EACH = 100  # in one directory


def made_repository(folder: Path, files: int) -> Path:
    """Make a repository with one commit. `fast-import` writes one pack, which is much faster than adding the files."""
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    for key in ("name", "email"):
        subprocess.run(["git", "-C", str(folder), "config", f"user.{key}", "bench"], check=True)
    lines = ["commit refs/heads/main", "committer bench <bench> 0 +0000", "data 5", "first"]
    for number in range(files):
        content = f"file {number}"
        path = f"{number // FILES_EACH}/{number % FILES_EACH}"
        lines += [f"M 100644 inline {path}", f"data {len(content)}", content]
    stream = ("\n".join(lines) + "\n").encode()
    subprocess.run(["git", "-C", str(folder), "fast-import", "--quiet"], input=stream, check=True)
    subprocess.run(["git", "-C", str(folder), "reset", "-q", "--hard"], check=True)
    return folder
