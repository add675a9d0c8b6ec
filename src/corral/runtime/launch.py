"""Turns a judged call into a Launch, or into an exit code and a message why it cannot start. Starts nothing."""

from __future__ import annotations

import os
import stat

from corral._lib.quoting import shell_quote
from corral._lib.records import Record, frozen
from corral.containment.filesystem.view import BROKER
from corral.guard.rules.loader import places
from corral.model.call import DENIED_EXIT_CODE, NOT_EXECUTABLE_EXIT_CODE, NOT_FOUND_EXIT_CODE, Call, Launch
from corral.runtime.environment import overlay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from corral.policy.config import Output, SandboxConfig
    from corral.runtime.run_options import RunOptions


@frozen
class LaunchFailure(Record):
    """The reason why a call cannot start."""

    exit_code: int
    message: str


class _InvalidCallError(Exception):
    """The call has an argument that no process can have."""


def plan_launch(options: RunOptions, config: SandboxConfig, environment: dict[str, str]) -> Launch | LaunchFailure:
    """Return the launch of a call in a scrubbed environment. Total: a call that cannot start gives a LaunchFailure."""
    global _last  # noqa: PLW0603  one assignment, so threads see the old one or the new
    call, timeout_seconds = options.call, options.timeout_seconds
    stdin: Any = options.stdin  # bytes: text was encoded
    is_plain = stdin is None and timeout_seconds is None and call.env is None and call.cwd is None
    try:
        words = _words(call)
        if is_plain and (known := _planned_before(words, call.shell, config, environment)) is not None:
            return known
        cwd = config.project_root if call.cwd is None else _directory(call, config)
        env = environment if call.env is None else overlay(environment, _given(call.env))
        timeout = config.timeout_seconds if timeout_seconds is None else timeout_seconds
        joined = "".join((cwd, *words) if call.env is None else (cwd, *words, *env, *env.values()))
        if "\0" in joined or not joined.isascii():
            _check_encodable(joined)
    except _InvalidCallError as error:
        return LaunchFailure(NOT_EXECUTABLE_EXIT_CODE, f"corral: {error}\n")
    if call.shell:
        bash = _system_program("bash")
        if bash is None:
            reason = "shell=True needs bash in a system directory, but it is not installed there. Pass the command as a list."
            return LaunchFailure(DENIED_EXIT_CODE, reason)
        # The two dashes end the options: text that begins with a dash is not an option of bash.
        argv = ("bash", "--noprofile", "--norc", "-c", "--", *_shell_arguments(words[0], config.output))
        launch = Launch(bash, argv, cwd, env, stdin, timeout)
    else:
        executable = _find(words[0], cwd, env["PATH"], config.containment.broker)
        if isinstance(executable, LaunchFailure):
            return executable
        launch = Launch(executable, words, cwd, env, stdin, timeout)
    # A program found on PATH is not cached: the next search may find another one.
    if is_plain and (call.shell or "/" in words[0]):
        _last = (words, call.shell, config, environment, launch)
    return launch


def plan_shell(argv: tuple[str, ...], config: SandboxConfig, environment: dict[str, str]) -> Launch | LaunchFailure:
    """Return the launch of a bash that lasts. Its time limits are those of the texts that it gets."""
    bash = _system_program(argv[0])
    if bash is None:
        reason = (
            "A session needs bash in a system directory, but it is not installed there. Use run with a list instead."
        )
        return LaunchFailure(DENIED_EXIT_CODE, reason)
    return Launch(bash, argv, config.project_root, environment)


_last: tuple[tuple[str, ...], bool, object, object, Launch | None] = ((), False, None, None, None)


def _planned_before(words: tuple[str, ...], shell: bool, config: SandboxConfig, environment: object) -> Launch | None:
    """Return the cached launch if the last call was the same."""
    last_words, last_shell, last_config, last_environment, launch = _last
    if last_environment is not environment or last_config is not config or last_shell is not shell:
        return None
    if launch is None or last_words != words or (shell and not os.access(launch.executable, os.X_OK)):
        return None
    return launch


