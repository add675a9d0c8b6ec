"""Writes the scripts that let bash, zsh and fish complete corral, from the parsers of the verbs."""

from __future__ import annotations

import argparse

from corral._lib.quoting import shell_quote
from corral._lib.records import Record, frozen
from corral.apps.cli.arguments import main_parser, verb_parser
from corral.apps.cli.verb import load_verb, verb_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DIRECTORY, FILE, TEXT = "directory", "file", "text"
_KINDS = {"DIR": DIRECTORY, "FILE": FILE}  # by the metavar of an argument
BASH = """\
# corral for bash. Once: eval "$(corral completions bash)"
_corral() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} i
    COMPREPLY=()
    # bash takes --option=value apart at the =
    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=( $(compgen -W %(verbs)s -- "$cur") )
        return
    fi
    for (( i = 2; i < COMP_CWORD; i++ )); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        case $verb in %(calls)s) _corral_command "$(( i + 1 ))" ;; esac
        return
    done
    case $verb:$prev in
%(values)s
    esac
    if [[ $cur == -* ]]; then
        case $verb in
%(options)s
        esac
        return
    fi
    case $verb in
%(operands)s
    esac
}
_corral_words() { COMPREPLY=( $(compgen -W "$1" -- "$cur") ); }
_corral_asked() { _corral_words "$("${COMP_WORDS[0]}" completions --words "$1" 2>/dev/null)"; }
_corral_paths() { compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen "$1" -- "$cur"); }
_corral_command() {
    if declare -F _command_offset >/dev/null; then _command_offset "$1"
    elif (( COMP_CWORD == $1 )); then COMPREPLY=( $(compgen -c -- "$cur") )
    else _corral_paths -f
    fi
}
complete -F _corral corral
"""
ZSH = """\
#compdef corral
# corral for zsh. Once: corral completions zsh > "${fpath[1]}/_corral"
_corral() {
    local curcontext=$curcontext state line
    typeset -A opt_args
    local -a verbs=(
%(verbs)s
    )
    if (( CURRENT == 2 )); then
        _describe -t commands 'corral command' verbs
        return
    fi
    local verb=$words[2]
    local -i dashes=${words[(i)--]}
    if (( dashes < CURRENT )); then
        case $verb in
            (%(calls)s) shift dashes words; (( CURRENT -= dashes )); _normal ;;
        esac
        return
    fi
    shift words
    (( CURRENT-- ))
    case $verb in
%(cases)s
    esac
}
_corral_asked() { local -a found=( ${(f)"$(_call_program words corral completions --words $1 2>/dev/null)"} ); compadd -a found; }
if [[ $funcstack[1] == _corral ]]; then _corral "$@"; else compdef _corral corral; fi
"""
FISH = """\
# corral for fish. Once: corral completions fish > ~/.config/fish/completions/corral.fish
function __corral_verb
    set -l words (commandline -opc)
    test (count $words) -gt 1; and contains -- $words[2] $argv; and not contains -- -- $words
end
function __corral_alone
    test (count (commandline -opc)) -eq 1
end
function __corral_command
    set -l words (commandline -opc)
    test (count $words) -gt 2; and contains -- $words[2] %(calls)s; and contains -- -- $words
end
function __corral_rest
    set -l words (commandline -opc) (commandline -ct)
    set -l at (contains -i -- -- $words)
    complete -C (string join ' ' -- (string escape -- $words[(math $at + 1)..-2]) $words[-1])
end
complete -c corral -f
complete -c corral -n __corral_command -a '(__corral_rest)'
%(verbs)s
%(options)s
"""


@frozen
class Value(Record):
    """The value of an argument: fixed words, or a kind of thing. Other kinds than paths and text are asked of corral."""

    kind: str
    words: tuple[str, ...] = ()

    @property
    def is_asked(self) -> bool:
        """True if the script asks `corral completions --words KIND` for the words."""
        return not self.words and self.kind not in (DIRECTORY, FILE, TEXT)


@frozen
class Option(Record):
    """An option of a verb. A flag has no value."""

    names: tuple[str, ...]
    about: str
    value: Value | None = None


@frozen
class VerbArguments(Record):
    """The arguments of one verb, and whether a command follows `--`."""

    name: str
    about: str
    options: tuple[Option, ...]
    operands: tuple[Value, ...]
    takes_command: bool


def describe_verb(name: str) -> VerbArguments:
    """Return the arguments that a shell can complete after a verb. Hidden options are left out."""
    options, operands = [], []
    for action in verb_parser(name)._actions:
        if not action.option_strings:
            operands.append(_value(action))
        elif action.help != argparse.SUPPRESS:
            about = (action.help or "").partition(" (default")[0].rstrip(".")
            options.append(Option(tuple(action.option_strings), about, None if action.nargs == 0 else _value(action)))
    verb = load_verb(name).VERB
    return VerbArguments(name, verb.summary, tuple(options), tuple(operands), verb.command_after is not None)


def _value(action: argparse.Action) -> Value:
    words = action.choices or getattr(action, "completes", ())
    if isinstance(words, str):
        return Value(words)
    return Value("words", tuple(map(str, words))) if words else Value(_KINDS.get(str(action.metavar), TEXT))


