"""Finds the arguments of commands that are secrets: values of options, of settings, and of subcommands such as `login`. Pure.

A command is a list of words, and before each word the text between it and the last one.
"""

from __future__ import annotations

from corral.audit.secret_names import is_unlike_prose, names_secret, says_nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Argument = tuple[int, int, int]  # number of a word, start and end in it

HERE_STRING = "<<<"
_OPERATORS = ";|&()`\n"
_REGISTRIES = (
    "docker",
    "podman",
    "nerdctl",
    "buildah",
    "helm",
    "skopeo",
    "oras",
    "az",
    "cf",
    "oc",
    "glab",
)  # only their `login` takes a secret
# Programs that take a secret in an option: as the next word, or in the same word.
_PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sshpass": (("-p",), ("-p",)),
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump", "7z", "7za", "7zz", "unrar", "rar"), ((), ("-p",))),
    **dict.fromkeys(("mongo", "mongosh", "mongodump", "mongorestore", "mongoexport", "mongoimport", "twine", "useradd", "usermod"), (("-p",), ())),
    **dict.fromkeys(("zip", "unzip"), (("-P",), ("-P",))),
    **dict.fromkeys(("ldapsearch", "ldapmodify", "ldapadd", "ldapdelete", "ldapwhoami", "ldappasswd"), (("-w",), ())),
    **dict.fromkeys(("sqlcmd", "bcp", "isql", "tsql"), (("-P",), ("-P",))),
    "redis-cli": (("-a",), ()),
    "ssh-keygen": (("-N", "-P"), ()),
    "doctl": (("-t",), ()),
    **dict.fromkeys(_REGISTRIES, (("-p",), ())),
}  # fmt: skip
_CLIENTS = ("curl", "wget", "http", "https", "xh")
_USERS = ("-u", "--user", "--proxy-user", "-U", "-a", "--auth")  # these take name:password
_SETTERS = ("config", "configure", "set", "setenv", "set-env", "put", "env")  # NAME VALUE may follow
# Programs with a subcommand whose operand is a secret.
_LOGINS = {
    **dict.fromkeys(("vault", "bao", "cargo", "wandb", "hf", "huggingface-cli", "nomad", "scw", "pulumi", "cody", "src"), ("login",)),
    "snyk": ("auth",), "ngrok": ("authtoken",), "bw": ("unlock",), "op": ("signin",), "tailscale": ("login",),
}  # fmt: skip
_KEEPERS = (
    "secret",
    "secrets",
    "secretsmanager",
    "keyvault",
    "ssm",
    "parameter",
    "variable",
)  # commands that store a secret
_KEPT_IN = ("-b", "--body", "--value", "--secret-string", "--secret-value", "--data", "--secret-data", "--from-literal")
_STORES = ("set", "put", "add", "create", "import", "update", "create-secret", "put-secret-value", "put-parameter")
# Programs that read a secret from their input, given one of these words or always.
_READERS = {
    **dict.fromkeys(("chpasswd", "passwd", "cryptsetup", "kinit", "su", "smbpasswd", "ssh-add"), ()),
    "sudo": ("-S", "-kS", "--stdin"),
    "htpasswd": ("-i",),
    **dict.fromkeys((*_REGISTRIES, *_LOGINS), ("login", "auth", "unlock", "signin")),
    **dict.fromkeys(("gh", "npm", "heroku", "firebase", "fly", "flyctl", "wrangler", "supabase", "gcloud", "doppler"), ("login", "auth", "secret", "secrets")),
}  # fmt: skip
_SPEAKERS = ("echo", "printf")


def secret_arguments(words: Sequence[str], gaps: Sequence[str], *, may_be_prose: bool) -> Iterator[Argument]:
    """Yield the parts of words that are secrets. In a text that may be prose, an operand must look like a secret."""
    yield from _after_options(words, gaps)
    before: list[int] = []
    for command, operator in _commands(gaps):
        plain = [words[number].strip("'\"") for number in command]
        # A here-string is the input of the command and none of its words.
        given = {at for at, number in enumerate(command) if at and HERE_STRING in gaps[number]}
        operands = [*_settings(plain), *_operands_of_logins(plain)]
        found = [command[at] for at in operands if at not in given]
        if _reads_secret(plain):
            found += [command[at] for at in sorted(given)]
            if operator == "|":
                found += before
        for number in found:
            value = words[number].strip("'\"")
            if not says_nothing(value) and (is_unlike_prose(value) or not may_be_prose):
                yield number, 0, len(words[number])
        for at, start in _stored(plain):
            number = command[at]
            begins = words[number].find(plain[at]) + start
            if not says_nothing(words[number][begins:]):
                yield number, begins, len(words[number].rstrip("'\""))
        is_said = plain[0].rpartition("/")[2] in _SPEAKERS
        before = [number for number, text in zip(command, plain, strict=True) if is_said and not text.startswith("-")][
            1:
        ]


def _commands(gaps: Sequence[str]) -> Iterator[tuple[list[int], str]]:
    """Yield the numbers of the words of each command, and the operator before it."""
    command: list[int] = []
    operator = ""
    for number, gap in enumerate(gaps):
        plain = gap.replace("\\\n", "")
        if command and any(sign in plain for sign in _OPERATORS):
            yield command, operator
            command, operator = [], plain.strip(" \t\n")
        command.append(number)
    if command:
        yield command, operator


