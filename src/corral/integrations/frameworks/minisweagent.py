"""mini-swe-agent: an environment that judges and contains commands. The agent reads a refusal as an observation and goes on.

Select it with `environment_class: corral.integrations.frameworks.minisweagent.CorralEnvironment`.
"""

from __future__ import annotations

import os
import platform

from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._commands import open_box, run_merged
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE
from corral.model.errors import ContainmentError

try:
    from minisweagent.exceptions import Submitted
    from minisweagent.utils.serialize import recursive_merge
    from pydantic import BaseModel
except ImportError as error:
    raise missing_extra("minisweagent", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.integrations.gates import GatedSandbox
    from corral.sandbox import Sandbox

FINISHED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
TIMED_OUT = -1


class CorralEnvironmentConfig(BaseModel):
    """The `environment` section of a config file."""

    cwd: str = ""  # the project root
    env: dict[str, str] = {}
    timeout: int = 30
    profile: str = ""  # used where the policy names none; it cannot loosen the policy's


class CorralEnvironment:
    """Runs an agent's commands in one sandbox over one project."""

    def __init__(self, *, box: Sandbox | GatedSandbox | None = None, **settings: Any) -> None:
        self.config = CorralEnvironmentConfig(**settings)
        self.box = box or open_box(self.config.cwd or os.getcwd(), profile=self.config.profile)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command and return the observation for the agent. Raises Submitted when the agent has finished."""
        observation = self._observe(str(action.get("command", "")), cwd, timeout or self.config.timeout)
        lines = observation["output"].lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == FINISHED and observation["returncode"] == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        return observation

    def get_template_vars(self, **given: Any) -> dict[str, Any]:
        """Return the variables for prompts. They leave out os.environ, which may hold secrets."""
        merged: dict[str, Any] = recursive_merge(
            self.config.model_dump(), platform.uname()._asdict(), {"cwd": self.box.config.project_root}, given
        )
        return merged

    def serialize(self) -> dict[str, Any]:
        """Return the environment's part of a trajectory."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def close(self) -> None:
        """Kill every process that the commands left."""
        self.box.close()

    def _observe(self, command: str, cwd: str, timeout_seconds: float) -> dict[str, Any]:
        try:
            result = run_merged(
                self.box, command, cwd=cwd or None, env=self.config.env, timeout_seconds=timeout_seconds
            )
        except ContainmentError as error:
            return _failure("", TIMED_OUT, type(error).__name__, f"corral could not run the command: {error}")
        if result.denied:
            message = f"corral refused the command. {result.reason}"
            return _failure("", NOT_EXECUTABLE_EXIT_CODE, "denied", message, corral=result.to_dict())
        output = result.stdout_text + result.stderr_text
        if result.timed_out:
            message = f"The command timed out after {timeout_seconds} seconds. corral killed it and all its processes."
            return _failure(output, TIMED_OUT, "timeout", message, corral=result.to_dict())
        return {"output": output, "returncode": result.exit_code, "exception_info": ""}


def _failure(output: str, exit_code: int, kind: str, message: str, **details: Any) -> dict[str, Any]:
    extra = {"exception_type": kind, "exception": message, **details}
    return {"output": output, "returncode": exit_code, "exception_info": message, "extra": extra}
