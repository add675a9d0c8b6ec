"""Runs the body of an attack as a program in a sandbox, and says how it went."""

import json
import sys
from pathlib import Path

from corral import Sandbox

PRELUDE = """
import ctypes, errno, fcntl, json, mmap, os, resource, signal, socket, stat, struct, subprocess, sys, time
facts = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = os.uname().machine == "x86_64"
def call(number, *arguments):
    done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
def attack():
"""
EPILOGUE = """
try:
    done = attack()
except (OSError, ValueError, AttributeError) as error:
    print("held:", error)
else:
    print("succeeded" if done else "held: nothing came of it")
"""


def attempt(box: Sandbox, body: str, **facts: object) -> str:
    """Run the body of an attack as a program in the sandbox, and return how it went."""
    program = Path(box.config.project_root) / "attack.py"
    program.write_text(PRELUDE + "".join(f"    {line}\n" for line in body.strip().splitlines()) + EPILOGUE)
    done = box.run([sys._base_executable, "-S", "attack.py", json.dumps(facts)], timeout_seconds=20)
    program.unlink()
    if done.signal is not None or done.timed_out:
        return f"held: ended by signal {done.signal}"
    assert done.exit_code == 0, done.stderr_text
    return done.stdout_text.strip()
