"""Remembers, until the machine restarts, that every layer holds here and where control groups can be made.

Only a full success is kept, so a stale entry can never leave a layer out: entering it fails, the entry is dropped, and the layers are
tried again. The key holds everything that decides what the kernel gives this process.
"""

from __future__ import annotations

import marshal
import os
import sys

import corral
from corral._lib.own_cgroups import read_text
from corral._lib.sha256 import sha256_hex
from corral.containment import kernel, layers
from corral.model.errors import PolicyError
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.containment.plan import Place

MAX_ENTRIES = 32  # for as many users' namespaces, cgroups and versions of corral
MAX_ENTRY_BYTES = 64 * 1024
_FORMAT = 1
_FACTS = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/self/cgroup",
    "/proc/self/attr/current",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/user/max_mnt_namespaces",
    "/proc/sys/user/max_net_namespaces",
    "/proc/sys/user/max_pid_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_unconfined",
)
_NAMESPACES = ("user", "mnt", "pid", "net", "cgroup")
# The lines of /proc/self/status that say what this process may do.
_RIGHTS = ("Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:")  # fmt: skip


class ProbeCache:
    """The entry of one sandbox. `keep` and `forget` also change what `held` and `places` say from then on."""

    def __init__(
        self, wanted: Sequence[str], controllers: Sequence[str], environ: Mapping[str, str], root: str
    ) -> None:
        self._wanted = frozenset(name for name in wanted if layers.LAYERS[name].probe is not None)
        self.held: tuple[str, ...] = ()  # the layers that are known to hold; empty if the keeper has to try them
        self.places: Mapping[str, Place] = {}  # where control groups can be made, by controller
        self._store: Store | None = None
        try:
            self._store = Store("cache", "probes", environ, root)
        except PolicyError:
            # Commands could write the entry, or no private directory can be had.
            return
        self._name = _key((*sorted(self._wanted), "groups", *sorted(controllers)))
        self._read()

    def _read(self) -> None:
        try:
            assert self._store is not None  # noqa: S101  checked by the caller
            data = None
            if self._store.exists():
                data = self._store.read(self._name, MAX_ENTRY_BYTES, allows_hard_links=False)
            if data is None:
                return
            held, places = marshal.loads(data)  # noqa: S302  from a private directory that no command can write
            known = {str(name): (int(version), str(place)) for name, (version, place) in places.items()}
        except (PolicyError, OSError, EOFError, ValueError, TypeError, AttributeError):
            # A damaged entry counts as missing.
            return
        if self._wanted <= frozenset(held) <= frozenset(layers.LAYERS):
            self.held, self.places = tuple(sorted(held)), known

    def keep(self, held: Sequence[str], places: Mapping[str, Place]) -> None:
        """Store what a keeper has found. Anything but a full success is tried again by each keeper."""
        if self._store is None or not self._wanted <= frozenset(held):
            return
        try:
            self._store.create()
            self._store.write(self._name, marshal.dumps((tuple(sorted(held)), dict(places))))
            self._store.remove_oldest(MAX_ENTRIES)
        except (PolicyError, OSError):
            # Then the next sandbox tries the layers again.
            return

    def forget(self) -> bool:
        """Drop the entry, because a keeper or a warden failed. Returns whether it was in use."""
        was_used = bool(self.held)
        self.held, self.places = (), {}
        if was_used and self._store is not None:
            try:
                self._store.remove(self._name)
            except (PolicyError, OSError):
                return was_used
        return was_used


def _key(asked: Sequence[str]) -> str:
    code = os.stat(os.path.dirname(kernel.__file__)).st_mtime_ns
    machine = os.uname()
    status = [line for line in read_text("/proc/self/status").splitlines() if line.startswith(_RIGHTS)]
    namespaces = [_inode(f"/proc/self/ns/{name}") for name in _NAMESPACES]
    root = os.stat("/")
    parts = [
        _FORMAT,
        corral.__version__,
        code,
        sys.version,
        *machine,
        *map(read_text, _FACTS),
        *status,
        *namespaces,
        root.st_dev,
        root.st_ino,
        *asked,
    ]
    return sha256_hex(repr(parts).encode("utf-8", "replace"))


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
