"""Conditions of rows that only the machine can answer: whether no remote has the commits that a command would replace."""

from __future__ import annotations

from corral.guard.shell.braces import HOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.slots import Slots
    from corral.guard.shell.expansion import Word

# Subcommands of git that leave the commit that is checked out, or only add one to it.
_STAYING = frozenset({
    "add", "blame", "branch", "cat-file", "commit", "config", "diff", "log", "ls-files", "mv",
    "rev-parse", "rm", "shortlog", "show", "status", "tag", "version",
})  # fmt: skip
_ELSEWHERE = (HOLE, "GIT_DIR", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_WORK_TREE")


def unpushed(slots: Slots, word: Word) -> bool:
    """Say whether no remote has the commits that git would replace: one, or as many as `HEAD~3` names."""
    depth = _depth(word.text)
    cwds = slots.frame.scope.cwds
    # A program that runs git (`env`, another shell) may give it other variables, and so another repository.
    if not depth or not cwds or slots.frame.depth or "--git-dir" in slots.seen:
        return False
    if any(name in slots.frame.scope.variables for name in _ELSEWHERE):
        return False
    # An earlier command of the same call may check out another commit, or push this one.
    for act in slots.walker.acts:
        if act is not slots.act and (
            any(key.startswith("network") for key, _, _ in act.effects)
            or (act.row is not None and act.row["id"] == "git" and (not act.verbs or act.verbs[0].text not in _STAYING))
        ):
            return False
    return all(slots.walker.machine.is_unpushed(cwd, str(depth)) for cwd in cwds)


def _depth(text: str) -> int:
    if text.startswith("--"):
        return 1
    steps = text.removeprefix("HEAD").removeprefix("@")
    if steps and steps.strip("^") == "":
        return len(steps)
    count = steps[1:] or "1"
    return int(count) if steps[:1] == "~" and count.isdigit() else int(steps == "^1")
