"""mini-swe-agent: an environment whose commands are judged and contained; a refusal is an observation that says why, and the agent goes on.

Select it with `environment_class: corral.integrations.frameworks.minisweagent.CorralEnvironment`.
"""

from __future__ import annotations

import os
import platform

from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._common import open_box, run_merged
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
    """What a config file may say."""

    cwd: str = ""  # the project; commands reach nothing else
    env: dict[str, str] = {}
    timeout: int = 30
    profile: str = ""  # in place of the policy's


class CorralEnvironment:
    """Runs an agent's commands in a project, all of them in one sandbox."""

    def __init__(self, *, box: Sandbox | GatedSandbox | None = None, **settings: Any) -> None:
        self.config = CorralEnvironmentConfig(**settings)
        changes = {"profile": self.config.profile} if self.config.profile else {}
        self.box = box or open_box(self.config.cwd or os.getcwd(), **changes)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command and return what an agent is shown; Submitted when it says that it is done."""
        observation = self._observed(str(action.get("command", "")), cwd, timeout or self.config.timeout)
        lines = observation["output"].lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == FINISHED and observation["returncode"] == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        return observation

    def get_template_vars(self, **given: Any) -> dict[str, Any]:
        """Return what prompts may name. The environment is not in it: it holds what the agent should not see."""
        merged: dict[str, Any] = recursive_merge(
            self.config.model_dump(), platform.uname()._asdict(), {"cwd": self.box.config.project_root}, given
        )
        return merged

    def serialize(self) -> dict[str, Any]:
        """Return what a trajectory records of the environment."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def close(self) -> None:
        """End everything that was started."""
        self.box.close()

    def _observed(self, command: str, cwd: str, timeout_seconds: float) -> dict[str, Any]:
        try:
            result = run_merged(
                self.box, command, cwd=cwd or None, env=self.config.env, timeout_seconds=timeout_seconds
            )
        except ContainmentError as error:
            return _observation("", TIMED_OUT, f"corral could not run the command: {error}", type(error).__name__)
        if result.denied:
            return _observation(
                "", NOT_EXECUTABLE_EXIT_CODE, f"corral refused the command. {result.reason}", "denied", result.to_dict()
            )
        printed = result.stdout_text + result.stderr_text
        if result.timed_out:
            said = f"The command timed out after {timeout_seconds} seconds and was ended, with all it started."
            return _observation(printed, TIMED_OUT, said, "timeout", result.to_dict())
        return {"output": printed, "returncode": result.exit_code, "exception_info": ""}


def _observation(
    output: str, exit_code: int, said: str, kind: str, result: dict[str, Any] | None = None
) -> dict[str, Any]:
    extra = {"exception_type": kind, "exception": said} | ({"corral": result} if result else {})
    return {"output": output, "returncode": exit_code, "exception_info": said, "extra": extra}
