"""Legal and adversarial calls in a temporary project, each run for real and compared with what must become of it."""

from __future__ import annotations

import os
import tempfile

from corral.config import SandboxConfig
from corral.excerpt import one_line
from corral.frozen import Record, frozen
from corral.model import Call
from corral.sandbox import Sandbox
from corral.terminal import clip, columns, pad, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.result import SandboxResult
    from corral.terminal import Terminal

TIMEOUT_SECONDS = 0.5
MAX_OUTPUT_BYTES = 2000
# Each outcome's sign and colour; the word stands beside them.
SHOWN = {
    "ran": ("allow", "allow"),
    "denied": ("deny", "deny"),
    "timed out": ("stop", "ask"),
    "truncated": ("stop", "ask"),
}
FILES = {
    "notes.txt": "pears\napples\nquinces\n",
    "src/main.py": "print('The answer is', 6 * 7)\n",
    "src/flood.py": "for n in range(100_000):\n    print('line', n)\n",
    "tests/test_answer.py": (
        "import unittest\n\n\nclass Answer(unittest.TestCase):\n"
        "    def test_it(self):\n        self.assertEqual(6 * 7, 42)\n"
    ),
}


@frozen
class Case(Record):
    """One call and what must become of it: `ran`, `timed out`, `truncated`, or `denied` by its group's axis."""

    group: str
    call: Call
    expected: str = "denied"
    exit_code: int = 0


@frozen
class Outcome(Record):
    """What became of a case."""

    case: Case
    result: SandboxResult

    @property
    def word(self) -> str:
        """What happened, in the vocabulary of `Case.expected`."""
        result = self.result
        if result.denied:
            return "denied"
        return "timed out" if result.timed_out else "truncated" if result.truncated else "ran"

    @property
    def as_expected(self) -> bool:
        """Whether it is what must happen."""
        if self.word != self.case.expected:
            return False
        if self.word == "denied":
            return self.case.group == str(min(f.axis for f in self.result.verdict.findings))
        return self.word == "timed out" or self.result.exit_code == self.case.exit_code

    def to_dict(self) -> dict[str, object]:
        """Return the outcome as JSON-ready data."""
        case, result = self.case, self.result
        kept = ("exit_code", "denied", "timed_out", "truncated", "reason", "stdout_bytes", "killed")
        return {
            "group": case.group,
            "call": case.call.argv if isinstance(case.call.argv, str) else list(case.call.argv),
            "shell": case.call.shell,
            "cwd": case.call.cwd,
            "expected": case.expected,
            "outcome": self.word,
            "as_expected": self.as_expected,
            "rules": [finding.rule for finding in result.verdict.findings],
            **{name: getattr(result, name) for name in kept},
            "duration_ms": round(result.duration_ms, 3),
        }


def _shell(text: str) -> Call:
    return Call(text, shell=True)  # noqa: S604  a record; what runs it judges it first


