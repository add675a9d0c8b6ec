"""Packs a project into a tar archive and unpacks it: files, directories, links and modes. Sockets, pipes and devices are left out."""

from __future__ import annotations

import io
import os
import tarfile

from corral.guard.path_zones import inside
from corral.model.errors import CorralError

MAX_ARCHIVE_BYTES = 1024**3  # the archive is held in memory; a larger project belongs on a shared disk


def pack(root: str) -> bytes:
    """Return the content of a directory as an archive."""
    sink = _Bounded()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(os.listdir(root)):
            archive.add(os.path.join(root, name), name, filter=_plain)
    return sink.getvalue()


def unpack(packed: bytes, root: str) -> None:
    """Create a directory with the content of an archive. Everything in it belongs to this user."""
    os.makedirs(root)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        for member in archive:
            _extract(archive, member, root)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    # Checked here because Python before 3.11.4 has no filters. A project may contain a link that leads outside, but nothing
    # may be written through it.
    above = os.path.realpath(os.path.dirname(os.path.join(root, member.name)))
    if not inside(above, os.path.realpath(root)) or ".." in member.name.split("/"):
        raise CorralError(f"the project archive holds {member.name!r}, which leads out of the project")
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode &= 0o755
    if hasattr(tarfile, "fully_trusted_filter"):
        archive.extract(member, root, filter="fully_trusted")
    else:
        archive.extract(member, root)


class _Bounded(io.BytesIO):
    def write(self, data: object) -> int:
        if self.tell() > MAX_ARCHIVE_BYTES:
            raise CorralError(
                f"the project is larger than {MAX_ARCHIVE_BYTES >> 20} MiB, too large to send; remove files that can be built again"
            )
        return super().write(data)  # type: ignore[arg-type]  # as io has it