def _shell_arguments(text: str, output: Output) -> tuple[str, ...]:
    """Return bash's arguments for `text`. After it, bash writes its directory and exported variables to files, if wanted."""
    if output.directory_file is None and output.exports_file is None and output.text_file is None:
        return (text,)
    # eval keeps the text apart: appended commands could become part of it after a backslash or in a here-document. The text is
    # an argument, so that its line numbers are right, and `set --` clears it.
    run = 'eval "set --; $1"'
    arguments: tuple[str, ...] = ("bash", text)
    if output.text_file is not None:
        file = shell_quote(output.text_file)
        run, arguments = f'eval "$(cat {file}; rm -f {file})"', ("bash",)
    after = f"pwd -P >{shell_quote(output.directory_file)}; " if output.directory_file is not None else ""
    if output.exports_file is not None:
        # By path: the text may have changed PATH.
        after += f"{_system_program('env') or 'env'} -0 >{shell_quote(output.exports_file)}; "
    return (f"{run}\ncorral_status=$?; {{ {after}:; }} 2>/dev/null; exit $corral_status", *arguments)


def _words(call: Call) -> tuple[str, ...]:
    argv = call.argv
    if isinstance(argv, str):
        argv = (argv,)
    elif not isinstance(argv, (tuple, list)):
        raise _InvalidCallError(f"the command must be a list of strings, not {type(argv).__name__}")
    for number, word in enumerate(argv):
        if not isinstance(word, str):
            raise _InvalidCallError(f"argument {number} must be a string, not {type(word).__name__}")
    if not argv or (call.shell and len(argv) != 1):
        raise _InvalidCallError("with shell=True the command is one string" if call.shell else "the command is empty")
    if isinstance(call.argv, str) and not call.shell and call.argv.split() != [call.argv]:
        raise _InvalidCallError("a command of several words must be a list, or needs shell=True")
    return tuple(argv)


def _directory(call: Call, config: SandboxConfig) -> str:
    if not isinstance(call.cwd, str):
        raise _InvalidCallError(f"cwd must be a path, not {type(call.cwd).__name__}")
    return os.path.join(config.project_root, call.cwd)


def _given(env: object) -> Mapping[str, str]:
    if not isinstance(env, dict):
        raise _InvalidCallError(f"env must be a dict of names and values, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
            raise _InvalidCallError(f"env holds {name!r}, which is no name with a text")
    return env


def _check_encodable(joined: str) -> None:
    if "\0" in joined:
        raise _InvalidCallError("a NUL byte cannot be part of an argument, a path or a variable")
    try:
        os.fsencode(joined)
    except UnicodeEncodeError as error:
        raise _InvalidCallError(f"{joined[error.start]!r} cannot be encoded for the system") from None


def _system_program(name: str) -> str | None:
    for directory in places()["programs"]:
        if os.access(f"{directory}/{name}", os.X_OK):
            return f"{directory}/{name}"
    return None


def _find(name: str, cwd: str, path: str, broker: str) -> str | LaunchFailure:
    if "/" in name:
        # Not checked here: the file may change until exec(), which reports the error.
        return name if name[0] == "/" else f"{cwd}/{name}"
    candidates = [f"{directory}/{name}" for directory in path.split(":")]
    if broker and f"{BROKER}/bin/{name}" in candidates and os.access(f"{broker}/bin/{name}", os.X_OK):
        # On the host the stub has another path.
        return f"{BROKER}/bin/{name}"
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and stat.S_ISREG(os.stat(candidate).st_mode):
            return candidate
    for candidate in candidates:
        if os.path.exists(candidate):
            return LaunchFailure(NOT_EXECUTABLE_EXIT_CODE, f"corral: {candidate}: not executable\n")
    return LaunchFailure(NOT_FOUND_EXIT_CODE, f"corral: {name}: command not found\n")
