"""Runs batches on a Ray cluster (`corral[ray]`): one actor per worker. Ray places the actors, sends the items and detects deaths.

corral itself enforces time limits and ends process trees, inside the actor. When Ray kills an actor, its commands die with it.
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

RESOURCE = "corral"  # the number of commands that a node runs at a time: ray start --resources '{"corral": 8}'
CHUNK = 16  # items sent at a time; more cost less per item, and more are lost when an actor dies
QUICK_SECONDS = 0.1  # a faster chunk makes the next one larger, so slow items are spread and few are lost
CLOSE_SECONDS = 10.0  # for an actor to end its commands and clean up; then it is killed
POLL_SECONDS = 0.5  # between two checks whether an actor that waits for room is still needed
MAX_DEATHS = 5  # of actors in a row that never became ready: the work itself kills them
ERROR_LEVEL = 40  # logging.ERROR
# Makes Ray listen on the loopback interface only; by default it listens on every network.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class Ray:
    """An engine for batches: workers on the cluster at `address` or RAY_ADDRESS, or on a new cluster of this machine.

    If a node declares the resource, each worker takes one unit of it, which bounds their number. Otherwise each takes one CPU.
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
        """Send the work to the cluster once, and start one actor per worker."""
        ray = _connected(self._address)
        declared = ray.cluster_resources()
        name = self._resource if declared.get(self._resource) else "CPU"
        room = int(declared.get(name, 0))
        if room < 1:
            raise CorralError(f"no node of the Ray cluster has a free {name}; start nodes with more of it")
        demand: dict[str, Any] = {"num_cpus": 1} if name == "CPU" else {"num_cpus": 0, "resources": {name: 1}}
        actor = ray.remote(WorkerActor).options(
            **demand,
            runtime_env=self._runtime_env or None,
            scheduling_strategy="SPREAD",
            # Ray must not restart an actor: it could wait for room on the remaining nodes while it holds items that other
            # actors could run.
            max_restarts=0,
            max_task_retries=0,
            # Two at a time, so that cancel() runs beside do_all().
            max_concurrency=2,
        )
        sent = ray.put(work)
        return [RemoteWorker(ray, actor, sent, self._chunk) for _ in range(min(count or room, room))]


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415  takes a second and 200 MB
    except ImportError as error:
        raise CorralError(str(MissingExtraError("the engine ray", "ray", error))) from None
    return ray


def _connected(address: str | None) -> Any:
    known = address or os.environ.get("RAY_ADDRESS")
    if not known and "ray" not in sys.modules:
        # Before the import: Ray and its processes read these variables when they import it.
        os.environ.update(LOOPBACK_ONLY)
    ray = _ray()
    if not ray.is_initialized():
        own: dict[str, Any] = {} if known else {"include_dashboard": False}
        if own:
            # Our own cluster sends no usage statistics.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address=known or "local", log_to_driver=False, logging_level=ERROR_LEVEL, **own)
    return ray


class WorkerActor:
    """The Ray actor: a worker in a process of its own, on the node that Ray chose."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._is_cancelled = False

    def begin(self, sent: list[Any], version: str) -> int:
        """Begin the work once, and return the process id. Raises here, and not in __init__, so that the caller sees the error."""
        if self._worker is None:
            if version != __version__:
                raise CorralError(
                    f"this node has corral {__version__}, the caller has {version}; install the same version"
                )
            work: Work = _ray().get(sent[0])
            self._worker = work.begin()
        return os.getpid()

    def do_all(self, sent: list[Any], version: str, items: list[Any]) -> list[Any]:
        """Run items until they end."""
        self.begin(sent, version)
        assert self._worker is not None  # noqa: S101  begin() sets it
        return [] if self._is_cancelled else self._worker.do_all(items)

    def cancel(self) -> None:
        """Stop the items that run."""
        self._is_cancelled = True
        if self._worker is not None:
            self._worker.cancel()

    def close(self) -> None:
        """Close the worker."""
        if self._worker is not None:
            self._worker.close()


class RemoteWorker:
    """The caller's side of an actor. When the actor dies, a new one replaces it."""

    def __init__(self, ray: Any, actor_class: Any, sent: Any, most: int) -> None:
        self._ray = ray
        self._actor_class = actor_class
        self._actor = actor_class.remote()
        # In a list, because Ray resolves a bare reference and would send the work with every call.
        self._sent = [sent]
        self.most = most
        self._is_cancelled = False
        self.chunk = 1

    def ready(self) -> None:
        """Wait until Ray has placed the actor and it has started its work, or until this worker is cancelled."""
        why = ""
        for _ in range(MAX_DEATHS):
            asked = self._ask("begin")
            while not self._is_cancelled and not self._ray.wait([asked], timeout=POLL_SECONDS)[0]:
                pass
            if self._is_cancelled:
                return
            try:
                self._got(asked)
            except WorkerLost as error:
                why = str(error)
                self._actor = self._actor_class.remote()
            else:
                return
        raise CorralError(f"{MAX_DEATHS} workers died before they were ready; the last one: {why}")

    def do_all(self, items: list[Any]) -> list[Any]:
        """Run items; raise WorkerLost if the actor, its process or its node dies."""
        started_at = monotonic()
        results: list[Any] = self._got(self._ask("do_all", items))
        self.chunk = min(self.chunk * 2, self.most) if monotonic() - started_at <= QUICK_SECONDS else 1
        return results

    def cancel(self) -> None:
        """Stop the items that run, without waiting."""
        self._is_cancelled = True
        if self._ray.is_initialized():
            self._actor.cancel.remote()

    def close(self) -> None:
        """End the actor. After CLOSE_SECONDS Ray kills it, and its commands die with it."""
        self._is_cancelled = True
        if not self._ray.is_initialized():
            # Ray was shut down, and the actors ended with it. A call would connect again.
            return
        # RayError: the actor or its node is dead, or the actor hangs.
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
                raise CorralError(f"a worker could not be started on its node: {_last_line(said)}") from None
            raise WorkerLost(f"the worker's process or node died ({type(error).__name__})") from None


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()
