"""Decides which settings of the user's git configuration commands get: those that name no program. Pure.

Sections and names are in lower case, as git prints them.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Setting = tuple[str, str, str, str | None]  # scope, file, key, and value; None for a key without one

ANY = "*"
# By section: the names of its settings that commands get.
_CARRIED = {
    "advice": ANY,
    "am": "keepcr threeway",
    "apply": "ignorewhitespace whitespace",
    "author": "email name",
    "blame": "blankboundary coloring date markignoredlines markunblamablelines showemail showroot",
    "branch": "autosetupmerge autosetuprebase sort",
    "checkout": "defaultremote guess thresholdforparallelism workers",
    "clean": "requireforce",
    "color": ANY,
    "column": ANY,
    "commit": "cleanup status verbose",
    "committer": "email name",
    "core": "abbrev autocrlf bigfilethreshold checkroundtripencoding commentchar commentstring compression eol logallrefupdates "
    "preloadindex quotepath safecrlf warnambiguousrefs whitespace",
    "diff": "algorithm autorefreshindex colormoved colormovedws context dirstat ignoresubmodules indentheuristic interhunkcontext mnemonicprefix "
    "noprefix relative renamelimit renames statgraphwidth statnamewidth submodule suppressblankempty wordregex wserrorhighlight",
    "fetch": "all fsckobjects output parallel prune prunetags recursesubmodules showforcedupdates",
    "format": "attach coverletter encodeemailheaders from notes numbered pretty signature signoff subjectprefix suffix thread useautobase",
    "grep": "column extendedregexp fallbacktonoindex fullname linenumber patterntype threads",
    "help": "autocorrect",
    "i18n": "commitencoding logoutputencoding",
    "init": "defaultbranch",
    "interactive": "singlekey",
    "log": "abbrevcommit date decorate diffmerges excludedecoration follow graphcolors initialdecorationset mailmap showroot",
    "mailmap": "blob",
    "merge": "autostash branchdesc conflictstyle directoryrenames ff log renamelimit renames stat suppressdest verbosity",
    "notes": "displayref mergestrategy rewritemode rewriteref",
    "pretty": ANY,
    "pull": "ff octopus rebase twohead",
    "push": "autosetupremote default followtags recursesubmodules useforceifincludes",
    "rebase": "abbreviatecommands autosquash autostash backend forkpoint instructionformat maxlabellength missingcommitscheck rebasemerges "
    "reschedulefailedexec stat updaterefs",
    "rerere": "autoupdate enabled",
    "showbranch": "default",
    "stash": "showincludeuntracked showpatch showstat",
    "status": ANY,
    "submodule": "fetchjobs recurse",
    "tag": "sort",
    "user": "email name useconfigonly",
    "versionsort": "suffix",
    "worktree": "guessremote",
}
# As above, for settings with a name in the middle: diff.NAME.xfuncname.
_CARRIED_IN_PART = {
    "branch": "description rebase",
    "color": ANY,
    "diff": "algorithm binary funcname wordregex xfuncname",
    "merge": "name",
    "notes": "mergestrategy",
    "trailer": "ifexists ifmissing key where",
}
# Settings that have no use inside: another part of corral serves them outside, or they name what a person at a terminal runs.
_USELESS = {
    "core": "askpass editor fsmonitor gitproxy pager sshcommand splitindex untrackedcache",
    "commit": "gpgsign",
    "diff": "guitool tool",
    "fetch": "writecommitgraph",
    "interactive": "difffilter",
    "merge": "guitool tool verifysignatures",
    "push": "gpgsign pushoption",
    "tag": "forcesignannotated gpgsign",
    "user": "signingkey",
}
# Other sections of git. All further ones are left out without a report: they are another program's, or have no use inside, as above.
_OTHER_SECTIONS = "alias filter remote trailer url"
# Settings that name a file: commands get a copy of it, by this name.
FILES = {
    "core.excludesfile": "ignore",
    "core.attributesfile": "attributes",
    "commit.template": "message",
    "mailmap.file": "mailmap",
}
_REVISIONS = "blame.ignorerevsfile"
_LFS = {
    "clean": ("git-lfs clean -- %f", "git-lfs clean %f", "git lfs clean -- %f", "git lfs clean %f"),
    "smudge": ("git-lfs smudge -- %f", "git-lfs smudge --skip -- %f", "git-lfs smudge %f", "git lfs smudge -- %f", "git lfs smudge %f"),
    "process": ("git-lfs filter-process", "git-lfs filter-process --skip", "git lfs filter-process"),
    "required": ("true", "false"),
}  # fmt: skip
# Subcommands that lose no work and need no network, whatever their words. The guard cannot judge what an alias of another one does.
_ALIASED = (
    "add annotate blame cat-file cherry cherry-pick commit describe diff diff-tree for-each-ref format-patch grep log ls-files ls-tree merge "
    "merge-base mv name-rev range-diff rev-list rev-parse revert shortlog show show-branch show-ref status whatchanged"
)
_RUNNING = ("--exec", "--ext-diff", "--textconv", "--open-files-in-pager", "-O", "--strategy")
_TRUE = ("true", "yes", "on", "1")


@frozen
class Carried(Record):
    """The settings that commands get, in git's order, and those that are left out."""

    settings: tuple[tuple[str, str | None], ...] = ()  # key and value
    files: tuple[tuple[str, str, str], ...] = ()  # key, the file it names, and the file that names it
    left_out: tuple[str, ...] = ()


