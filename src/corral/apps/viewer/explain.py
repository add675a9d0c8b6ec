"""A call as the guard reads it today: every command in it with its effects, and the findings with their places. Runs nothing."""

from __future__ import annotations

import os

from corral.audit.render_log import call_of
from corral.containment.filesystem.persistent_scratch import project_tmp
from corral.guard.evaluate import trace, vet
from corral.guard.machine import Machine
from corral.guard.rules.loader import effects, profile_names
from corral.model.errors import CorralError
from corral.model.render_result import Explanation
from corral.policy.loader import load
from corral.transactions.transaction import transaction_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from corral.policy.config import SandboxConfig

    Data = dict[str, Any]

MAX_STEPS = 200  # shown; the rest is counted


class Reader:
    """Reads calls again, each under the policy of its project. With `keeps`, a project's policy is loaded once."""

    def __init__(self, environ: Mapping[str, str], *, root: str = "", keeps: bool = False) -> None:
        self._environ = environ
        self._root = root  # of calls that do not say where they ran
        self._keeps = keeps
        self._known: dict[tuple[str, str, bool], tuple[SandboxConfig, Machine] | str] = {}
        self._axis_of = {key: str(row["axis"]) for key, row in effects().items()}

    def read(self, call: Mapping[str, Any]) -> Data:
        """Return the parts of a call as JSON-ready data, or `said`: why there are none."""
        root = str(call.get("root") or self._root)
        given = call_of({"cwd": root, **call, "root": root})
        if given is None:
            return {"said": "The call was cut, had secrets that are not kept, or is none."}
        if call.get("event") == "eval":
            # Where the task's project lay there is nothing now, so its place is not one to resolve paths in.
            root = self._root
            given = given.replace(cwd=None)
        if not root or not os.path.isdir(root):
            return {
                "said": f"The project {root} is not there any more." if root else "It is not told in which project."
            }
        found = self._policy(root, str(call.get("profile") or ""), in_transaction=bool(call.get("transaction")))
        if isinstance(found, str):
            return {"said": found}
        config, machine = found
        try:
            steps = trace(given, config, machine)
        except Exception as error:  # noqa: BLE001  what is judged is hostile, and the page shows more than this call
            return {"said": f"The guard failed on this call ({type(error).__name__})."}
        reasoning = Explanation(
            given, vet(given, config, machine), steps, self._axis_of, config.rules.name, config.project_root
        )
        data = reasoning.to_dict()
        names = ("decision", "complete", "findings", "axes", "profile", "root")
        made = {name: data[name] for name in names} | {"steps": data["steps"][:MAX_STEPS]}  # type: ignore[index]  # a list
        return made | ({"more": len(steps) - MAX_STEPS} if len(steps) > MAX_STEPS else {})

    def _policy(self, root: str, profile: str, *, in_transaction: bool) -> tuple[SandboxConfig, Machine] | str:
        key = (root, profile, in_transaction)
        if key not in self._known or not self._keeps:
            known = profile if profile in profile_names() else None
            self._known[key] = self._loaded(root, known, in_transaction=in_transaction)
        return self._known[key]

    def _loaded(self, root: str, profile: str | None, *, in_transaction: bool) -> tuple[SandboxConfig, Machine] | str:
        try:
            config = load(root, self._environ, profile=profile).config
        except CorralError as error:
            return f"The policy cannot be read: {error}"
        if in_transaction:
            config = transaction_config(config)
        return config, Machine.of(config, project_tmp(config, self._environ))
