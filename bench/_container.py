"""Runs commands in a sandbox whose process can make no namespaces, as in a container with the default profile of its engine."""

import json
import subprocess
import sys
from pathlib import Path

import corral

NAME = "corral without user namespaces"
# unshare, setns, mount and clone3 fail; so does clone with a flag of a namespace.
PROGRAM = """
import json, sys, time
sys.path[:0] = json.loads(sys.argv[1])
from corral.containment.kernel import capabilities, seccomp
from corral.containment.kernel.syscalls import MACHINE
X86 = MACHINE == "x86_64"
REFUSE, ABSENT = (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x00050026)
code = [(0x20, 0, 0, 0)]
for number in (272, 308, 165) if X86 else (97, 268, 40):
    code += [(0x15, 0, 1, number), REFUSE]
code += [(0x15, 0, 1, 435), ABSENT, (0x15, 0, 3, 56 if X86 else 220), (0x20, 0, 0, 16), (0x45, 0, 1, 0x7E020000), REFUSE]
capabilities.set_no_new_privs()
seccomp.install([*code, seccomp.ALLOW_ALL])
from corral import Containment, Sandbox, SandboxConfig
with Sandbox(SandboxConfig(sys.argv[2], containment=Containment(backend="warden", accept_partial=True))) as box:
    print(json.dumps(box.run(["/bin/true"]).enforcement), flush=True)
    for line in sys.stdin:
        words, is_shell = json.loads(line)
        began = time.perf_counter_ns()
        result = box.run(words, shell=is_shell)
        taken = time.perf_counter_ns() - began
        print(json.dumps(taken if result.ok else result.stderr_text or result.reason), flush=True)
"""


class ContainerSandbox:
    """A warm sandbox in a process of its own. Each call runs one command there and returns its nanoseconds."""

    def __init__(self, project: str) -> None:
        path = [str(Path(corral.__file__).parents[1]), *[entry for entry in sys.path if "site-packages" in entry]]
        command = [sys.executable, "-c", PROGRAM, json.dumps(path), project]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.enforcement = self._answer()

    def run(self, words: list[str] | str, *, shell: bool = False) -> int:
        """Run a command, and return the nanoseconds that the caller in that process waited."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([words, shell]) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if not isinstance(answer, int):
            raise TypeError(f"{words} failed without user namespaces: {answer}")
        return answer

    def close(self) -> None:
        """End the process and its sandbox."""
        self._process.communicate()

    def _answer(self) -> object:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())
