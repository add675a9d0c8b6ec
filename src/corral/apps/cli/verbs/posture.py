"""`corral posture`: shows or sets how much agents may do without a question, in the user's own policy file."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import Terminal, printable, terminal_of, wrap
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.own_policy.policy_file import set_user_key, user_policy_text
from corral.apps.cli.questions.terminal_prompt import YES, TerminalPrompt, why_not_owner
from corral.apps.cli.verb import Options, Verb, argument
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy.loader import default_posture, load, user_policy_path
from corral.policy.parser import parse
from corral.policy.settings import ASKING_HOSTS, is_tighter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DECLINED_STATUS = 1
MEANINGS = {
    "locked": "Nothing leaves the project. Anything else is refused.",
    "balanced": "Pinned dependencies and git fetch work. Other hosts, pushes and paths are asked about, with the exact opening.",
    "open": "Any public host over https. Pushes, your own network, other paths and brokered commands are asked about.",
}
ALWAYS = "In all three, commands stay in the sandbox, and credentials, system files and privileges stay out of reach."
_ANSWERS = {"b": "balanced", "": "balanced", "l": "locked", "o": "open"}
VERB = Verb(
    "policy",
    "Show or set how much agents may do without asking you.",
    examples="""\
corral posture               show the posture in force
corral posture balanced      ask about everything that leaves the project, except pinned dependencies and git fetch
corral posture locked        refuse it
""",
    notes="""\
The posture is one line of your own policy file. A project may tighten it. corral asks you before it loosens; without a
terminal it only tightens.
""",
    exit_codes="0, 1 you said no, 125 corral could not ask or failed itself",
    arguments=(argument("name NAME", nargs="?", choices=tuple(MEANINGS), metavar="NAME", completes=tuple(MEANINGS)), ROOT),
)  # fmt: skip


def main(options: Options) -> int:
    """Show the posture in force, or set the user's."""
    if options.name is None:
        return _show(options)
    present = user_posture(os.environ) or default_posture(os.environ)
    if not is_tighter("posture", options.name, present):
        if why := why_not_owner(os.environ):
            raise PolicyError(f"only a person at a terminal can loosen the posture, and {why}")
        if not _agreed(options.name, present):
            print("Nothing was changed.", file=sys.stderr)
            return DECLINED_STATUS
    path = set_posture(options.name, os.environ)
    if options.json:
        print(json_text({"posture": options.name, "path": path}))
    else:
        print(printable(f"The posture is {options.name} ({path})."), file=sys.stderr)
    return 0


def _show(options: Options) -> int:
    policy = load(options.root, os.environ)
    set_by = [f"{s.path}:{s.line}" for s in policy.settings if s.key == "posture" and s.in_force]
    posture = policy.config.posture
    if options.json:
        print(json_text({"posture": posture, "from": set_by[-1] if set_by else ""}))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    where = set_by[-1] if set_by else "built-in"
    lines = [f"{terminal.paint('head', posture)}  {terminal.paint('dim', f'# {printable(where)}')}"]
    lines += wrap(MEANINGS[posture], terminal.columns, "  ")
    if not policy.config.rules.needs_containment:
        lines += wrap(f"It has no effect under the profile {policy.config.rules.name}.", terminal.columns, "  ")
    print("\n".join(lines))
    return 0


def user_posture(environ: Mapping[str, str]) -> str:
    """Return the posture that the user's own policy file sets, or ""."""
    data = user_policy_text(environ)
    parsed = parse(data, user_policy_path(environ))
    return str(next((value for key, value, _, _ in parsed["settings"] if key == "posture"), ""))


def set_posture(name: str, environ: Mapping[str, str]) -> str:
    """Write the posture into the user's own policy file. Return its path."""
    return set_user_key("posture", name, environ, comment="locked, balanced or open; see: corral posture")


def ask_posture(environ: Mapping[str, str]) -> str:
    """Ask the user for a posture, unless their policy file has one or nobody can be asked. Return the one that was set, or ""."""
    if user_posture(environ) or why_not_owner(environ):
        return ""
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, environ)
        prompt.write("\n".join(["", *posture_question(terminal), "", ""]))
        choose = "Choose [B]alanced, [l]ocked, [o]pen"
        said = prompt.ask(f"{terminal.paint('head', choose)} (change it later: corral posture NAME) > ")
        name = _ANSWERS.get(said, said if said in MEANINGS else "")
        if not name:
            prompt.write("Nothing was set. To choose later: corral posture NAME\n")
            return ""
        set_posture(name, environ)
        return name
    return ""  # interrupted


def ask_host_questions(host: str, title: str, environ: Mapping[str, str]) -> bool:
    """Ask whether a host's own prompt may allow an opening, if the policy does not say. Return whether it may from now on."""
    if host not in ASKING_HOSTS or why_not_owner(environ):
        return False
    parsed = parse(user_policy_text(environ), user_policy_path(environ))
    known = next((value for key, value, _, _ in parsed["settings"] if key == "host_questions"), None)
    if known is not None:
        return host in known
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, environ)
        prompt.write("\n".join(["", *host_question(title, terminal), "", ""]))
        question = terminal.paint("head", f"May {title}'s prompt answer for you? [y]es, [N]o")
        may = prompt.ask(f"{question} > ") in YES
        # A no is written too, so that corral does not ask again.
        set_user_key("host_questions", [host] if may else [], environ, comment="hosts whose prompt may answer for you")
        return may
    return False  # interrupted


def host_question(title: str, terminal: Terminal) -> Iterator[str]:
    """Yield the explanation before the question about a host's prompt."""
    yield terminal.paint("head", f"Where do you want to answer, when a command of {title} needs an opening?")
    yield ""
    yield from wrap(
        f"Always in a terminal of yours: the refusal names an id, and `corral allow ID` asks you. "
        f"{title} can also ask in its own prompt. That is quicker, but corral then relies on {title}: "
        "it must show you the question and must not answer by itself. corral asks there only in modes in which it is known "
        "to ask a person, and a yes counts once.",
        terminal.columns,
        "  ",
    )


def posture_question(terminal: Terminal) -> Iterator[str]:
    """Yield the question without its last line."""
    yield terminal.paint("head", "How much should agents be able to do without asking you?")
    yield ""
    for name, meaning in MEANINGS.items():
        indent = " " * 13
        first, *rest = wrap(meaning, terminal.columns, indent)
        yield f"  {terminal.paint('mark', name.ljust(10))} {first[len(indent) :]}"
        yield from rest
    yield ""
    yield from wrap(ALWAYS, terminal.columns, "")


def _agreed(name: str, present: str) -> bool:
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, os.environ)
        lines = [terminal.paint("head", f"{present} -> {name}"), *wrap(MEANINGS[name], terminal.columns, "  ")]
        prompt.write("\n".join(["", *lines, "", ""]))
        question = terminal.paint("head", "Loosen the posture for all your projects? [y]es, [N]o")
        return prompt.ask(f"{question} > ") in YES
    return False  # interrupted
