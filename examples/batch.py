"""Many calls through one sandbox, several at a time; each becomes one result, in order."""

from corral import Sandbox, SandboxConfig

calls = [
    *({"shell": f"echo {number} | tr 0-9 a-j"} for number in range(6)),
    {"argv": ["cat"], "stdin": "from standard input"},
    {"argv": ["curl", "http://192.0.2.7"]},
]
with Sandbox(SandboxConfig(project_root=".", profile="workspace")) as box:
    for result in box.map(calls, workers=2):
        print(result.exit_code, result.stdout_text.strip() or result.reason.partition(".")[0])
