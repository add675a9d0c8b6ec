"""Removes secrets from text: by their shape, by the name beside them, and by the values of the user's variables. Pure.

Uses plain linear searches. An agent chooses the text, and could make regular expressions exceed the time limit of a hook.
"""

from __future__ import annotations

from corral.audit.secret_patterns import CUT, MIN_VALUE, SHAPES, STEMS
from corral.audit.shell_tokens import Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Span = tuple[int, int, str]  # start, end, kind of secret

MAX_SPANS = 5000  # of one text; with more, the whole text is removed. Against text made to take long
MAX_NAME = 64  # characters examined on either side of a word such as `token`
MAX_DEPTH = 3  # nested shell texts
MAX_BLANKS = 4  # around `=` or `:`
MAX_CUTS = 100  # of one text

# Endings and parts of names of secrets, without - and _, and last words of names with several words.
_ENDS = (
    "password", "passwd", "passphrase", "secret", "secrets", "token", "credential", "credentials", "apikey", "accesskey", "secretkey", "privatekey",
    "signingkey", "encryptionkey", "accountkey", "authkey", "masterkey",
)  # fmt: skip
_HOLDS = ("password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "accesskey", "privatekey")
_LAST = ("pass", "pwd", "pat", "auth")
_ABOUT = (  # endings of names that do not hold the secret itself: PASSWORD_FILE, --token-url, tokenizer, max_tokens
    "file", "path", "dir", "stdin", "sock", "name", "names", "url", "uri", "endpoint", "len", "length", "count", "limit", "type", "ttl", "expiry", "expires",
    "env", "policy", "helper", "prompt", "manager", "store", "ring", "id", "version", "size", "budget", "usage", "tokens", "izer", "ize", "ized", "izers",
)  # fmt: skip
_HEADERS = ("authorization", "proxyauthorization", "cookie", "setcookie")
_SCHEMES = ("bearer", "basic", "token", "digest", "negotiate", "apikey", "bot")
_REGISTRIES = ("docker", "podman", "helm", "skopeo")  # only their `login` takes a secret
# Programs that take a secret in an option: as the next word, or in the same word.
_PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sshpass": (("-p",), ("-p",)),
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump", "7z", "7za", "7zz", "unrar", "rar"), ((), ("-p",))),
    **dict.fromkeys(("zip", "unzip"), (("-P",), ("-P",))),
    "redis-cli": (("-a",), ()),
    "ldapsearch": (("-w",), ()),
    "sqlcmd": (("-P",), ("-P",)),
    **dict.fromkeys(_REGISTRIES, (("-p",), ())),
}  # fmt: skip
_CLIENTS = ("curl", "wget", "http", "https", "xh")
_USERS = ("-u", "--user", "--proxy-user", "-U", "-a", "--auth")  # these take name:password
_NOTHING = ("", "none", "null", "nil", "true", "false", "xxx", "***", "...")
_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def redact(text: str, secrets: Sequence[tuple[str, str]] = ()) -> str:
    """Return text (possibly shell text) without secrets."""
    words = Words(text)
    return _replaced(text, [*_spans(text, secrets, words), *_option_spans(words)])


