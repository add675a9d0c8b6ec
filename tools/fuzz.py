"""Calls check() with a number of random cases and stops at the first that raises: `python tools/fuzz.py 1000000 [seed]`.

With atheris installed, coverage guides the cases. Without it, they are mutations of the examples in the rule tables.
"""

import random
import sys
import time
from importlib import import_module
from importlib.util import find_spec

from corral import SandboxConfig
from corral.guard.evaluate import _vet, trace
from corral.guard.machine import Machine
from corral.guard.rules.compiler import read_tables
from corral.model.call import Call

PIECES = [
    "$(",
    ")",
    "`",
    ";",
    "|",
    "||",
    "&&",
    "&",
    ">",
    ">>",
    "<",
    "<<",
    "<<<",
    "<(",
    ">(",
    "(",
    ")",
    "{",
    "}",
    "[[",
    "]]",
    "((",
    "))",
    "$((",
    "))",
    "${",
    "}",
    "#",
    "\\",
    "\n",
    "\t",
    "'",
    '"',
    "$'",
    "!",
    "~",
    "*",
    "?",
    "[",
    "]",
    "=",
    "+=",
    ",",
    "@",
    "%",
    "^",
    ":",
    "-",
    "--",
    "/",
    "..",
    "if",
    "then",
    "else",
    "fi",
    "for",
    "in",
    "do",
    "done",
    "case",
    "esac",
    "while",
    "until",
    "function",
    "select",
    "time",
    "coproc",
    "eval",
    "exec",
    "source",
    "env",
    "-c",
    "-e",
    "sudo",
    "rm",
    "bash",
    "python3",
    "sed",
    "find",
    "-exec",
    "{}",
    "+",
    "x",
    "y1",
    "$x",
    "${x}",
    "${x[@]}",
    "$@",
    "$1",
    "é",
    "\x01",
    "\x7f",
    "\u202e",
    "�",
    "\x00",
    "1",
    "0x1f",
    "{a,b}",
    "{1..3}",
    "<<E\nx\nE\n",
    "<<'E'\nx\nE\n",
]


def seeds() -> list[str]:
    """Return the examples of all rules."""
    _, rows = read_tables()
    sources = [s for row in rows.values() for s in (row, row.get("workspace", {}))]
    return [text for source in sources for kind in ("deny", "allow") for text in source.get(kind, ())]


def mutated(text: str, rng: random.Random, others: list[str]) -> str:
    """Return a text with a few random edits."""
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(text))
        match rng.randint(0, 5):
            case 0:
                text = text[:at] + rng.choice(PIECES) + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randint(1, 8) :]
            case 2:
                text = text[:at] + rng.choice(others)[: rng.randint(0, 40)] + text[at:]
            case 3:
                text = text[:at] + text[max(0, at - 12) : at] * rng.randint(1, 4) + text[at:]
            case 4:
                text = text[:at] + " " + rng.choice(PIECES) + " " + text[at:]
            case 5:
                text = text[:at] + chr(rng.choice((rng.randint(1, 127), rng.randint(128, 0xD7FF)))) + text[at:]
    return text[:2000]


class Target:
    """Checks one text in both profiles, as shell text and as argv. An exception is a finding."""

    def __init__(self) -> None:
        self.configs = [SandboxConfig(project_root="/var/tmp", profile=p) for p in ("strict", "workspace")]
        self.machine = Machine.of(self.configs[0])
        self.slowest = (0.0, "")

    def __call__(self, text: str, number: int) -> None:
        """Check one case."""
        config = self.configs[number % 2]
        call = Call(text, shell=True) if number % 4 < 3 else Call(text.split(" "))
        start = time.perf_counter()
        _vet(call, config, self.machine)
        took = time.perf_counter() - start
        if took > self.slowest[0]:
            self.slowest = (took, text)
        if number % 64 == 0:
            trace(call, config, self.machine)


def main() -> None:
    """Run the cases that the command line asks for."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    target = Target()
    if find_spec("atheris") is not None:
        atheris = import_module("atheris")

        cases = 0

        def one(data: bytes) -> None:
            nonlocal cases
            target(data.decode("utf-8", "surrogateescape")[:2000], cases)
            cases += 1

        atheris.Setup([sys.argv[0], f"-runs={count}", *sys.argv[2:]], one)
        atheris.Fuzz()
        return
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    texts = seeds()
    begun = time.perf_counter()
    for number in range(count):
        text = mutated(rng.choice(texts), rng, texts)
        try:
            target(text, number)
        except BaseException:
            print(f"case {number} raised: {text!r}", file=sys.stderr)
            raise
        if number % 100_000 == 99_999:
            print(
                f"{number + 1} cases, {time.perf_counter() - begun:.0f} s, slowest {target.slowest[0] * 1000:.0f} ms",
                flush=True,
            )
    print(f"{count} cases without an exception; slowest {target.slowest[0] * 1000:.0f} ms: {target.slowest[1][:120]!r}")


if __name__ == "__main__":
    main()
