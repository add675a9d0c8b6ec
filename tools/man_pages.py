"""Writes the manual pages and the shell completions that the wheel and the Debian package install: `python tools/man_pages.py DIR`.

The same source gives the same bytes. The build needs only the standard library for it.
"""

import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPLETIONS = {
    "bash": "bash-completion/completions/corral",
    "zsh": "zsh/site-functions/_corral",
    "fish": "fish/vendor_completions.d/corral.fish",
}


def write_shared_files(place: Path) -> dict[str, str]:
    """Write all files below a directory. Return the path below `share` of each, by its own path."""
    from corral.apps.cli.completion_scripts import script
    from corral.apps.cli.verb import verb_names

    made = {f"man/man1/corral-{name}.1": _verb_page(name) for name in verb_names()}
    made["man/man1/corral.1"] = _overview_page()
    made |= {path: script(shell) for shell, path in COMPLETIONS.items()}
    for path, text in made.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, encoding="utf-8")
    return {str(place / path): path for path in sorted(made)}


def _overview_page() -> str:
    from corral.apps.cli.help import ABOUT, EXIT_CODES
    from corral.apps.cli.verb import GROUPS, grouped_verbs, load_verb

    about, _, examples = ABOUT.partition("\n\n")
    lines = [
        *_head("corral", "run the commands of a coding agent in a sandbox"),
        ".SH SYNOPSIS",
        r"\fBcorral\fR [\fICOMMAND\fR] [\fIoptions\fR]",
        ".SH DESCRIPTION",
        _text(about.replace("\n", " ")),
        ".SH EXAMPLES",
        *_verbatim(re.sub(r"^  ", "", examples, flags=re.MULTILINE)),
        ".SH COMMANDS",
    ]
    for group, names in grouped_verbs().items():
        lines.append(f".SS {_text(GROUPS[group])}")
        for name in names:
            lines += [".TP", rf"\fBcorral\-{_text(name)}\fR(1)", _text(load_verb(name).VERB.summary)]
    lines += [".SH EXIT STATUS", *_verbatim(EXIT_CODES.partition("\n")[2])]
    return "\n".join(lines) + "\n"


def _verb_page(name: str) -> str:
    from corral.apps.cli.arguments import verb_parser
    from corral.apps.cli.verb import load_verb

    verb, parser = load_verb(name).VERB, verb_parser(name)
    lines = [*_head(f"corral-{name}", verb.summary.rstrip(".").partition(". ")[0]), ".SH SYNOPSIS"]
    actions = [action for action in parser._actions if action.help not in (None, argparse.SUPPRESS)]
    words = [str(action.metavar) for action in actions if not action.option_strings and action.metavar]
    usage = verb.usage or (" ".join((name, *words, "[options]")),)
    for number, line in enumerate(usage):
        lines += [".br"] * bool(number) + [rf"\fBcorral\fR {_text(line)}"]
    lines += [".SH DESCRIPTION", _text(verb.summary)]
    for paragraph in verb.notes.split("\n\n"):
        lines += [".PP", _text(" ".join(paragraph.split()))] * bool(paragraph.strip())
    lines.append(".SH OPTIONS")
    for action in actions:
        lines += [".TP", _spelling(action), _text(" ".join(str(action.help).split()))]
    lines += [".SH EXAMPLES", *_verbatim(verb.examples)]
    lines += [".SH EXIT STATUS", _text(f"{verb.exit_codes}."), ".SH SEE ALSO", r"\fBcorral\fR(1)"]
    return "\n".join(lines) + "\n"


def _head(name: str, what: str) -> list[str]:
    from corral import __version__

    return [f'.TH {_text(name.upper())} 1 "" "corral {__version__}"', ".SH NAME", rf"{_text(name)} \- {_text(what)}"]


def _spelling(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
    values = [str(word) for word in metavar if word] if action.nargs != 0 else []
    if action.choices and not values:
        values = ["|".join(map(str, action.choices))]
    shown = "".join(rf" \fI{_text(word)}\fR" for word in values)
    return ", ".join(rf"\fB{_text(option)}\fR{shown}" for option in action.option_strings) or shown.strip()


def _verbatim(text: str) -> list[str]:
    return [".nf", *[_text(line) for line in text.rstrip().splitlines()], ".fi"]


def _text(text: str) -> str:
    """Escape text for roff. A plain `-` would be a hyphen, which nobody can paste."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    escaped = escaped.replace("…", r"\&...").replace("“", r"\(lq").replace("”", r"\(rq")
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(ROOT / "src"))
    for each in write_shared_files(Path(sys.argv[1])):
        sys.stdout.write(f"{each}\n")
