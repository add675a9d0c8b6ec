"""Makes a temporary project to run commands in, and a directory beside it that no command may write to."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Not below /tmp, which some sandboxes grant and others hide.
ABOVE = "/var/tmp"


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a temporary directory that contains an empty directory `outside`."""
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-", dir=ABOVE))
    try:
        (folder / "outside").mkdir()
        yield folder
    finally:
        shutil.rmtree(folder)


def make_project(folder: Path) -> str:
    """Make a small git repository with a script to run and a C file to compile."""
    folder.mkdir()
    (folder / "hello.c").write_text("int main(void) { return 0; }\n")
    (folder / "hello.py").write_text("print(1)\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return str(folder)
