"""The sentences of docs/benchmarks.md. No number that was measured stands here."""

INTRO = """\
# Benchmarks

Every number that this project states about speed, memory or other tools was measured by one command, in one run, on one machine:

<!-- not run: clone -->
```console
$ make bench-all
```

It installs other guards and sandboxes from the package registries into `bench/.peers`, runs every benchmark of `bench/`, and
writes `docs/benchmarks.json`. This page, its plots and the table in the README are rendered from that file, and a test compares
them. Run it on your machine: ratios carry over, milliseconds do not.

Ways are measured in turns in one process, in an order drawn anew each round, so that what else the machine does hits all alike.
Numbers are medians. *Bare* is the same work without a sandbox, mostly `subprocess.run(capture_output=True)`. Other sandboxes are
asked for the same: the system readable, the project writable, no network. One that lets a canary write outside is not compared.
"""

GOALS = """\
Missed ones come first, in bold; for what a command costs, its chapter says where the time goes.
"""

OVERHEAD = """\
A warm sandbox against a bare `subprocess.run`, ratio of medians. The goal is 1.10x. Libraries stay warm, as corral does; programs
start anew each time. gVisor is Debian's, which is of 2022.
"""

WHY_MISSED = """
A short command is over in about the time that a careful answer takes to write: the guard and the result cost the same for every
command, so the longer it runs, the less of it they are.
"""

COLD = """\
In the unit of a bare interpreter, `python -I -S -c pass`. A sandbox that is a program starts anew for every command, so this is
what it always costs; a library, corral too, pays it once.
"""

HOOK = """\
A hook is a process for every command of an agent: from its start to its end, with a policy in force and an audit line written.
"""

CAPTURE = """\
corral keeps a head and a tail of each stream and counts the rest, so memory does not grow. The others hold all of it, as
`subprocess.run` does.
"""

LEFTOVERS = """\
A command has started ten daemons, each in a session of its own, when its time is up. A sandbox that is a program is ended by
SIGKILL, as `subprocess.run(timeout=)` does; where that leaves something, once more as a careful caller does: its whole process
group, SIGTERM first. A library has a limit of its own.
"""

ACCURACY = """\
Right is to allow what is benign, and to ask about or refuse what is dangerous. The commands are in
`bench/cases.toml`, written for this page before any guard was asked; nothing of it is ever run. Each other guard is asked
through its own hook, without settings and without a model.

*corral workspace* runs what it allows inside the kernel's layers. It lets programs of other languages through on purpose: they
meet a home of the sandbox's own, no network and no other process. *corral workspace, not contained* is the same profile at a host
that cannot rewrite commands: what only the kernel would hold is asked about. *cc-safety-net* aims at destructive git and file
commands, and by design says nothing about the rest.
"""

GUARD = """\
The commands above and the rules' own examples, judged in one process.
"""

NOT_INSTALLED = """\
A tool that is not here is not slower, it is only not measured.
"""
