"""Makes and removes the directories that hold a sandbox's /tmp and home. They are the same, unless scratch lasts.

Commands see the directories in them, never the directories themselves, so they cannot lead the keeper elsewhere.
"""

from __future__ import annotations

import os
from _blake2 import blake2b
from errno import EEXIST, ENOTDIR, ENOTEMPTY
from time import monotonic

from corral._lib.nofollow import DIRECTORY, chmod_directory, make_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


OWN = ".corral-git-"  # files of home that begin so are corral's
MAX_KNOWN_BYTES = 1 << 20
_BEGIN, _END = f"# {OWN}begin ".encode(), f"# {OWN}end\n".encode()


def make(path: str, above_home: str, files: Mapping[str, bytes]) -> dict[str, tuple[int, int]]:
    """Make the directory and the one above home, with these files in home. Keep what exists already, but for corral's own files.

    Return device and inode of each directory by its path. They stay open, so that no other directory gets the same inode.
    """
    opened: dict[str, int] = {}
    for at, name, mode in (
        ("", path, 0o700),
        ("", above_home, 0o700),
        (path, "tmp", 0o1777),
        (above_home, "home", 0o700),
    ):
        if name not in opened:
            above = opened.get(at)
            make_directory(name, above)
            opened[f"{at}/{name}" if at else name] = chmod_directory(name, above, mode)
    for name, data in files.items():
        try:
            _write_home_file(opened[f"{above_home}/home"], name, data)
        except OSError:
            # A command can put anything in its place, and harms only commands with the same home.
            continue
    found = {path: os.fstat(descriptor) for path, descriptor in opened.items()}
    return {path: (status.st_dev, status.st_ino) for path, status in found.items()}


def block(text: bytes) -> bytes:
    """Return the text as corral's part of a file to which commands may add. Its first line changes with the text."""
    return _BEGIN + blake2b(text, digest_size=8).hexdigest().encode() + b"\n" + text + _END


def _merged(known: bytes, data: bytes) -> bytes:
    """Return the file with corral's part replaced, if that is another one. What commands changed stays until then."""
    if data.partition(b"\n")[0] + b"\n" in known:
        return known
    before, begin, rest = known.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    # Without its end, it is not known what of it is a command's.
    return data + (before + after if begin and end else known.replace(_BEGIN, b"# "))


def _write_home_file(home: int, name: str, data: bytes) -> None:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=home), "rb") as file:
            known = file.read(MAX_KNOWN_BYTES + 1)
    except FileNotFoundError:
        known = b""
    if not name.startswith(OWN):
        if len(known) > MAX_KNOWN_BYTES:
            return
        data = _merged(known, data)
    if known == data:
        return
    partial = f"{OWN}{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(partial, flags, 0o700 if data.startswith(b"#!") else 0o600, dir_fd=home), "wb") as file:
        file.write(data)
    try:
        os.rename(partial, name, src_dir_fd=home, dst_dir_fd=home)
    except OSError:
        os.unlink(partial, dir_fd=home)
        raise


def show_files(path: str, files: Mapping[str, bytes]) -> None:
    """Write files to the directory itself, where no command can write. Files of the same name have the same content."""
    if not files:
        return
    above = os.open(path, DIRECTORY)
    try:
        for name, data in files.items():
            if name in os.listdir(above):
                # Another sandbox of the project has written it.
                continue
            partial = f"{OWN}{os.urandom(8).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(partial, flags, 0o600, dir_fd=above), "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), 0o444)
            os.rename(partial, name, src_dir_fd=above, dst_dir_fd=above)
    finally:
        os.close(above)


def new_scratch_path(writable: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return an unused path for one sandbox's scratch, outside of everything that commands can write."""
    from corral.containment.filesystem.temp_dirs import safe_temp_dir  # noqa: PLC0415  only hosts choose

    return f"{safe_temp_dir(writable, environ)}/corral-{os.getuid()}-{os.urandom(8).hex()}"


def remove(path: str, give_up_at: float = float("inf")) -> None:
    """Remove the directory. Stop where this user may not remove an entry, or at `give_up_at` of the monotonic clock."""
    try:
        top = os.open(path, DIRECTORY)
    except OSError:
        return
    try:
        moved = 0
        while names := os.listdir(top):
            for name in names:
                moved = remove_entry(name, top, moved)
                if monotonic() > give_up_at:
                    return
        os.rmdir(path)
    except OSError:
        return
    finally:
        os.close(top)


def remove_entry(name: str, top: int, moved: int) -> int:
    """Remove an entry of the open directory `top`. Directories inside it are first moved up into `top`.

    `moved` numbers the moved directories; the new number is returned. Recursion would fail: a command may have made a chain of
    directories too deep for a path or for the stack.
    """
    try:
        os.unlink(name, dir_fd=top)
        return moved
    except IsADirectoryError:
        os.close(chmod_directory(name, top, 0o700))
    inner = os.open(name, DIRECTORY, dir_fd=top)
    try:
        for entry in os.listdir(inner):
            try:
                os.unlink(entry, dir_fd=inner)
            except IsADirectoryError:
                os.close(chmod_directory(entry, inner, 0o700))
                moved = _move_up(entry, inner, top, moved)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _move_up(entry: str, inner: int, top: int, moved: int) -> int:
    # A command may have taken the next names.
    while True:
        moved += 1
        try:
            os.rename(entry, f"{moved}.moved", src_dir_fd=inner, dst_dir_fd=top)
            return moved
        except OSError as error:
            if error.errno not in (EEXIST, ENOTEMPTY, ENOTDIR):
                raise
