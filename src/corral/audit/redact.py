"""Removes secrets from text: by their shape, by the name beside them, and by the values of the user's variables. Pure.

Uses plain linear searches. An agent chooses the text, and could make regular expressions exceed the time limit of a hook.
"""

from __future__ import annotations

from corral.audit.secret_commands import secret_arguments
from corral.audit.secret_names import is_unlike_prose, names_secret, says_nothing
from corral.audit.secret_patterns import CUT, MIN_VALUE, SHAPES, SHELL_QUOTES, STEMS
from corral.audit.shell_tokens import Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Span = tuple[int, int, str]  # start, end, kind of secret

MAX_SPANS = 5000  # of one text; with more, the whole text is removed. Against text made to take long
MAX_NAME = 64  # characters examined on either side of a word such as `token`
MAX_DEPTH = 3  # nested shell texts
MAX_BLANKS = 4  # around `=` or `:`
MAX_CUTS = 100  # of one text

_HEADERS = ("authorization", "proxyauthorization", "cookie", "setcookie")
_SCHEMES = ("bearer", "basic", "token", "digest", "negotiate", "apikey", "bot")
_QUERY = ("sig", "signature", "jwt", "code", "key", "auth", "hmac", "sid", "session")
_QUERY_ENDS = " \t\r\n&#'\"\\<>|;`"
_NETRC = ("machine", "login", "account")
_QUOTES = "'\"\\"
_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def redact(text: str, secrets: Sequence[tuple[str, str]] = ()) -> str:
    """Return text (possibly shell text) without secrets."""
    words = Words(text)
    return _replaced(text, [*_spans(text, secrets, words), *_option_spans(words)])


def redact_words(words: Sequence[str], secrets: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Return the words of a call without secrets."""
    # A word with blanks may be shell text: sh -c 'tool --password x'.
    spans = [[*_spans(word, secrets, Words(word, is_word=True)), *_option_spans(Words(word))] for word in words]
    for number, start, end in secret_arguments(words, [" "] * len(words), may_be_prose=False):
        spans[number].append((start, end, ""))
    return [_replaced(word, found) for word, found in zip(words, spans, strict=True)]


def _option_spans(words: Words, depth: int = MAX_DEPTH) -> Iterator[Span]:
    """Find secrets among the arguments of commands in shell text, and in its quoted parts, which may be shell text again."""
    text = words.text
    if not any(blank in text for blank in " \t\n<"):
        return
    bounds = words.spans()
    ends = [0, *(end for _, end in bounds)]
    gaps = [text[end:start] for end, (start, _) in zip(ends, bounds, strict=False)]
    listed = [text[start:end] for start, end in bounds]
    for number, start, end in secret_arguments(listed, gaps, may_be_prose=depth < MAX_DEPTH):
        first = bounds[number][0]
        yield first + start, first + end, ""
    for inner, places in words.unquoted() if depth else ():
        for start, end, kind in _option_spans(Words(inner), depth - 1):
            yield places[start], places[end - 1] + 1, kind


def _spans(text: str, secrets: Sequence[tuple[str, str]], words: Words) -> list[Span]:
    lower = text.lower() if text.isascii() else text.translate(_LOWER)
    return [
        *_values(text, secrets),
        *_shapes(text),
        *_private_keys(text),
        *_addresses(text, words),
        *_bearers(text, lower, words),
        *_named(text, lower, words),
        *_parameters(text, lower),
        *_logins(text, lower),
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


def _values(text: str, secrets: Sequence[tuple[str, str]]) -> Iterator[Span]:
    cuts = list(_occurrences(text, CUT))[:MAX_CUTS]
    places = [at for at, char in enumerate(text) if char not in _QUOTES] if secrets else []
    bare = text.translate(SHELL_QUOTES) if len(places) < len(text) else text
    for name, value in secrets:
        for at in _occurrences(text, value):
            yield at, at + len(value), name
        # Shell text may quote a part of the value: it's is 'it'\\''s' or it\\'s.
        wanted = value.translate(SHELL_QUOTES)
        for at in _occurrences(bare, wanted) if len(wanted) >= MIN_VALUE else ():
            yield places[at], places[at + len(wanted) - 1] + 1, name
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
        if sign and colon and not says_nothing(password):
            yield start + len(name) + 1, start + len(user), ""
        elif sign and not colon and len(user) >= 20 and not says_nothing(user):
            yield start, start + len(user), ""


def _bearers(text: str, lower: str, words: Words) -> Iterator[Span]:
    for at in _occurrences(lower, "bearer "):
        start = at + len("bearer ")
        end = words.run_end(start, ",\\")
        value = text[start:end]
        if not says_nothing(value) and is_unlike_prose(value):
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


def _parameters(text: str, lower: str) -> Iterator[Span]:
    """Find secrets in the query of an address: ?sig=value. Elsewhere such names are ordinary."""
    for name in _QUERY:
        for at in _occurrences(lower, f"{name}="):
            start = end = at + len(name) + 1
            sign = lower[at - 1 : at] if at else ""
            if sign not in ("?", "&") and not (sign == "-" and name == "signature"):
                continue  # X-Amz-Signature
            while end < len(text) and text[end] not in _QUERY_ENDS:
                end += 1
            if is_unlike_prose(text[start:end]) and not says_nothing(text[start:end]):
                yield start, end, ""


def _logins(text: str, lower: str) -> Iterator[Span]:
    """Find passwords in the text of a .netrc file: machine h login u password x."""
    if "password" not in lower or not any(word in lower for word in (*_NETRC, "default")):
        return
    # printf gets its line breaks as two characters.
    bounds = Words(lower.replace("\\n", "  ").replace("'", " ").replace('"', " ")).spans()
    words = [lower[start:end] for start, end in bounds]
    for number, word in enumerate(words[:-1]):
        is_entry = word == "password" and (words[max(number - 2, 0)] in _NETRC or words[number - 1] == "default")
        start, end = bounds[number + 1]
        value = text[start:end]
        if is_entry and not says_nothing(value) and (is_unlike_prose(value) or "machine" in words):
            yield start, end, ""


def _name_around(lower: str, start: int, end: int) -> tuple[int, int]:
    first, last = max(start - MAX_NAME, 0), min(end + MAX_NAME, len(lower))
    while start > first and (lower[start - 1].isalnum() or lower[start - 1] in "_-."):
        start -= 1
    while end < last and (lower[end].isalnum() or lower[end] in "_-."):
        end += 1
    return start, end


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
    if not header and not names_secret(name, exactly=sign == ":" and not blank):
        return None
    if header:
        return _header_value(text, first, words)
    quoted = text[first : first + 1] in ("'", '"') or text.startswith(('\\"', "$'"), first)
    last = len(text) if words.is_word and not start and sign == "=" else words.value_end(first)
    value = text[first:last].strip("\\\"'")
    if says_nothing(value) or text[last : last + 1] == "(" or (not quoted and value.endswith("[")):
        return None
    if sign == ":" and not quoted and not is_unlike_prose(value):
        return None
    return first, last, ""


def _header_value(text: str, first: int, words: Words) -> Span | None:
    last = words.line_end(first)
    scheme, blank, rest = text[first:last].partition(" ")
    if blank and scheme.lower() in _SCHEMES:
        first += len(scheme) + 1
    value = text[first:last] if not rest else text[first:last].lstrip()
    return None if says_nothing(value) else (first, last, "")


def _past_blanks(text: str, at: int) -> int:
    end = at + MAX_BLANKS
    while at < min(end, len(text)) and text[at] in " \t":
        at += 1
    return at