def _settings(plain: list[str]) -> Iterator[int]:
    """Yield the places of values in `config set NAME VALUE` and similar, and after subcommands such as `add-authtoken`."""
    first = next(
        (at for at, word in enumerate(plain) if word in _SETTERS or word.endswith((":set", ":add"))), len(plain)
    )
    for at, word in enumerate(plain[:-1]):
        if word.startswith("-") or plain[at + 1].startswith("-"):
            continue
        name = word.lower().rpartition(":")[2].rpartition("/")[2]
        is_name = name.replace("_", "").replace("-", "").replace(".", "").isalnum()
        is_setting = at > first and names_secret(name, exactly=False) and not name.endswith("signingkey")
        is_verb = at > 0 and name.startswith(("add-", "set-", "update-")) and names_secret(name, exactly=True)
        if is_name and (is_setting or is_verb):
            yield at + 1
    if "--secret" in plain and first < len(plain) and len(plain) > first + 2:
        yield len(plain) - 1  # pulumi config set --secret NAME VALUE


def _operands_of_logins(plain: list[str]) -> Iterator[int]:
    """Yield the operands of the first subcommand in _LOGINS."""
    verbs: tuple[str, ...] = ()
    is_past = False
    for at, word in enumerate(plain):
        # A word after an option may be its value: vault login -method userpass.
        is_value = plain[at - 1].startswith("-") and "=" not in plain[at - 1]
        if is_past and not is_value and not word.startswith("-") and "=" not in word:
            yield at
        is_past = is_past or word in verbs
        verbs = verbs or _LOGINS.get(word.rpartition("/")[2], ())


def _stored(plain: list[str]) -> Iterator[tuple[int, int]]:
    """Yield place and start of the secrets that a command such as `gh secret set` or `kubectl create secret` stores."""
    if not any(word in _KEEPERS for word in plain[:6]) or not any(word in _STORES for word in plain):
        return
    for at, word in enumerate(plain):
        option, equals, value = word.partition("=")
        if option in _KEPT_IN and equals:
            # The value of --from-literal is NAME=SECRET.
            yield at, len(word) - len(value.partition("=")[2] if option == "--from-literal" else value)
        elif option in _KEPT_IN and at + 1 < len(plain):
            name, equals, _ = plain[at + 1].partition("=")
            yield at + 1, len(name) + 1 if option == "--from-literal" and equals else 0
        elif equals and option.isidentifier() and "secrets" in plain[:4]:
            yield at, len(option) + 1  # fly secrets set NAME=SECRET


def _reads_secret(plain: list[str]) -> bool:
    """Return whether a command reads a secret from its input."""
    if any(word == "--with-token" or word.endswith(("-stdin", "-fd")) for word in plain):
        return True
    for at, word in enumerate(plain[:3]):
        wanted = _READERS.get(word.rpartition("/")[2])
        if wanted is not None:
            return not wanted or any(each in wanted for each in plain[at + 1 : at + 3])
    return False


def _after_options(words: Sequence[str], gaps: Sequence[str]) -> Iterator[Argument]:
    """Yield the secrets that options introduce."""
    program = ""
    for number, word in enumerate(words):
        option = word.strip("'\"").removesuffix("\\\n")  # a line continuation is part of the last word
        base = option.rpartition("/")[2]
        if any(sign in gaps[number] for sign in _OPERATORS[:-1]):
            program = ""
        if base in _PROGRAMS or base in _CLIENTS:
            program = base
        if not option.startswith("-"):
            continue
        # A word after an operator is no value of the option: --with-token < file.
        is_followed = number + 1 < len(words) and not gaps[number + 1].strip(" \t\\\n")
        following = words[number + 1] if is_followed else ""
        start = _within_option(program, option)
        if start:
            begins = word.find(option)
            yield number, begins + start, begins + len(option)
        elif (start := _in_following(program, option, following, words)) >= 0:
            yield number + 1, start, len(following.rstrip("'\"") if start else following)
        elif option not in _PROGRAMS.get(program, ((), ()))[0]:
            continue
        # In `sshpass -p x ssh -p 22` the second -p belongs to ssh.
        program = "" if program in _PROGRAMS else program


def _within_option(program: str, option: str) -> int:
    """Return the start of a secret inside an option word, or 0."""
    if program in _CLIENTS and option.startswith(("-u", "-U", "--user=", "--proxy-user=", "--auth=")):
        return option.find(":") + 1
    for head in _PROGRAMS.get(program, ((), ()))[1]:
        if option.startswith(head) and not says_nothing(option[len(head) :]):
            return len(head)
    return 0


def _in_following(program: str, option: str, following: str, words: Sequence[str]) -> int:
    """Return the start of a secret in the word after an option, or -1."""
    if following.startswith("-") or "=" in option or says_nothing(following):
        return -1
    if program in _CLIENTS and option in _USERS:
        _, colon, password = following.partition(":")
        return -1 if not colon or says_nothing(password) else len(following) - len(password)
    is_of_program = option in _PROGRAMS.get(program, ((), ()))[0]
    if is_of_program and (program not in _REGISTRIES or "login" in words):
        return 0
    is_path = option.endswith("private-key") or following.startswith(("id=", "/run/"))
    return -1 if is_path or not names_secret(option.lower(), exactly=True) else 0
