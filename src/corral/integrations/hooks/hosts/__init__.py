"""The agent hosts that corral can be hooked into: one module per host, each with one `HOST` record.

To add a host, add a module here. `corral hook`, install, uninstall, doctor, the CLI's choices and the rule compiler iterate
over the modules of this folder. The hook imports only the module of the host that started it, so a module must stay cheap to load.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from corral.integrations.hooks.protocol import Answer, HookOutput, ToolCall

_NOTHING: dict[str, Any] = {}
TIMEOUT_SECONDS = 10  # after which most hosts run the call; the hook itself refuses after 4 seconds
# Codex and Gemini CLI run the call when the hook's interpreter is missing or the hook is killed. This shell then refuses instead.
FAIL_CLOSED_SHELL = (
    "/bin/sh",
    "-c",
    '"$0" "$@" || { [ $? = 2 ] || echo "The corral hook failed, so this call is refused. Run: corral doctor" >&2; exit 2; }',
)


@frozen
class Host(Record):
    """An agent host. `guard/rules/compiler.py` reads the fields marked "literal" from the source text, without importing it."""

    name: str  # also the name of the module
    title: str  # literal
    tools: tuple[str, ...]  # the host's tools whose calls corral checks
    event: str  # the event that the host sends before a command
    read: Callable[
        [dict[str, Any], Mapping[str, str]], ToolCall | None
    ]  # parses a payload; None for a call corral ignores
    render: Callable[[Answer, ToolCall | None], HookOutput]  # writes an answer in the host's protocol
    payload: Callable[[str, dict[str, Any], str], dict[str, Any]]  # a shell call for (event, tool input, project root)
    folder: str  # the settings directory, relative to the home directory
    file: str  # the settings file that install edits, relative to that directory
    project_file: str  # the settings file of one project, relative to the project root
    entries: (
        Callable[[list[str]], dict[str, dict[str, Any]]] | None
    )  # event -> entry for our command; None for a plugin
    protected: tuple[str, ...]  # literal: project paths that tell the host what to run; agents cannot write them
    private: tuple[str, ...]  # literal: home paths with the host's settings and credentials; commands cannot read them
    notes: tuple[str, ...]  # literal: home directories that the host's own file tools may read
    secrets: tuple[str, ...]  # literal: names of files in `notes` that hold credentials or permissions
    questions: str  # literal: whether a person answers the host's questions: "person", "nobody" or "unknown"
    plugin: str = ""  # the plugin's source beside the module, if the host takes a plugin instead of settings
    variable: str = ""  # the environment variable that moves the settings directory
    variable_folder: str = ""  # the settings directory below the directory that the variable names
    root_variable: str = ""  # the environment variable by which the host tells its hooks the project root
    skeleton: Mapping[str, Any] = _NOTHING  # keys that the host requires in the settings file besides `hooks`
    has_comments: bool = False  # the settings file may contain comments
    switches: tuple[tuple[str, bool], ...] = ()  # dotted settings, each with the value that turns hooks off
    switch_files: tuple[str, ...] = ()  # project files that may contain a switch, besides `project_file`
    managed: tuple[str, ...] = ()  # the administrator's settings files, which take precedence; a directory ends in /
    managed_variable: str = ""  # the environment variable that names one more such file
    rewrites: bool = True  # the host can run another command instead, so allowed commands run in the sandbox
    file_trials: Callable[[str, str], dict[str, dict[str, Any]]] | None = (
        None  # doctor's calls for events without commands
    )
    checks: Callable[[str, str], Iterator[tuple[str, str, str, str]]] | None = (
        None  # doctor's checks of this host alone
    )
    note: str = ""  # shown after install: changes that the user notices, or steps that are left
    project_note: str = ""  # shown after install for one project