LEGAL = (
    Case("legal", Call(["ls", "-la"]), "ran"),
    Case("legal", Call(["cat", "notes.txt"]), "ran"),
    Case("legal", Call(["grep", "-rn", "answer", "src"]), "ran"),
    Case("legal", Call(["sort", "-o", "sorted.txt", "notes.txt"]), "ran"),
    Case("legal", Call(["python3", "src/main.py"]), "ran"),
    Case("legal", Call(["python3", "-m", "unittest", "discover", "-s", "tests"]), "ran"),
    Case("legal", _shell("sort notes.txt | head -1 > first.txt"), "ran"),
    Case("legal", Call(["grep", "plums", "notes.txt"]), "ran", 1),
    Case("legal", Call(["no-such-program"]), "ran", 127),
)
ADVERSARIAL = {
    "name": (
        Call(["rm", "-rf", "src"]),
        Call(["/bin/rm", "notes.txt"]),
        Call(["./tidy", "notes.txt"]),  # a link to /bin/rm
        Call(["sudo", "ls"]),
        Call(["mkfs.ext4", "disk.img"]),
        Call(["chmod", "-R", "777", "."]),
        Call(["curl", "http://localhost:9/"]),
        Call(["env", "-u", "HOME", "rm", "notes.txt"]),
        _shell("ls && { echo tidy; \\rm -rf src; }"),
    ),
    "argv": (
        Call(["python3", "-c", "print(1)"]),
        Call(["python3", "-Ic", "print(1)"]),
        Call(["bash", "-lc", "ls"]),
        Call(["node", "--eval=1"]),
        Call(["perl", "-ne", "print", "notes.txt"]),
        Call(["python3", "-"]),
        Call(["timeout", "5", "python3", "-c", "print(1)"]),
        _shell("awk 'BEGIN { system(\"id\") }'"),
        _shell("cat notes.txt | python3"),
    ),
    "structure": (
        Call(["cat", "notes.txt; ls"]),
        Call(["echo", "$(id)"]),
        Call(["echo", "a\nb"]),
        Call(["ls", "a\0b"]),
        Call([]),
        _shell("echo $("),
    ),
    "path": (
        Call(["cat", "../../../etc/passwd"]),
        Call(["cat", "../outside.txt"]),
        Call(["cat", "leak.txt"]),  # a link to ../outside.txt
        Call(["grep", "--file=/etc/passwd", "notes.txt"]),
        Call(["cp", "notes.txt", "../stolen.txt"]),
        Call(["ls", "~"]),
        Call(["ls"], cwd=".."),
        _shell("cd .. && ls"),
        _shell("echo x > ../planted.txt"),
    ),
}
LIMITS = (
    Case("limits", Call(["sleep", "60"]), "timed out"),
    Case("limits", _shell("sleep 60 & echo started; sleep 60"), "timed out"),
    Case("limits", Call(["python3", "src/flood.py"]), "truncated"),
)
CASES = (*LEGAL, *(Case(group, call) for group, calls in ADVERSARIAL.items() for call in calls), *LIMITS)


def run_demo() -> Iterator[Outcome]:
    """Make the project, run the battery in it, yield each outcome as it comes, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="corral-demo-") as place:
        root = os.path.join(place, "project")
        _write(os.path.join(place, "outside.txt"), "nobody's business\n")
        for name, text in FILES.items():
            _write(os.path.join(root, name), text)
        os.symlink("../outside.txt", os.path.join(root, "leak.txt"))
        os.symlink("/bin/rm", os.path.join(root, "tidy"))
        with Sandbox(config=SandboxConfig(root, max_output_bytes=MAX_OUTPUT_BYTES)) as box:
            for case in CASES:
                call, limit = case.call, TIMEOUT_SECONDS if case.expected == "timed out" else None
                yield Outcome(case, box.run(call.argv, shell=call.shell, cwd=call.cwd, timeout_seconds=limit))


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def row_text(outcome: Outcome, terminal: Terminal) -> str:
    """Return one row of the table; all rows of a terminal are aligned."""
    cut = terminal.sign("cut")
    width = max(columns(_call_text(case.call, terminal)) for case in CASES)
    sign, style = SHOWN[outcome.word]
    word = terminal.paint(style, pad(f"{terminal.sign(sign)} {outcome.word}", 11))
    call = pad(_call_text(outcome.case.call, terminal), width)
    detail = clip(visible(_detail(outcome)), max(terminal.columns - width - 17, 8), cut)
    row = f"  {word}  {call}  {detail}".rstrip()
    if outcome.as_expected:
        return row
    wanted = (
        f"{outcome.case.expected} by {outcome.case.group}"
        if outcome.case.expected == "denied"
        else outcome.case.expected
    )
    return f"{row}\n{terminal.paint('deny', f'    unexpected: this must be {wanted}')}"


def _call_text(call: Call, terminal: Terminal) -> str:
    text = one_line(call, max(terminal.columns * 2 // 5, 12), terminal.sign("cut")) or "(nothing)"
    return f"{text} (in {call.cwd})" if call.cwd else text


def _detail(outcome: Outcome) -> str:
    result = outcome.result
    if outcome.word == "denied":
        return result.reason
    if outcome.word == "timed out":
        return f"ended after {result.duration_ms / 1000:.1f} s"
    kept = f", {len(result.stdout)} of them kept" if outcome.word == "truncated" else ""
    return f"exit {result.exit_code}, {result.stdout_bytes} bytes{kept}"
