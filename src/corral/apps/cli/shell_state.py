"""What a command's shell leaves for the host's shell: the directory it ended in, and what it exported.

All of it is the command's own word, so little is taken: a directory of the project, and variables that steer no program.
"""

from __future__ import annotations

import os
import stat

from corral._lib.quoting import shell_quote
from corral.guard.path_zones import inside
from corral.guard.rules.loader import variable
from corral.model.errors import PolicyError
from corral.policy.config import LOADER_VARIABLES
from corral.policy.pending_calls import pending_directory
from corral.runtime.environment import CREDENTIAL_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.model.call import Call
    from corral.sandbox import Sandbox

KEPT = "CORRAL_EXPORTED"  # in the host's shell: the names of what commands have exported there, between colons
MAX_TOLD_BYTES = 256 * 1024  # against a command that fills what the host reads
MAX_VALUE = 32 * 1024  # characters of one variable: the kernel takes no more than four times as many
MAX_EXPORTS = 64
MAX_ARGUMENT_BYTES = 120 * 1024  # of the shell text that bash gets; the kernel takes 128 kB in one argument
# What belongs to a shell, to the session or to the C library; names that end in PATH or DIR are left alone as well.
_STEERING = frozenset({
    "IFS", "CDPATH", "EXECIGNORE", "FIGNORE", "GLOBIGNORE", "TMOUT", "MAIL", "MAILCHECK", "NULLCMD", "READNULLCMD", "KEYTIMEOUT", "PWD", "OLDPWD",
    "SHLVL", "_", "USER", "LOGNAME", "HOSTNAME", "TERM", "COLUMNS", "LINES", "UID", "EUID", "GID", "EGID", "PPID", "GROUPS", "RANDOM", "SRANDOM",
    "SECONDS", "LINENO", "DIRSTACK", "FUNCNAME", "OPTIND", "OPTARG", "OPTERR", "REPLY", "FUNCNEST", "WORDCHARS", "SPROMPT", "RPROMPT", "PROMPT",
    "PSVAR", "STATUS", "POSIX_ARGV_ZERO", "DISPLAY",
})  # fmt: skip
_STEERING_HEADS = (
    *("BASH", "ZSH", "HIST", "PS", "PROMPT", "LD_", "GLIBC_", "MALLOC_", "RES_", "RESOLV_", "LOCAL", "HOST", "SSL", "SSH_", "XDG_", "DBUS_", "SUDO_"),
    *("CORRAL", "COPILOT", "CLAUDE", "CODEX", "GEMINI", "CURSOR", "OPENCODE", "GITHUB_", "ANTHROPIC", "OPENAI"),
)  # fmt: skip


def is_plain(name: str) -> bool:
    """Say whether a variable steers no program that could run outside the sandbox, as far as is known."""
    if not name.isascii() or not name.isidentifier() or name != name.upper() or name in _STEERING:
        return False
    if name.startswith(_STEERING_HEADS) or name.startswith(LOADER_VARIABLES) or name.endswith(("PATH", "DIR", "PROXY")):
        return False
    return variable(name) is None and not any(word in name for word in CREDENTIAL_WORDS)


def exported_names(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of the host's shell that commands of this session have exported."""
    return [name for name in environ.get(KEPT, "").split(":") if name and is_plain(name)]


class ShellState:
    """Where in its scratch a command leaves what it tells, and what of it the host's shell is told."""

    def __init__(self, box: Sandbox, call: Call, *, exports: bool) -> None:
        # The sandbox is begun: only then it is known where its commands' temporary directory lies.
        shown = box._state.scratch_for("/tmp/corral")  # noqa: S108  the commands' own
        self._seen, self._real = next((pair for pair in shown if pair[0].endswith("/tmp")), ("/tmp", "/tmp"))  # noqa: S108
        self._name = f".corral-{os.urandom(8).hex()}"
        self._root = box.config.project_root
        self._cwd = os.path.join(self._root, call.cwd or "")
        self._exports = exports
        told = f"{self._seen}/{self._name}"
        output = box.config.output.replace(directory_file=f"{told}.directory", exports_file=f"{told}.exports")
        if not exports:
            output = output.replace(exports_file=None)
        if isinstance(call.argv, str) and len(call.argv.encode("utf-8", "surrogatepass")) > MAX_ARGUMENT_BYTES:
            box.write_bytes(f"{told}.text", os.fsencode(call.argv))
            output = output.replace(text_file=f"{told}.text")
        box.use_output(output)

    def leave(self, file: str, environ: Mapping[str, str]) -> None:
        """Write, as shell text in a file of ours, what the host's shell has to take over; no file where that is nothing."""
        lines = [*self._directory(), *(self._exported(environ) if self._exports else ())]
        if lines:
            if os.path.dirname(file) != pending_directory(environ, self._root):
                raise PolicyError(f"{file} is not where a host's shell is told anything")
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as ours:
                ours.write(os.fsencode("".join(f"{line}\n" for line in lines)))

    def _directory(self) -> list[str]:
        told = os.fsdecode(self._taken("directory").removesuffix(b"\n"))
        if not told.startswith("/") or "\n" in told or "\0" in told or told == self._cwd:
            return []
        sound = os.path.isdir(told) and inside(os.path.realpath(told), self._root)
        return [f"cd -- {shell_quote(told)}"] if sound else []

    def _exported(self, environ: Mapping[str, str]) -> list[str]:
        data = self._taken("exports")
        if not data.endswith(b"\0"):
            return []  # the command did not come to its end, or tells more than is read
        now = dict(entry.split("=", 1) for entry in os.fsdecode(data).split("\0") if "=" in entry)
        kept = exported_names(environ)
        changed = {k: v for k, v in now.items() if is_plain(k) and environ.get(k) != v and len(v) <= MAX_VALUE}
        gone = [name for name in kept if name not in now]
        names = sorted({*kept, *changed} - {*gone})[:MAX_EXPORTS]
        if not changed and not gone:
            return []
        lines = [f"export {name}={shell_quote(changed[name])}" for name in names if name in changed]
        return [*lines, *(f"unset {name}" for name in gone), f"export {KEPT}={shell_quote(':'.join(names))}"]

    def _taken(self, what: str) -> bytes:
        """Return what a file of the command's holds, and remove it; nothing where it is no file, or too long."""
        path = f"{self._real}/{self._name}.{what}"
        try:
            # Never through a link, and never waiting for the other end of a pipe: the name is the command's to use.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            data = os.read(descriptor, MAX_TOLD_BYTES + 1)
            os.unlink(path)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
        return data if len(data) <= MAX_TOLD_BYTES else b""
