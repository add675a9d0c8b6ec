"""Opens the demo's model: a deterministic model, which reads refusals, or a real model if the environment has a key for it."""

from __future__ import annotations

import os

from corral.apps.agentdemo.advice import PLAN, Turn, refusal_in, turns_after
from corral.integrations.extras import missing_extra

try:
    from minisweagent.config import builtin_config_dir
    from minisweagent.exceptions import InterruptAgentFlow
    from minisweagent.models import get_model
    from minisweagent.models.test_models import DeterministicModel, make_output
    from yaml import safe_load
except ImportError as error:
    raise missing_extra("demo", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

DETERMINISTIC = "deterministic"
CHOSEN_BY = "MSWEA_MODEL_NAME"  # mini-swe-agent's own setting
# The first key that is set decides.
BY_KEY = {
    "ANTHROPIC_API_KEY": "anthropic/claude-sonnet-4-5",
    "OPENAI_API_KEY": "openai/gpt-5-mini",
    "GEMINI_API_KEY": "gemini/gemini-2.5-flash",
}
COST_LIMIT = 1.0  # dollars
STEP_LIMIT = 50
GAVE_UP = "GaveUp"


class AttentiveModel(DeterministicModel):  # type: ignore[misc]  # mini-swe-agent has no type hints here
    """Follows a plan. After a refusal, the next commands come from the text of the refusal."""

    def __init__(self, plan: Sequence[Turn] = PLAN) -> None:
        super().__init__(outputs=[], model_name=DETERMINISTIC, cost_per_call=0.0)
        self._pending = list(plan)
        self._last: Turn | None = None
        self._number = 0

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        """Return the next turn. Reads the observation of the last one first."""
        refusal = refusal_in(str(messages[-1]["content"]))
        if refusal and self._last is not None:
            advised = turns_after(refusal, self._last)
            if advised is None:
                raise _ending("The command was refused, and I do not understand what to do instead.")
            self._pending[:0] = advised
        if not self._pending:
            raise _ending("My plan has ended, and I have submitted nothing.")
        self._last = self._pending.pop(0)
        self._number += 1
        action = {"command": self._last.command, "tool_call_id": f"call-{self._number}"}
        made: dict[str, Any] = make_output(self._last.thought, [action], cost=0.0)
        return made


def _ending(said: str) -> InterruptAgentFlow:
    return InterruptAgentFlow({"role": "exit", "content": said, "extra": {"exit_status": GAVE_UP, "submission": ""}})


def name_for(wanted: str, environ: Mapping[str, str]) -> str:
    """Return the name of the model: the wanted one, the one whose key is set, or the deterministic one."""
    by_key = (name for key, name in BY_KEY.items() if environ.get(key))
    return wanted or environ.get(CHOSEN_BY) or next(by_key, DETERMINISTIC)


def open_model(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a model and the settings of its agent. A real model gets the prompts of mini-swe-agent."""
    if name == DETERMINISTIC:
        prompts = {"system_template": "You fix programs.", "instance_template": "{{task}}"}
        return AttentiveModel(), prompts | {"cost_limit": 0.0, "step_limit": STEP_LIMIT}
    with open(builtin_config_dir / "mini.yaml", encoding="utf-8") as file:
        settings = safe_load(file)
    prompts = {key: settings["agent"][key] for key in ("system_template", "instance_template")}
    # Otherwise litellm downloads its prices. A model without a price works too, limited by its steps.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm  # noqa: PLC0415  takes two seconds, and the deterministic model does not need it

    # litellm prints advice for its developers on stdout.
    litellm.suppress_debug_info = True
    model = get_model(name, settings["model"] | {"cost_tracking": "ignore_errors"})
    return model, prompts | {"cost_limit": COST_LIMIT, "step_limit": STEP_LIMIT}
