"""Prepares transactions of one sandbox: a spare with overlay and warden is ready, so that the next transaction begins at once.

Each transaction gets a new overlay, because an overlay goes stale when the project changes below it. Preparing a spare looks up only
the protected paths, and the spare is used only if those have not changed.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread

from corral._lib.fork_lock import ProcessOwner
from corral.transactions import copying, workspace
from corral.transactions.pool import TransactionPool
from corral.transactions.undo_store import recover

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.containment.state import ContainmentState
    from corral.runtime.pool import Pool


class Spare:
    """A prepared transaction that waits for its first use."""

    def __init__(self, branch: TransactionPool, seen: dict[str, tuple[int, int]]) -> None:
        self.branch = branch
        self._seen = seen

    def is_fresh(self) -> bool:
        """Return whether the paths that the spare has looked up are still the same files."""
        return all(_identity(path) == known for path, known in self._seen.items())


class TransactionFactory:
    """The transactions of one sandbox: open, spare, and ended ones to remove. Any thread may take one."""

    def __init__(self, holding: ContainmentState, trunk: Pool) -> None:
        self._holding = holding
        self._trunk = trunk
        self._lock = allocate_lock()
        self._at_work = allocate_lock()
        self._spare: Spare | None = None
        self._done: list[TransactionPool] = []
        self._open: set[TransactionPool] = set()
        self._process = ProcessOwner()
        self._closed = False
        self._cleaned = False

    def is_current(self) -> bool:
        """Return false in a fork of the process that made it."""
        return self._process.is_current

    def take(self) -> tuple[TransactionPool, str]:
        """Begin a transaction. Return it, and the reason if it works on a copy."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None and spare.is_fresh():
            self._holding.prepare_transaction(spare.branch.place.path)
            spare.branch.place.begin()
            self._open.add(spare.branch)
            return spare.branch, ""
        if spare is not None:
            self.give_back(spare.branch)
        branch, refusal = self._make()
        branch.place.begin()
        if refusal:
            copying.copy_tree(self._holding.config.project_root, branch.place)
        self._open.add(branch)
        return branch, refusal

    def is_open(self) -> bool:
        """Return whether a transaction is open."""
        return bool(self._open)

    def give_back(self, branch: TransactionPool) -> None:
        """Remove an ended transaction and prepare the next, in another thread."""
        self._open.discard(branch)
        branch.close()
        with self._lock:
            self._done.append(branch)
        if not self._closed:
            try:
                start_new_thread(self._work, ())
            except RuntimeError:
                # The process has no more threads. `clean` removes it when the sandbox is closed.
                return

    def let_go(self, branch: TransactionPool) -> None:
        """Forget a transaction, and keep its changes."""
        self._open.discard(branch)
        self._trunk.lift(branch.place.path)

    def stop(self) -> None:
        """Prepare no more spares, and wait for the one in preparation."""
        self._closed = True
        with self._at_work:
            pass

    def clean(self) -> None:
        """Remove all ended transactions and the spare, after the sandbox's processes have ended."""
        if self._process.is_current:
            # A thread that started after `stop` may still be removing one.
            with self._at_work:
                with self._lock:
                    spare, self._spare = self._spare, None
                if spare is not None:
                    spare.branch.close()
                    spare.branch.place.remove()
                self._remove_done()

    def _work(self) -> None:
        with self._at_work:
            if not self._closed and self._spare is None:
                self._prepare()
            self._remove_done()

    def _prepare(self) -> None:
        try:
            seen = {path: _identity(path) for path in self._holding.walked()}
            branch, refusal = self._make()
        except Exception:  # noqa: BLE001  the next transaction raises it too, to its caller
            return
        if refusal:
            self._done.append(branch)
            return
        try:
            branch.prepare()
        except Exception:  # noqa: BLE001  as above
            self._done.append(branch)
            return
        with self._lock:
            self._spare = Spare(branch, seen)

    def _remove_done(self) -> None:
        while True:
            with self._lock:
                if not self._done:
                    return
                branch = self._done.pop()
            branch.end()
            self._trunk.lift(branch.place.path)
            branch.place.remove()

    def _make(self) -> tuple[TransactionPool, str]:
        """Make a transaction and its overlay. Return it, and the reason if there is no overlay."""
        config = self._holding.config
        if not self._cleaned:
            recover(config.project_root, os.environ)
        made = workspace.make(config.project_root, config.containment.write, os.environ)
        if not self._cleaned:
            self._cleaned = True
            workspace.clean(os.path.dirname(made.path))
        try:
            workspace.refuse_without_attributes(made.layer)
            # First the keeper, since its plan opens the copies of git directories.
            refusal = self._trunk.lay(made.path)
        except OSError as error:
            refusal = error.errno or 0
        except BaseException:
            made.remove()
            raise
        try:
            self._holding.prepare_transaction(made.path)
        except BaseException:
            made.remove()
            raise
        return TransactionPool(self._trunk, made), os.strerror(refusal) if refusal else ""


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.lstat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
