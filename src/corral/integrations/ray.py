"""Work on a Ray cluster (`corral[ray]`): one actor a worker, each with what it needs of its own. Ray places, sends and notices deaths.

Time limits and the end of a process tree are corral's, inside the actor: what Ray kills takes its commands with it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from time import monotonic

from corral import __version__
from corral.integrations.extras import MissingExtraError
from corral.model.errors import CorralError
from corral.runtime.executor import WorkerLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from corral.runtime.executor import Work, Worker

RESOURCE = "corral"  # how many commands a node takes at a time: ray start --resources '{"corral": 8}'
CHUNK = 16  # items sent at a time at most; more costs less for each, and is lost at once
QUICK_SECONDS = 0.1  # what a chunk takes at most for the next to be larger: slow items are spread, and few are lost
CLOSE_SECONDS = 10.0  # for an actor to end what runs and to remove what is its own; then it is killed
LOOK_SECONDS = 0.5  # between two looks whether an actor that waits for room is still wanted
MAX_DEATHS = 5  # of actors one after the other that come to nothing: it is the work that ends them
ERROR_LEVEL = 40  # as logging has it
LOOPBACK_ONLY = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"
}  # where Ray is for one machine; elsewhere it listens on every network


class Ray:
    """Workers on a cluster: the one at `address` or RAY_ADDRESS, else one that is started on this machine alone.

    Where a node declares the resource, each worker takes one of it, and there are no more than that; else one CPU each.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        chunk: int = CHUNK,
        resource: str = RESOURCE,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        self._address = address
        self._chunk = chunk
        self._resource = resource
        self._runtime_env = dict(runtime_env or {})

    def hire(self, work: Work, count: int | None) -> list[Worker]:
        """Send the work once, and start actors that each begin it."""
        ray = _connected(self._address)
        declared = ray.cluster_resources()
        name = self._resource if declared.get(self._resource) else "CPU"
        room = int(declared.get(name, 0))
        if room < 1:
            raise CorralError(f"no node of the Ray cluster has {name} to give; start nodes with more of it")
        demand: dict[str, Any] = {"num_cpus": 1} if name == "CPU" else {"num_cpus": 0, "resources": {name: 1}}
        seat = ray.remote(Seat).options(
            **demand,
            runtime_env=self._runtime_env or None,
            scheduling_strategy="SPREAD",
            # Neither started again nor repeated by Ray: an actor that waits for room on the nodes that are left would keep
            # items that others could do.
            max_restarts=0,
            max_task_retries=0,
            # Cancelling is heard while something runs.
            max_concurrency=2,
        )
        sent = ray.put(work)
        return [Post(ray, seat, sent, self._chunk) for _ in range(min(count or room, room))]


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415  a second and 200 MB, for those who want it
    except ImportError as error:
        raise CorralError(str(MissingExtraError("the engine ray", "ray", error))) from None
    return ray


def _connected(address: str | None) -> Any:
    known = address or os.environ.get("RAY_ADDRESS")
    if not known and "ray" not in sys.modules:
        # Only now: Ray reads it when it is imported, and so do its processes.
        os.environ.update(LOOPBACK_ONLY)
    ray = _ray()
    if not ray.is_initialized():
        own: dict[str, Any] = {} if known else {"include_dashboard": False}
        if own:
            # A cluster of our own tells nobody about itself.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address=known or "local", log_to_driver=False, logging_level=ERROR_LEVEL, **own)
    return ray


class Seat:
    """The actor: a worker in a process of its own, on whichever node Ray has put it."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._is_cancelled = False

    def begin(self, sent: list[Any], version: str) -> int:
        """Begin the work, once; what prevents it is raised here, where it is heard of. Return the process."""
        if self._worker is None:
            if version != __version__:
                said = f"this node has corral {__version__}, and {version} asks it; install the same on all"
                raise CorralError(said)
            work: Work = _ray().get(sent[0])
            self._worker = work.begin()
        return os.getpid()

    def do_all(self, sent: list[Any], version: str, items: list[Any]) -> list[Any]:
        """Do items to their ends."""
        self.begin(sent, version)
        assert self._worker is not None  # noqa: S101  it has begun
        return [] if self._is_cancelled else self._worker.do_all(items)

    def cancel(self) -> None:
        """End what runs."""
        self._is_cancelled = True
        if self._worker is not None:
            self._worker.cancel()

    def close(self) -> None:
        """Remove what is this worker's own."""
        if self._worker is not None:
            self._worker.close()


class Post:
    """An actor, as whoever hired it sees it; after its death there is another."""

    def __init__(self, ray: Any, seat: Any, sent: Any, most: int) -> None:
        self._ray = ray
        self._seat = seat
        self._actor = seat.remote()
        # In a list, or Ray would hand over what it stands for, each time anew.
        self._sent = [sent]
        self.most = most
        self._is_cancelled = False
        self.chunk = 1

    def ready(self) -> None:
        """Wait until Ray has found room for the actor and it has begun; or until nobody wants it any more."""
        why = ""
        for _ in range(MAX_DEATHS):
            asked = self._ask("begin")
            while not self._is_cancelled and not self._ray.wait([asked], timeout=LOOK_SECONDS)[0]:
                pass
            if self._is_cancelled:
                return
            try:
                self._got(asked)
            except WorkerLost as error:
                why = str(error)
                self._actor = self._seat.remote()
            else:
                return
        raise CorralError(f"{MAX_DEATHS} workers died before they could begin; the last: {why}")

    def do_all(self, items: list[Any]) -> list[Any]:
        """Have items done; WorkerLost where the actor, its process or its node is gone meanwhile."""
        begun = monotonic()
        results: list[Any] = self._got(self._ask("do_all", items))
        self.chunk = min(self.chunk * 2, self.most) if monotonic() - begun <= QUICK_SECONDS else 1
        return results

    def cancel(self) -> None:
        """End what runs, without waiting for it."""
        self._is_cancelled = True
        if self._ray.is_initialized():
            self._actor.cancel.remote()

    def close(self) -> None:
        """End the actor; one that does not is killed, and its commands with it."""
        self._is_cancelled = True
        if not self._ray.is_initialized():
            # The cluster is left, and with it went the actors; a word to it would connect anew.
            return
        # An error is an actor that is dead, on a dead node, or stuck.
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.close.remote(), timeout=CLOSE_SECONDS)
        self._ray.kill(self._actor, no_restart=True)

    def _ask(self, method: str, *arguments: Any) -> Any:
        if not self._ray.is_initialized():
            raise CorralError("the connection to the Ray cluster was closed")
        return getattr(self._actor, method).remote(self._sent, __version__, *arguments)

    def _got(self, asked: Any) -> Any:
        errors = self._ray.exceptions
        lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.RayActorError)
        try:
            return self._ray.get(asked)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else CorralError(str(error))) from None
        except lost as error:
            said = str(error)
            if "creation task" in said:
                raise CorralError(f"a worker could not be made on its node: {_last_line(said)}") from None
            raise WorkerLost(f"the worker's process or node died ({type(error).__name__})") from None


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()
