"""What a hook answers: one call of Claude Code's, in its own words, to `corral hook claude`. No agent is needed to try it."""

import json
import os
import subprocess
import sys


def ask(command: str) -> tuple[int, dict[str, str]]:
    """Return the hook's exit code and its answer."""
    call = {
        "session_id": "example",
        "cwd": os.getcwd(),
        "hook_event_name": "PreToolUse",
        "permission_mode": "default",
        "tool_name": "Bash",
        "tool_input": {"command": command},
    }
    hook = [sys.executable, "-m", "corral", "hook", "claude"]
    done = subprocess.run(hook, input=json.dumps(call), capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)["hookSpecificOutput"]


for command in ("ls", "git reset --hard", "sudo reboot"):
    status, answer = ask(command)
    print(status, answer["permissionDecision"], answer.get("permissionDecisionReason", "").partition(":")[0])
