"""The scripts that let bash, zsh and fish complete corral. Pure: a description in, text out; all words in it are quoted."""

from __future__ import annotations

from corral._lib.quoting import shell_quote
from corral.apps.cli.verbs.completions import DIRECTORY, FILE, GRANTS, RULES, options_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.apps.cli.verbs.completions import Option, Value, Verb

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


def script(shell: str, verbs: Sequence[Verb]) -> str:
    """Return the script for a shell."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](verbs)


def _calls(verbs: Sequence[Verb], between: str) -> str:
    return between.join(verb.name for verb in verbs if verb.takes_command)


def _bash(verbs: Sequence[Verb]) -> str:
    values = [
        f"        {'|'.join(f'{verb.name}:{name}' for name in option.names)}) {_bash_value(option.value)}; return ;;"
        for verb, option in options_of(verbs)
        if option.value is not None
    ]
    options = [
        f"            {verb.name}) _corral_words {shell_quote(' '.join(n for o in verb.options for n in o.names))} ;;"
        for verb in verbs
    ]
    operands = [f"        {verb.name}) {_bash_operands(verb)} ;;" for verb in verbs if verb.operands]
    return BASH % {
        "verbs": shell_quote(" ".join([*(verb.name for verb in verbs), "--help", "--version", "--json"])),
        "calls": _calls(verbs, "|"),
        "values": "\n".join(values),
        "options": "\n".join(options),
        "operands": "\n".join(operands),
    }


def _bash_operands(verb: Verb) -> str:
    # By place among all words: the few verbs with two operands take no options before them in practice.
    first, *more = verb.operands
    if not more:
        return _bash_value(first)
    return f"if (( COMP_CWORD == 2 )); then {_bash_value(first)}; else {_bash_value(more[0])}; fi"


def _bash_value(value: Value) -> str:
    if value.words:
        return f"_corral_words {shell_quote(' '.join(value.words))}"
    if value.kind in (RULES, GRANTS):
        return f"_corral_asked {value.kind}"
    return {DIRECTORY: "_corral_paths -d", FILE: "_corral_paths -f"}.get(value.kind, ":")


def _zsh(verbs: Sequence[Verb]) -> str:
    cases = []
    for verb in verbs:
        specs = [spec for option in verb.options for spec in _zsh_option(option)]
        specs += [_zsh_operand(value, last=i == len(verb.operands)) for i, value in enumerate(verb.operands, 1)]
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


def _zsh_operand(value: Value, *, last: bool) -> str:
    return f"{'*' if last else ''}:value:{_zsh_value(value)}"


def _zsh_value(value: Value) -> str:
    if value.words:
        return f"({' '.join(value.words)})"
    if value.kind in (RULES, GRANTS):
        return f"{{_corral_asked {value.kind}}}"
    return {DIRECTORY: "_directories", FILE: "_files"}.get(value.kind, " ")


def _fish(verbs: Sequence[Verb]) -> str:
    named = [f"complete -c corral -n __corral_alone -a {verb.name} -d {_fish_quoted(verb.about)}" for verb in verbs]
    top = [f"complete -c corral -n __corral_alone -l {name}" for name in ("help", "version", "json")]
    lines = [_fish_option(verb, option) for verb, option in options_of(verbs)]
    lines += [line for verb in verbs for line in _fish_operands(verb)]
    return FISH % {"verbs": "\n".join([*named, *top]), "options": "\n".join(lines), "calls": _calls(verbs, " ")}


def _fish_option(verb: Verb, option: Option) -> str:
    words = ["complete -c corral", "-n", _fish_quoted(f"__corral_verb {verb.name}")]
    words += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    words += ["-d", _fish_quoted(option.about)]
    if option.value is not None:
        words += ["-r", _fish_value(option.value)]
    return " ".join(words).rstrip()


def _fish_operands(verb: Verb) -> list[str]:
    lines = []
    for at, value in enumerate(verb.operands, 2):
        if value.words or value.kind in (RULES, GRANTS):
            place = f"; and test (count (commandline -opc)) -eq {at}" if len(verb.operands) > at - 1 else ""
            asked = _fish_quoted(f"__corral_verb {verb.name}{place}")
            lines.append(f"complete -c corral -n {asked} {_fish_value(value)}")
    return lines


def _fish_value(value: Value) -> str:
    if value.words:
        return f"-f -a {_fish_quoted(' '.join(value.words))}"
    if value.kind in (RULES, GRANTS):
        return f"-f -a {_fish_quoted(f'(corral completions --words {value.kind} 2>/dev/null)')}"
    return {DIRECTORY: "-f -a '(__fish_complete_directories (commandline -ct))'", FILE: "-F"}.get(value.kind, "-f")


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
