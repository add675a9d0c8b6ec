"""A project as one piece of bytes, and back: files, directories, links and modes. What is no file of a project stays behind."""

from __future__ import annotations

import io
import os
import tarfile

from corral.errors import CorralError

MAX_PARCEL_BYTES = 1024**3  # against a project that no memory takes; such a one belongs on a disk that all share


def pack(root: str) -> bytes:
    """Return what lies in a directory."""
    sink = _Bounded()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(os.listdir(root)):
            archive.add(os.path.join(root, name), name, filter=_plain)
    return sink.getvalue()


def unpack(packed: bytes, root: str) -> None:
    """Make a directory that holds what was packed; all of it is this user's."""
    os.makedirs(root)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        # Never through a link to outside, though a project may well have some.
        archive.extractall(root, filter=_own)  # noqa: S202  the filter looks at every member


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out sockets, pipes and devices, as nobody can carry them."""
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


def _own(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    checked = tarfile.tar_filter(member, path)
    return checked.replace(uid=os.getuid(), gid=os.getgid(), uname="", gname="", deep=False)


class _Bounded(io.BytesIO):
    def write(self, data: object) -> int:
        if self.tell() > MAX_PARCEL_BYTES:
            raise CorralError(
                f"the project is larger than {MAX_PARCEL_BYTES >> 20} MiB, too large to be sent; leave out what can be made there"
            )
        return super().write(data)  # type: ignore[arg-type]  # as io has it