def split_key(key: str) -> tuple[str, str, str]:
    """Return section, subsection and name of a key as git prints it."""
    section, _, rest = key.partition(".")
    subsection, _, name = rest.rpartition(".")
    return section, subsection, name


def carried(settings: Iterable[Setting], *, has_lfs: bool) -> Carried:
    """Sort the user's settings. `has_lfs` says whether commands find git-lfs.

    Git inside reads the system's configuration itself, and the repository's is in the copy of the repository.
    """
    kept: list[tuple[str, str | None]] = []
    files: dict[str, tuple[str, str, str]] = {}
    left_out: list[str] = []
    for scope, origin, key, value in settings:
        if scope != "global":
            continue
        if key in FILES or key == _REVISIONS:
            # A relative path is one of the working tree, which commands see. An empty one stands for no file.
            if value is not None and not value.startswith(("/", "~", "%")):
                kept.append((key, value))
                files.pop(key, None)
            elif key in FILES:
                files[key] = (key, value or "", origin)
            else:
                left_out.append(key)
        elif _is_carried(key, value, has_lfs=has_lfs):
            kept.append((key, value))
        elif _is_worth_a_report(key):
            left_out.append(key)
    return Carried(tuple(kept), tuple(files.values()), tuple(dict.fromkeys(left_out)))


def _is_carried(key: str, value: str | None, *, has_lfs: bool) -> bool:
    section, subsection, name = split_key(key)
    if section == "alias":
        return _is_plain_alias(value or "")
    if section == "pager" and not subsection:
        return value in (None, "true", "false")
    if (section, subsection) == ("filter", "lfs"):
        return has_lfs and value in _LFS.get(name, ())
    if "\n" in (value or "") and section != "user":
        return False
    return _is_named(name, (_CARRIED_IN_PART if subsection else _CARRIED).get(section, ""))


def _is_worth_a_report(key: str) -> bool:
    section, _, name = split_key(key)
    is_known = section in _CARRIED or section in _OTHER_SECTIONS.split()
    return is_known and not _is_named(name, _USELESS.get(section, ""))


def _is_named(name: str, names: str) -> bool:
    return names == ANY or name in names.split()


def _is_plain_alias(value: str) -> bool:
    """Say whether an alias stands for one subcommand of git with words that name no program."""
    words = [word.strip("'\"") for word in value.split()]
    if not words or words[0] not in _ALIASED.split() or not value.isprintable():
        return False
    return not any(word.startswith(_RUNNING) for word in words)


def is_true(value: str | None) -> bool:
    """Say whether git takes a value for true."""
    return value is None or value.lower() in _TRUE
