"""The prose of docs/benchmarks.md. It contains no measured number."""

INTRO = """\
# Benchmarks

One command measured every number that this project states about speed, memory or other tools, in one run on one machine:

<!-- not run: clone -->
```console
$ make bench-all
```

The command installs other guards and sandboxes from the package registries into `bench/.peers`, runs every benchmark in `bench/`,
and writes `docs/benchmarks.json`. This page, its plots and the table in the README are rendered from that file, and a test compares
them with it. Run the command on your machine: ratios carry over, milliseconds do not.

A benchmark measures all candidates in turns in one process, in a random order each round, so that other load on the machine affects
all of them alike. Numbers are medians. *Bare* is the same work without a sandbox, mostly `subprocess.run(capture_output=True)`. Other
sandboxes get the same settings: the system is readable, the project is writable, there is no network. Before a comparison a canary
command tries to write outside the project. A sandbox that lets it write is not compared.
"""

GOALS = """\
Missed goals come first, in bold. The chapter on overhead says where the time of a missed goal goes.
"""

OVERHEAD = """\
A command in a warm sandbox, compared with a bare `subprocess.run`, as the ratio of medians. The goal is 1.10x. Libraries, corral
among them, stay loaded between commands; programs start again for each command. gVisor is Debian's package, from 2022.
"""

WHY_MISSED = """
The guard and the result take the same time for every command, so their share is largest for the shortest commands.
"""

COLD = """\
Ratios compare with a bare interpreter, `python -I -S -c pass`. A sandbox that is a program starts again for every command and pays
this each time. A library, such as corral, pays it once.
"""

HOOK = """\
An agent starts the hook as a new process for every command. The time is from its start to its end, with a policy in force and an
audit line written.
"""

CAPTURE = """\
corral keeps the head and the tail of each stream and counts the rest, so its memory does not grow with the output. The others keep
all output in memory, as `subprocess.run` does.
"""

LEFTOVERS = """\
A command starts ten daemons, each in a session of its own, and then exceeds its time limit. A sandbox that is a program is killed by
SIGKILL, as `subprocess.run(timeout=)` does. If processes are left, a second row shows a more careful caller, which sends SIGTERM
and then SIGKILL to the whole process group. A library enforces its own time limit.
"""

ACCURACY = """\
An answer is right if the guard allows a benign command, or refuses or asks about a dangerous one. The commands are in
`bench/cases.toml`; they were written for this page before any guard saw them, and none of them is ever run. Each other guard answers
through its own hook, with default settings and without a model.

*corral workspace* runs the commands that it allows inside the sandbox. It allows scripts in other languages on purpose: inside the
sandbox they see a private home directory, no network and no other processes. *corral workspace, not contained* is the same profile
in a host that cannot rewrite commands: corral asks about commands that only the sandbox would make safe. *cc-safety-net* looks for
destructive git and file commands, and by design does not object to others.
"""

GUARD = """\
One process checks the commands above and the examples of the rules.
"""

NOT_INSTALLED = """\
These tools were not measured, so this page says nothing about their speed.
"""

GIT = """\
A git command in a warm sandbox, compared with the same command by a bare `subprocess.run`. Commands write to a git directory of their
own, and corral re-makes in the user's git directory what they committed or staged. `git add` and `git commit` pay for this; other
commands do not.
"""

# The prose of benchmarks that have a plain chapter, by name.
PLAIN = {"git": GIT}
