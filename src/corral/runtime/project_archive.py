"""A project as one piece of bytes, and back: files, directories, links and modes. What is no file of a project stays behind."""

from __future__ import annotations

import io
import os
import tarfile

from corral.guard.path_zones import inside
from corral.model.errors import CorralError

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
        for member in archive:
            _extract(archive, member, root)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out sockets, pipes and devices, as nobody can carry them."""
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    # By hand: Python before 3.11.4 has no filters. Never through a link to outside, though a project may well have some.
    above = os.path.realpath(os.path.dirname(os.path.join(root, member.name)))
    if not inside(above, os.path.realpath(root)) or ".." in member.name.split("/"):
        raise CorralError(f"a parcel holds {member.name!r}, which leads out of it")
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode &= 0o755
    if hasattr(tarfile, "fully_trusted_filter"):
        archive.extract(member, root, filter="fully_trusted")
    else:
        archive.extract(member, root)


class _Bounded(io.BytesIO):
    def write(self, data: object) -> int:
        if self.tell() > MAX_PARCEL_BYTES:
            raise CorralError(
                f"the project is larger than {MAX_PARCEL_BYTES >> 20} MiB, too large to be sent; leave out what can be made there"
            )
        return super().write(data)  # type: ignore[arg-type]  # as io has it
