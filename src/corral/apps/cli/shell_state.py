"""Carries the working directory and the exported variables of a command's shell over to the host's shell.

The command itself reports them, so corral accepts little: a directory of the project, and variables that control no program.
"""

from __future__ import annotations

import os
import stat

from corral._lib.quoting import shell_quote
from corral.guard.path_zones import inside
from corral.guard.rules.loader import variable
from corral.model.errors import PolicyError
from corral.policy.answers.pending_calls import pending_directory
from corral.policy.config import LOADER_VARIABLES
from corral.runtime.environment import CREDENTIAL_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.model.call import Call
    from corral.sandbox import Sandbox

_RM = "/bin/rm"
KEPT = "CORRAL_EXPORTED"  # a variable of the host's shell: the names that commands have exported, between colons
MAX_REPORT_BYTES = 256 * 1024  # against a command that reports without end
MAX_VALUE = 32 * 1024  # characters of one variable; the kernel's limit is four times as high
MAX_EXPORTS = 64
MAX_ARGUMENT_BYTES = 120 * 1024  # of shell text; the kernel's limit for one argument is 128 KiB
# Variables of a shell, of the session or of the C library. Names that end in PATH or DIR are not carried over either.
_CONTROLLING = frozenset({
    "IFS", "CDPATH", "EXECIGNORE", "FIGNORE", "GLOBIGNORE", "TMOUT", "MAIL", "MAILCHECK", "NULLCMD", "READNULLCMD", "KEYTIMEOUT", "PWD", "OLDPWD",
    "SHLVL", "_", "USER", "LOGNAME", "HOSTNAME", "TERM", "COLUMNS", "LINES", "UID", "EUID", "GID", "EGID", "PPID", "GROUPS", "RANDOM", "SRANDOM",
    "SECONDS", "LINENO", "DIRSTACK", "FUNCNAME", "OPTIND", "OPTARG", "OPTERR", "REPLY", "FUNCNEST", "WORDCHARS", "SPROMPT", "RPROMPT", "PROMPT",
    "PSVAR", "STATUS", "POSIX_ARGV_ZERO", "DISPLAY",
})  # fmt: skip
_CONTROLLING_PREFIXES = (
    *("BASH", "ZSH", "HIST", "PS", "PROMPT", "LD_", "GLIBC_", "MALLOC_", "RES_", "RESOLV_", "LOCAL", "HOST", "SSL", "SSH_", "XDG_", "DBUS_", "SUDO_"),
    *("CORRAL", "COPILOT", "CLAUDE", "CODEX", "GEMINI", "CURSOR", "OPENCODE", "GITHUB_", "ANTHROPIC", "OPENAI", "BUNDLE_"),
)  # fmt: skip


def is_plain(name: str) -> bool:
    """Return whether a variable controls no known program that could run outside the sandbox."""
    if not name.isascii() or not name.isidentifier() or name != name.upper() or name in _CONTROLLING:
        return False
    if (
        name.startswith(_CONTROLLING_PREFIXES)
        or name.startswith(LOADER_VARIABLES)
        or name.endswith(("PATH", "DIR", "PROXY"))
    ):
        return False
    return variable(name) is None and not any(word in name for word in CREDENTIAL_WORDS)


def exported_names(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that commands of this session have exported to the host's shell."""
    return [name for name in environ.get(KEPT, "").split(":") if name and is_plain(name)]


def prepare_shell_file(path: str) -> None:
    """Write the shell text that a rewritten command ends with: it takes over the state in `path`.state, and keeps the exit status."""
    text, state = shell_quote(f"{path}.sh"), shell_quote(f"{path}.state")
    # The host's shell is not in the sandbox, and its PATH may name the project's programs first: use no program by name.
    remove = f"{_RM} -f {text} {state}" if os.access(_RM, os.X_OK) else f": >|{text}; : >|{state}"
    lines = ["corral_status=$?", f"if [ -s {state} ]; then . {state}; fi", remove]
    # The exit status is restored last, and the variable that held it is removed.
    try:
        _write_new(f"{path}.sh", [*lines, 'eval "unset corral_status; (exit $corral_status)"'])
    except FileExistsError:
        return  # the same line runs a second time


def _write_new(path: str, lines: list[str]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as opened:
        opened.write(os.fsencode("".join(f"{line}\n" for line in lines)))


class ShellState:
    """The files in a command's scratch through which its shell reports its state."""

    def __init__(self, box: Sandbox, call: Call, *, exports: bool) -> None:
        # The sandbox has started; only now is the temporary directory of its commands known.
        shown = box._state.scratch_for("/tmp/corral")  # noqa: S108  private to the commands
        self._seen, self._real = next((pair for pair in shown if pair[0].endswith("/tmp")), ("/tmp", "/tmp"))  # noqa: S108
        self._name = f".corral-{os.urandom(8).hex()}"
        self._root = box.config.project_root
        self._cwd = os.path.join(self._root, call.cwd or "")
        self._exports = exports
        report = f"{self._seen}/{self._name}"
        output = box.config.output.replace(directory_file=f"{report}.directory", exports_file=f"{report}.exports")
        if not exports:
            output = output.replace(exports_file=None)
        if isinstance(call.argv, str) and len(call.argv.encode("utf-8", "surrogatepass")) > MAX_ARGUMENT_BYTES:
            box.write_bytes(f"{report}.text", os.fsencode(call.argv))
            output = output.replace(text_file=f"{report}.text")
        box.use_output(output)

    def write(self, file: str, environ: Mapping[str, str]) -> None:
        """Write shell text for the host's shell to source. Writes no file if nothing changed."""
        lines = [*self._directory(), *(self._exported(environ) if self._exports else ())]
        if lines:
            if os.path.dirname(file) != pending_directory(environ, self._root):
                raise PolicyError(f"{file} is not in the directory from which a host's shell reads")
            _write_new(file, lines)

    def _directory(self) -> list[str]:
        path = os.fsdecode(self._take("directory").removesuffix(b"\n"))
        if not path.startswith("/") or "\n" in path or "\0" in path or path == self._cwd:
            return []
        is_in_project = os.path.isdir(path) and inside(os.path.realpath(path), self._root)
        return [f"cd -- {shell_quote(path)}"] if is_in_project else []

    def _exported(self, environ: Mapping[str, str]) -> list[str]:
        data = self._take("exports")
        if not data.endswith(b"\0"):
            return []  # the shell did not reach its end, or reported too much
        now = dict(entry.split("=", 1) for entry in os.fsdecode(data).split("\0") if "=" in entry)
        kept = exported_names(environ)
        changed = {k: v for k, v in now.items() if is_plain(k) and environ.get(k) != v and len(v) <= MAX_VALUE}
        gone = [name for name in kept if name not in now]
        names = sorted({*kept, *changed} - {*gone})[:MAX_EXPORTS]
        if not changed and not gone:
            return []
        lines = [f"export {name}={shell_quote(changed[name])}" for name in names if name in changed]
        return [*lines, *(f"unset {name}" for name in gone), f"export {KEPT}={shell_quote(':'.join(names))}"]

    def _take(self, what: str) -> bytes:
        """Return the content of a report and remove it. Returns b"" if it is not a regular file or too long."""
        path = f"{self._real}/{self._name}.{what}"
        try:
            # The command controls this name: O_NOFOLLOW against a symlink, O_NONBLOCK against a FIFO.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            data = os.read(descriptor, MAX_REPORT_BYTES + 1)
            os.unlink(path)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
        return data if len(data) <= MAX_REPORT_BYTES else b""