def _main_options() -> list[str]:
    # `corral` alone is `corral status`, so it takes the options of both.
    actions = [*main_parser()._actions, *verb_parser("status")._actions]
    return list(dict.fromkeys(name for action in actions for name in action.option_strings if name.startswith("--")))


def script(shell: str) -> str:
    """Return the script for a shell."""
    return SCRIPTS[shell]([describe_verb(name) for name in verb_names()])


def _calls(verbs: Sequence[VerbArguments], between: str) -> str:
    return between.join(verb.name for verb in verbs if verb.takes_command)


def _bash(verbs: Sequence[VerbArguments]) -> str:
    values = [
        f"        {'|'.join(f'{verb.name}:{name}' for name in option.names)}) {_bash_value(option.value)}; return ;;"
        for verb in verbs
        for option in verb.options
        if option.value is not None
    ]
    options = [
        f"            {verb.name}) _corral_words {shell_quote(' '.join(n for o in verb.options for n in o.names))} ;;"
        for verb in verbs
    ]
    operands = [f"        {verb.name}) {_bash_operands(verb)} ;;" for verb in verbs if verb.operands]
    return BASH % {
        "verbs": shell_quote(" ".join([*(verb.name for verb in verbs), *_main_options()])),
        "calls": _calls(verbs, "|"),
        "values": "\n".join(values),
        "options": "\n".join(options),
        "operands": "\n".join(operands),
    }


def _bash_operands(verb: VerbArguments) -> str:
    # Counts all words, so an option before the first operand shifts the places. Few verbs have two operands.
    first, *more = verb.operands
    if not more:
        return _bash_value(first)
    return f"if (( COMP_CWORD == 2 )); then {_bash_value(first)}; else {_bash_value(more[0])}; fi"


def _bash_value(value: Value) -> str:
    if value.words:
        return f"_corral_words {shell_quote(' '.join(value.words))}"
    if value.is_asked:
        return f"_corral_asked {value.kind}"
    return {DIRECTORY: "_corral_paths -d", FILE: "_corral_paths -f"}.get(value.kind, ":")


def _zsh(verbs: Sequence[VerbArguments]) -> str:
    cases = []
    for verb in verbs:
        specs = [spec for option in verb.options for spec in _zsh_option(option)]
        specs += [f":value:{_zsh_value(value)}" for value in verb.operands[:-1]]
        specs += [f"*:value:{_zsh_value(value)}" for value in verb.operands[-1:]]
        cases.append(f"        ({verb.name}) _arguments {' '.join(shell_quote(spec) for spec in specs)} ;;")
    return ZSH % {
        "verbs": "\n".join(f"        {shell_quote(f'{verb.name}:{verb.about}')}" for verb in verbs),
        "calls": _calls(verbs, "|"),
        "cases": "\n".join(cases),
    }


def _zsh_option(option: Option) -> list[str]:
    about = option.about.replace("[", "(").replace("]", ")").replace(":", ",")
    others = f"({' '.join(option.names)})" if len(option.names) > 1 else ""
    if option.value is None:
        return [f"{others}{name}[{about}]" for name in option.names]
    given = _zsh_value(option.value)
    return [f"{others}{name}{'=' if name.startswith('--') else ''}[{about}]:value:{given}" for name in option.names]


def _zsh_value(value: Value) -> str:
    if value.words:
        return f"({' '.join(value.words)})"
    if value.is_asked:
        return f"{{_corral_asked {value.kind}}}"
    return {DIRECTORY: "_directories", FILE: "_files"}.get(value.kind, " ")


def _fish(verbs: Sequence[VerbArguments]) -> str:
    named = [f"complete -c corral -n __corral_alone -a {verb.name} -d {_fish_quoted(verb.about)}" for verb in verbs]
    top = [f"complete -c corral -n __corral_alone -l {name[2:]}" for name in _main_options()]
    lines = [_fish_option(verb, option) for verb in verbs for option in verb.options]
    lines += [line for verb in verbs for line in _fish_operands(verb)]
    return FISH % {"verbs": "\n".join([*named, *top]), "options": "\n".join(lines), "calls": _calls(verbs, " ")}


def _fish_option(verb: VerbArguments, option: Option) -> str:
    words = ["complete -c corral", "-n", _fish_quoted(f"__corral_verb {verb.name}")]
    words += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    words += ["-d", _fish_quoted(option.about)]
    if option.value is not None:
        words += ["-r", _fish_value(option.value)]
    return " ".join(words).rstrip()


def _fish_operands(verb: VerbArguments) -> list[str]:
    lines = []
    for at, value in enumerate(verb.operands, 2):
        if value.words or value.is_asked:
            place = f"; and test (count (commandline -opc)) -eq {at}" if len(verb.operands) > at - 1 else ""
            asked = _fish_quoted(f"__corral_verb {verb.name}{place}")
            lines.append(f"complete -c corral -n {asked} {_fish_value(value)}")
    return lines


def _fish_value(value: Value) -> str:
    if value.words:
        return f"-f -a {_fish_quoted(' '.join(value.words))}"
    if value.is_asked:
        return f"-f -a {_fish_quoted(f'(corral completions --words {value.kind} 2>/dev/null)')}"
    return {DIRECTORY: "-f -a '(__fish_complete_directories (commandline -ct))'", FILE: "-F"}.get(value.kind, "-f")


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
