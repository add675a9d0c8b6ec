"""Texts that keep the parser busy for seconds, while no Python signal handler runs, and hooks that hang. All are refused."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS, HOSTS, PROGRAM, PYTHON, Owner, dependencies, payload, refuses

KILOBYTE = 1000
EXTGLOB = "shopt -s extglob\n: "


def repeated(head: str, piece: str, size: int, tail: str = "") -> str:
    return head + piece * ((size - len(head) - len(tail)) // len(piece)) + tail


# Each takes tree-sitter-bash 0.25.1 more than two seconds of CPU time.
SLOW = {
    "extended globs, 60 kB": repeated(EXTGLOB, "+(a) ", 60 * KILOBYTE, "\nls"),
    "extended globs, 90 kB": repeated(EXTGLOB, "+(a) ", 90 * KILOBYTE, "\nls"),
    "extended globs, 125 kB": repeated(EXTGLOB, "+(a) ", 125 * KILOBYTE, "\nls"),
    "alternatives": repeated(EXTGLOB, "@(a|b) ", 90 * KILOBYTE, "\nls"),
    "negations": repeated(EXTGLOB, "!(a) ", 90 * KILOBYTE, "\nls"),
    "an open negation": repeated("ls !(", "a|", 24 * KILOBYTE),
    "nested globs": repeated("case x in ", "?(", 60 * KILOBYTE),
    "open expansions": repeated("", "${", 60 * KILOBYTE),
    "dollars in arithmetic": repeated("((", "$", 24 * KILOBYTE),
    "in a nested shell": f"bash -c '{repeated('', '+(a) ', 90 * KILOBYTE)}'",
    "grown by expansion": "x='" + "+(a) " * 60 + "'; " + "x=$x$x; " * 5 + 'eval ": ' + "$x" * 10 + '"',
}


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


@pytest.mark.parametrize("slow", SLOW)
def test_text_that_parses_slowly_is_refused(slow: str, owner: Owner) -> None:
    assert refuses(owner.hook("codex", payload("codex", owner, command=SLOW[slow])), "[structure-limit]")


@pytest.mark.parametrize("host", HOSTS)
def test_every_host_refuses_text_that_parses_slowly(host: str, owner: Owner) -> None:
    done = owner.hook(host, payload(host, owner, command=SLOW["extended globs, 125 kB"]))
    assert refuses(done, "[structure-limit]")


def test_refusal_of_slow_text_is_logged(owner: Owner) -> None:
    owner.hook("codex", payload("codex", owner, command=SLOW["extended globs, 60 kB"]))
    line = json.loads((owner.state / "audit" / "log.jsonl").read_text().splitlines()[-1])
    assert (line["decision"], [found["rule"] for found in line["findings"]]) == ("deny", ["structure-limit"])


LINE = "some text of a file, (with) $signs\n"
LONG = {
    "plain commands": "echo one two three\n" * 500,
    "quoted text": f"printf '%s' '{'a b c ' * 5000}'",
    "a here-document": f"cat <<'END'\n{LINE * 2000}END\n",
}


@pytest.mark.parametrize("long", LONG)
def test_long_text_that_parses_quickly_is_allowed(long: str, owner: Owner) -> None:
    assert owner.hook("codex", payload("codex", owner, command=LONG[long])).returncode == 0


@pytest.mark.parametrize("long", LONG)
def test_ignored_sigchld_does_not_change_the_answer(long: str, owner: Owner) -> None:
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    for command, status in ((LONG[long], 0), (f"{LONG[long]}\nsudo ls", 2), (SLOW["extended globs, 60 kB"], 2)):
        with started(owner, PYTHON, "-c", ignore) as process:
            said = process.communicate(payload("codex", owner, command=command), DEADLINE_SECONDS)
        assert (process.returncode, b"crash" in b"".join(said)) == (status, False)


def started(owner: Owner, *before: str) -> "subprocess.Popen[bytes]":
    """Start a hook whose payload does not end."""
    hook = [*before, PYTHON, "-I", "-S", str(PROGRAM), "codex", *dependencies()]
    pipe = subprocess.PIPE
    return subprocess.Popen(hook, env=owner.environ, cwd=owner.root, stdin=pipe, stdout=pipe, stderr=pipe)


def test_blocked_sigalrm_still_ends_the_hook(owner: Owner) -> None:
    block = "import os, signal, sys; signal.pthread_sigmask(0, {signal.SIGALRM}); os.execv(sys.argv[1], sys.argv[1:])"
    with started(owner, PYTHON, "-c", block) as process:
        out, err = process.stdout, process.stderr
        assert out is not None
        assert err is not None
        status = process.wait(DEADLINE_SECONDS)
        assert refuses(subprocess.CompletedProcess([], status, out.read(), err.read()))


def signalled(process: "subprocess.Popen[bytes]", sent: int) -> bool:
    """Send a signal to the hook's only child; return False if the hook ended first."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (found := children.read_text().split()):
        if process.poll() is not None:
            return False
        os.sched_yield()
    try:
        os.kill(int(found[0]), sent)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "sent",
    [
        signal.SIGSTOP,
        signal.SIGKILL,
        signal.SIGSEGV,
    ],
)
def test_stopped_or_crashed_parse_trial_refuses(sent: int, owner: Owner) -> None:
    for _ in range(100):  # on a loaded machine the child may end before the signal arrives
        with started(owner) as process:
            assert process.stdin is not None
            process.stdin.write(payload("codex", owner, command=SLOW["extended globs, 90 kB"]))
            process.stdin.close()
            process.stdin = None
            is_sent = signalled(process, sent)
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
        if is_sent:
            break
    assert is_sent
    assert refuses(subprocess.CompletedProcess([], process.returncode, out, err), "[structure-limit]")
    line = json.loads((owner.state / "audit" / "log.jsonl").read_text().splitlines()[-1])
    assert (line["decision"], "structure-limit" in json.dumps(line)) == ("deny", True)
