"""What help says: of every verb what it does, examples first, then what else there is to know. Data only."""

from __future__ import annotations

ABOUT = """\
Run the commands of a coding agent: a guard says yes, ask or no before anything runs, and says why; the kernel holds
what runs inside the project.

  corral                                what is active here
  corral check -- rm -rf build          is this allowed? nothing runs
  corral explain --shell 'cat x | sh'   why, part by part
  corral run -- pytest -q               run it contained if allowed; asks you when unsure
  corral try -- make format             run it, see the diff, then keep or discard what it did
  corral install claude                 guard Claude Code, Codex, Gemini CLI, Cursor, OpenCode or Copilot CLI
  corral log                            what was tried, and what became of it
  corral view                           the same in a browser, live; --out report.html writes one file
  corral init                           a policy file that fits this project
  corral demo                           see it at work in a temporary project
"""
EXIT_CODES = """\
exit codes:
  run        the command's own; 126 denied, 124 timed out
  check      0 allow, 3 ask, 126 deny
  explain    as check
  doctor     0 full, 1 partial, 2 none
  eval       0 all passed, 1 something did not
  selftest   0 all held, 1 something did not, 3 something could not be shown
  grants     0; add 1 not approved, 126 denied
  any        125 corral itself failed, wrong arguments included
"""
RUN = """\
examples:
  corral run -- pytest -q
  corral run --profile strict --shell 'pytest -q | tail -5'
  corral run --json --timeout 5 -- make | jq .exit_code
  corral run --tty -- bash

workspace runs only where the kernel gives every layer of containment; strict runs with those that there are. The JSON
says which held: "enforcement" and "missing_layers".
Output is passed on as it comes. From a terminal the command gets one of its own, shown in yours: colours, job
control, Ctrl-C and Ctrl-Z are the command's. -t gives it one in any case, and all the time it takes unless --timeout
says otherwise; -T gives it none. Elsewhere stdin, stdout and stderr are the command's own. With --json what it prints
is captured and bounded instead, and one JSON object is printed when the command has ended.
Exit code: the command's own; 126 denied, 124 timed out, 125 corral itself failed.
"""
TRY = """\
examples:
  corral try -- npm run codemod               run it, look at the diff, say yes or no
  corral try --yes -- make format             apply without a question, if it ends with 0
  corral try --json --shell 'rm -rf build'    what it would do, as JSON; nothing is applied

The command sees the project and may delete and rewrite in it; what it does goes to an overlay. Then the changes are shown
as a diff, and you are asked. Where nobody can be asked they are neither applied nor lost: they wait for 7 days, for
corral apply or corral discard. What is protected is never applied, and a file that you changed meanwhile never overwritten.
Exit code: the command's own; 126 denied, 124 timed out; 125 corral itself failed, or a conflict kept it from applying.
"""
APPLY = """\
examples:
  corral apply                      what waits here, if it is one
  corral apply 3f2a91c0             by its id, or how that begins; corral history shows them
  corral apply 3f2a91c0 src docs    of it only what lies there; the rest goes on waiting

Not from an agent's shell, and not from inside a sandbox.
Exit code: 0 applied; 125 a file was changed meanwhile, or corral itself failed: nothing was applied.
"""
DISCARD = """\
examples:
  corral discard
  corral discard 3f2a91c0
  corral discard --all              everything that waits in this project

Exit code: 0; 125 corral itself failed.
"""
UNDO = """\
examples:
  corral undo                       take back what was applied last
  corral undo 3f2a91c0              another one, by its id or how that begins

Restored is exactly what was there: contents, modes, links, times. Where something of it was changed since, nothing is undone.
Exit code: 0 undone; 125 something was changed since, or corral itself failed.
"""
HISTORY = """\
examples:
  corral history
  corral history --verbose          with every path
  corral history 3f2a91c0           one of them; while it waits, with its diff
  corral history --json | jq -r '.[] | select(.state == "waits") | .id'

What waits, and what was applied or undone in the last 30 days, the latest first.
Exit code: 0; 125 corral itself failed.
"""
CHECK = """\
examples:
  corral check -- rm -rf build
  corral check --profile strict --shell 'cat notes.txt | head -3'
  corral check --json -- git push --force
  corral check --jsonl < calls.jsonl

With --jsonl, each line of stdin is {"id": "1", "argv": ["ls"]} or {"id": "1", "shell": "ls | wc -l"}, with "cwd" if
it matters, and each gives one line {"id", "decision", "findings"}, in order and at once. A line that cannot be
read gives "deny" and an "error". The exit code is then 0.
Exit code otherwise: 0 allow, 3 ask, 126 deny, 125 corral itself failed.
"""
BATCH = """\
examples:
  corral batch < calls.jsonl > results.jsonl
  corral batch --workers 4 --unordered < calls.jsonl | jq -c '[.id, .result.exit_code]'

Each line of stdin is {"id": "1", "argv": ["ls"]} or {"id": "1", "shell": "ls | wc -l"}, with "cwd", "env", "stdin",
"timeout_seconds" and "idempotent" where they matter. Each gives one line {"id", "result"}, flushed at once: the result
as `corral run --json` prints it. A line that cannot be read gives {"id", "error", "line"}, with its number.
What would be asked about is refused, unless you approved it before: corral grants.
Exit code: 0, the answers are the output; 125 corral itself failed; 130 interrupted: what ran was ended.
"""
EVAL = """\
examples:
  corral eval tasks/                            run every task of a directory, several at a time
  corral eval --fixtures --out here             those that come with corral
  corral eval tasks/ --tag path --workers 4     some of them
  corral eval --compare before after            what changed between two runs

A task is files, calls and what must come of them; each runs in a throwaway project of its own. An interrupted run
continues: finished tasks are not run again. corral writes results.jsonl, junit.xml and summary.json to --out.
Exit code: 0 all passed, or could not be tried here; 1 something did not, or got worse; 125 corral itself failed, or a task
file is wrong; 130 interrupted.
"""
EXPLAIN = """\
examples:
  corral explain -- python3 -c 'print(1)'
  corral explain --profile strict --shell 'cd src && cat ../../secret'
  corral explain --json -- git clean -fdx

Exit code: 0 allow, 3 ask, 126 deny, 125 corral itself failed.
"""
RULE = """\
examples:
  corral rule name-rm          what it refuses, why, and what to do instead
  corral rule                  the ids of all rules, one a line

Rule ids stand in every finding.
"""
DEMO = """\
examples:
  corral demo
  corral demo --json | jq -r '.[] | .outcome'
  corral demo agent                             a coding agent mends a small repository, is refused and goes on
  corral demo agent --model deterministic       without a model's service, though a key for one is there

The guard refuses calls on each of its axes, and the kernel stops scripts that read a key, open a connection, leave a daemon and
plant a git hook; each script also runs without corral, to show that it works. The page goes to stderr. The outcomes go to stdout as
JSON with --json, or when stdout is not a terminal. corral demo agent prints JSON only with --json. It needs an extra: run
pip install '.[demo]' in a clone of corral. All of it, the log too, is in a temporary directory.
Exit code: 0 only if every outcome is as expected; 3 if this machine cannot contain commands and all other outcomes are as expected;
125 corral itself failed.
"""
DOCTOR = """\
examples:
  corral doctor
  corral doctor --json | jq -r '.checks[] | select(.status != "ok") | .name'

Every layer is entered by a throwaway process, and a command looks around in a sandbox that is started for it. Settings
of the machine are read only to explain what did not hold.
Exit code: 0 every layer holds (full), 1 some do (partial), 2 none does, 125 corral itself failed.
"""
SELFTEST = """\
examples:
  corral selftest
  corral selftest --profile strict --json

Each attempt is made twice: in a sandbox as `run` would make it, where it must fail, and uncontained on a victim of its
own, where it must succeed. Victims are made for it and removed. Where the second fails too, nothing was shown.
Exit code: 0 all held, 1 something did not, 3 nothing got out but something could not be shown, 125 corral failed.
"""
INSTALL = """\
examples:
  corral install claude              for all projects of yours
  corral install codex --project     for this project alone
  corral install gemini --dry-run    show the change, write nothing

The change is shown first, and written when you say so; --yes is for scripts. Everything else in the file stays as it
is. The hook is tried at once, and corral doctor tries it again whenever you like.
Exit code: 0 installed, or there already; 1 you said no; 125 corral itself failed, and nothing was written, or the hook
does not do what it should.
"""
UNINSTALL = """\
examples:
  corral uninstall claude
  corral uninstall codex --project

The file becomes what it was before corral; where it changed since, only corral's entry is taken out.
Exit code: 0 gone, or never there; 1 you said no; 125 corral itself failed.
"""
HOOK = """\
examples:
  corral hook claude < payload.json
  corral hook codex

corral hook claude|codex|gemini|cursor|opencode|copilot reads one call from stdin, in the words of that host, and answers
in them: an allowed command is rewritten to run through `corral run` where the host can do that. `corral install HOST`
enters it, in a form that starts faster, into the settings of the host.
Exit code: 0 with the answer on stdout, or 2 where the call is refused, whatever the reason.
"""
LOG = """\
examples:
  corral log                             the last calls, the newest last
  corral log --decision deny --since 1d  what was refused since yesterday
  corral log -f                          live
  corral log show 3f2a91c0               one entry in full, judged again now
  corral log verify                      whether a line was removed or changed

Times are 10m, 2h, 3d, today, yesterday, or as 2026-11-15T09:30. A rule is an id, or how ids begin: name, path-outside.
Exit code: 0; verify 1 where the log is not whole; 125 corral itself failed.
"""
VIEW = """\
examples:
  corral view                              what agents did and do, live, in a browser of this machine
  corral view --since 1d --decision deny   only what was refused since yesterday
  corral view --out report.html            the same as one file, which opens from disk and loads nothing
  corral view corral-eval                  a run of corral eval: rates, tasks and their calls
  corral view before after                 two runs side by side
  corral view results.jsonl                what corral run --json or corral batch printed, output included

The address is printed on stdout. It holds a token, and only this machine is answered. The log keeps no output of commands;
results do. A report is readable by you alone until you change that. docs/view.md tells what the page shows.
Exit code: 0 ended by Ctrl-C, or written; 125 corral itself failed.
"""
GRANTS = """\
examples:
  corral grants                                      what is approved, and until when
  corral grants revoke 63b542dc1322                  to be asked about that call again
  corral grants revoke --all
  corral grants add --shell 'git push --force'       approve it without running it, after the question

An approval is for one exact call: its text, its directory, the project, the policy as it was, and all that the guard said of
it. It lasts 7 days. What is denied cannot be approved, and only a person at a terminal can approve.
Exit code: 0; add 1 you said no or nobody could be asked, 126 it is denied; 125 corral itself failed.
"""
POLICY = """\
examples:
  corral policy show           what holds here, and the file and line of each setting
  corral policy show --json | jq .waiting
  corral policy test           judge every example of every rule
  corral policy schema         the JSON Schema of the files, for editors

The files are ~/.config/corral/policy.toml, the owner's, and corral.toml in the project, which may only tighten until
the owner trusts it.
Exit code: 0; test 1 where an example does not hold; 125 a file is wrong, with its line and column.
"""
TRUST = """\
examples:
  corral trust                 show this project's corral.toml and what it would loosen, and ask
  corral trust --list          what is trusted

A file that is not trusted can only tighten. Trust holds for the exact bytes: a file that changes is untrusted again.
Only a person at a terminal can trust: not a pipe, a hook or an agent, and nothing inside a sandbox.
Exit code: 0 trusted, or it needs no trust; 1 you said no; 125 corral itself failed, or there is nobody to ask.
"""
DISTRUST = """\
examples:
  corral distrust              this project's corral.toml can only tighten from now on

Exit code: 0; 125 corral itself failed.
"""
INIT = """\
examples:
  corral init                  write a corral.toml that fits this project
  corral init --user           write ~/.config/corral/policy.toml, for all projects
  corral init --print          show it and write nothing

An existing file is never changed. Every line of a new file is commented out, so the file changes no decision.
Exit code: 0 written; 125 corral itself failed, or there is a file already.
"""
STATUS = """\
examples:
  corral                       the same, in short
  corral status --root ../other
  corral --json | jq -r '.checks[] | select(.status != "ok") | .command'

What is active here: profile, policy files and whether they are trusted, what the kernel gives, which agents ask corral, what
was refused last. It tries the layers but starts no sandbox, and finds hooks but does not call them: corral doctor does.
Exit code: 0; 125 where the policy cannot be used, so that every call is refused.
"""
MCP = """\
examples:
  corral mcp                           for a client that starts it, as its settings say
  corral mcp --root ~/code             for a client that names its roots; only those below this one count
  corral mcp --http 8765               for clients of this machine; the token is on stderr, once

The settings of most clients: {"mcpServers": {"corral": {"command": "corral", "args": ["mcp", "--root", "DIR"]}}}
It needs the extra corral[mcp]; without it, the error names the command to run. docs/mcp.md describes the tools.
Exit code: 0 the client hung up, 125 corral itself failed.
"""
COMPLETIONS = """\
examples:
  corral completions bash > ~/.local/share/bash-completion/completions/corral
  corral completions zsh > "${fpath[1]}/_corral"
  corral completions fish > ~/.config/fish/completions/corral.fish
  corral completions bash | less

Or once for this shell alone: eval "$(corral completions bash)". Verbs, options, profiles, rules, hosts and approvals are
completed, and behind -- the command as the shell would complete it alone.
Exit code: 0; 125 corral itself failed.
"""
GROUPS = {
    "commands of an agent": ("run", "batch", "check", "explain"),
    "try, look, then keep": ("try", "apply", "discard", "undo", "history"),
    "what is at work, and what was tried": ("status", "log", "view"),
    "what you decide": ("policy", "init", "trust", "distrust", "grants"),
    "agents": ("install", "uninstall", "hook", "mcp"),
    "this machine": ("doctor", "selftest", "eval", "demo"),
    "help": ("rule", "completions"),
}
VERBS = {
    "status": ("show what is active here; the same as corral alone", STATUS),
    "run": ("run a command, if the guard allows it", RUN),
    "check": ("say whether a command would be allowed; run nothing", CHECK),
    "explain": ("show how a command is judged, part by part; run nothing", EXPLAIN),
    "try": ("run a command without changing the project, show what it did, and ask whether to keep that", TRY),
    "apply": ("write to the project what a transaction has left waiting", APPLY),
    "discard": ("forget what a transaction has left waiting", DISCARD),
    "undo": ("take back the transaction that was applied last", UNDO),
    "history": ("show the transactions of this project", HISTORY),
    "batch": ("run many calls, several at a time: JSON lines in, JSON lines out", BATCH),
    "eval": ("run tasks in throwaway projects and say which passed; compare two runs", EVAL),
    "grants": ("show, revoke or add what you approved for a project", GRANTS),
    "log": ("show what was tried, what was said of it, and what became of it", LOG),
    "view": ("show what agents did as a page: live, or as one file", VIEW),
    "completions": ("print what lets your shell complete corral", COMPLETIONS),
    "rule": ("show a rule's page, or the ids of all rules", RULE),
    "policy": ("show what holds here and where it comes from; test it; print its schema", POLICY),
    "init": ("write a policy file that fits this project", INIT),
    "trust": ("let this project's policy file loosen, as it is now", TRUST),
    "distrust": ("let this project's policy file only tighten again", DISTRUST),
    "hook": ("answer one call of a coding agent, in its own protocol", HOOK),
    "demo": ("run legal and adversarial calls, or a coding agent, in a temporary project", DEMO),
    "doctor": ("show what this machine gives to hold commands with, and what would give more", DOCTOR),
    "install": ("put corral between a coding agent and this machine", INSTALL),
    "uninstall": ("take corral out of a coding agent's settings", UNINSTALL),
    "mcp": ("serve MCP clients: run and check commands as tools", MCP),
    "selftest": ("attack the sandbox harmlessly, and show what held", SELFTEST),
}
CALLS = {
    verb: f"corral {verb} [options] [--] CMD [ARG ...]\n       corral {verb} [options] --shell STRING"
    for verb in ("run", "check", "explain", "try")
}
CALLS["check"] += "\n       corral check [--profile NAME] [--root DIR] --jsonl"
USAGE = CALLS | {
    "grants": "corral grants [list]\n       corral grants revoke ID ... | --all\n       corral grants add [options] [--] CMD [ARG ...]",
    "apply": "corral apply [options] [ID [PATH ...]]",
    "view": "corral view [options] [FILE [FILE]]",
    "log": "corral log [options]\n       corral log show ID\n       corral log verify",
}