def redact_words(words: Sequence[str], secrets: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Return the words of a call without secrets."""
    # A word with blanks may be shell text: sh -c 'tool --password x'.
    spans = [[*_spans(word, secrets, Words(word, is_word=True)), *_option_spans(Words(word))] for word in words]
    for number, start, end in _after_options(words):
        spans[number].append((start, end, ""))
    return [_replaced(word, found) for word, found in zip(words, spans, strict=True)]


def _option_spans(words: Words, depth: int = MAX_DEPTH) -> Iterator[Span]:
    """Find secrets after options in shell text, and in its quoted parts, which may be shell text again."""
    text = words.text
    if "-" not in text or not any(blank in text for blank in " \t\n"):
        return
    bounds = words.spans()
    for number, start, end in _after_options([text[start:end] for start, end in bounds]):
        first, last = bounds[number]
        # A word after an operator is no value of the option: --with-token < file.
        if number == 0 or not text[bounds[number - 1][1] : first].strip(" \t\\\n"):
            yield first + start, first + end, ""
    for start, end in words.quoted() if depth else ():
        for inner, last, kind in _option_spans(Words(text[start:end]), depth - 1):
            yield start + inner, start + last, kind


def _spans(text: str, secrets: Sequence[tuple[str, str]], words: Words) -> list[Span]:
    lower = text.lower() if text.isascii() else text.translate(_LOWER)
    return [
        *_values(text, secrets),
        *_shapes(text),
        *_private_keys(text),
        *_addresses(text, words),
        *_bearers(text, lower, words),
        *_named(text, lower, words),
    ]


def _replaced(text: str, spans: list[Span]) -> str:
    if not spans:
        return text
    if len(spans) > MAX_SPANS:
        return f"[redacted: {len(text)} characters]"
    parts, at = [], 0
    for start, end, kind in sorted(spans):
        if end <= at:
            continue
        if start >= at:
            parts += [text[at:start], f"[redacted:{kind}]" if kind else "[redacted]"]
        at = end
    return "".join([*parts, text[at:]])


def _occurrences(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def _values(text: str, secrets: Iterable[tuple[str, str]]) -> Iterator[Span]:
    cuts = list(_occurrences(text, CUT))[:MAX_CUTS]
    for name, value in secrets:
        for at in _occurrences(text, value):
            yield at, at + len(value), name
        for end in cuts:
            yield from _cut_values(text, name, value, end)


def _cut_values(text: str, name: str, value: str, end: int) -> Iterator[Span]:
    """Find the beginning of a value at a place where the text was cut."""
    at = text.find(value[:MIN_VALUE], max(end - len(value), 0), end)
    while at >= 0:
        if value.startswith(text[at:end]):
            yield at, end, name
            return
        at = text.find(value[:MIN_VALUE], at + 1, end)


def _shapes(text: str) -> Iterator[Span]:
    for kind, heads, alphabet, least, needed in SHAPES:
        for head in heads:
            at = text.find(head)
            while at >= 0:
                end = first = at + len(head)
                while end < len(text) and text[end] in alphabet:
                    end += 1
                is_cut = text.startswith(CUT, end) and end - first >= MIN_VALUE
                fits = is_cut or (end - first >= least and (not needed or any(c in needed for c in text[first:end])))
                # `task-` and `disk-` end in `sk-` too.
                if fits and not (head == "sk-" and at and text[at - 1].isalnum()):
                    yield at, end, kind
                at = text.find(head, end)


def _private_keys(text: str) -> Iterator[Span]:
    at = text.find("-----BEGIN")
    while at >= 0:
        end = at + len("-----BEGIN")
        if "PRIVATE KEY" in text[at : at + 64]:
            closing = text.find("-----END", end)
            end = len(text) if closing < 0 else closing + len("-----END")
            last = text.find("-----", end)
            end = last + 5 if 0 <= last <= end + 64 else end
            yield at, end, "private-key"
        at = text.find("-----BEGIN", end)


def _addresses(text: str, words: Words) -> Iterator[Span]:
    for at in _occurrences(text, "://"):
        start = at + 3
        end = words.run_end(start, "/?#,")
        user, sign, _ = text[start:end].rpartition("@")
        name, colon, password = user.partition(":")
        if sign and colon and not _says_nothing(password):
            yield start + len(name) + 1, start + len(user), ""
        elif sign and not colon and len(user) >= 20 and not _says_nothing(user):
            yield start, start + len(user), ""


def _bearers(text: str, lower: str, words: Words) -> Iterator[Span]:
    for at in _occurrences(lower, "bearer "):
        start = at + len("bearer ")
        end = words.run_end(start, ",\\")
        value = text[start:end]
        if not _says_nothing(value) and _is_unlike_prose(value):
            yield start, end, ""


def _named(text: str, lower: str, words: Words) -> Iterator[Span]:
    """Find values beside a name: NAME=value, "name": "value", Name: value."""
    for stem in STEMS:
        at = lower.find(stem)
        while at >= 0:
            start, end = _name_around(lower, at, at + len(stem))
            at = lower.find(stem, end)
            span = _value_beside(text, lower[start:end], start, end, words)
            if span is not None:
                yield span


def _name_around(lower: str, start: int, end: int) -> tuple[int, int]:
    first, last = max(start - MAX_NAME, 0), min(end + MAX_NAME, len(lower))
    while start > first and (lower[start - 1].isalnum() or lower[start - 1] in "_-."):
        start -= 1
    while end < last and (lower[end].isalnum() or lower[end] in "_-."):
        end += 1
    return start, end


def _names_secret(name: str, *, exactly: bool) -> bool:
    """Return whether a lower-case name is that of a secret. Unless `exactly`, further words may follow."""
    *above, last = name.strip("-.").replace("-", "_").replace(".", "_").split("_")
    joined = "".join((*above, last))
    if last == "pass" or (above and last in _LAST and not (exactly and last == "auth")) or joined.endswith(_ENDS):
        return True
    return not exactly and not joined.endswith(_ABOUT) and any(word in joined for word in _HOLDS)


def _value_beside(text: str, name: str, start: int, end: int, words: Words) -> Span | None:
    at = end
    while at < len(text) and text[at] in "\\\"'" and at < end + 2:
        at += 1
    at = _past_blanks(text, at)
    at += text.startswith("+=", at)
    sign = text[at : at + 1]
    if sign not in ("=", ":") or text.startswith(("==", "=~", "://"), at):
        return None
    blank = text[at + 1 : at + 2] == " "
    at += 2 if text.startswith((":=", "=>"), at) else 1
    first = _past_blanks(text, at)
    header = name.strip("-").replace("-", "") in _HEADERS
    if not header and not _names_secret(name, exactly=sign == ":" and not blank):
        return None
    if header:
        return _header_value(text, first, words)
    quoted = text[first : first + 1] in ("'", '"') or text.startswith(('\\"', "$'"), first)
    last = len(text) if words.is_word and not start and sign == "=" else words.value_end(first)
    value = text[first:last].strip("\\\"'")
    if _says_nothing(value) or text[last : last + 1] == "(" or (not quoted and value.endswith("[")):
        return None
    if sign == ":" and not quoted and not _is_unlike_prose(value):
        return None
    return first, last, ""


def _header_value(text: str, first: int, words: Words) -> Span | None:
    last = words.line_end(first)
    scheme, blank, rest = text[first:last].partition(" ")
    if blank and scheme.lower() in _SCHEMES:
        first += len(scheme) + 1
    value = text[first:last] if not rest else text[first:last].lstrip()
    return None if _says_nothing(value) else (first, last, "")


def _past_blanks(text: str, at: int) -> int:
    end = at + MAX_BLANKS
    while at < min(end, len(text)) and text[at] in " \t":
        at += 1
    return at


def _says_nothing(value: str) -> bool:
    """Return whether a value is no secret: empty, a variable, a substitution, a placeholder, or already removed."""
    plain = value.strip("\\\"'").lower()
    if plain in _NOTHING or plain.startswith(("[redacted", "<", "{", "%", "`")):
        return True
    if not plain.startswith("$"):
        return False
    name = plain[1:].strip("{}")
    return not name or name[0] == "(" or name.replace("_", "a").isalnum()


def _is_unlike_prose(value: str) -> bool:
    return len(value) >= 16 or (len(value) >= 6 and any(c.isdigit() for c in value))


def _after_options(words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Find secrets that options introduce. Yield the number of a word, and start and end in it."""
    program = ""
    for number, word in enumerate(words):
        option = word.strip("'\"").removesuffix("\\\n")  # a line continuation is part of the last word
        base = option.rpartition("/")[2]
        if base in _PROGRAMS or base in _CLIENTS:
            program = base
        if not option.startswith("-"):
            continue
        following = words[number + 1] if number + 1 < len(words) else ""
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
        if option.startswith(head) and not _says_nothing(option[len(head) :]):
            return len(head)
    return 0


def _in_following(program: str, option: str, following: str, words: Sequence[str]) -> int:
    """Return the start of a secret in the word after an option, or -1."""
    if following.startswith("-") or "=" in option or _says_nothing(following):
        return -1
    if program in _CLIENTS and option in _USERS:
        _, colon, password = following.partition(":")
        return -1 if not colon or _says_nothing(password) else len(following) - len(password)
    is_of_program = option in _PROGRAMS.get(program, ((), ()))[0]
    if is_of_program and (program not in _REGISTRIES or "login" in words):
        return 0
    is_path = option.endswith("private-key") or following.startswith(("id=", "/run/"))
    return -1 if is_path or not _names_secret(option.lower(), exactly=True) else 0
