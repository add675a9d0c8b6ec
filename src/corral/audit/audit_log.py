"""Writes one line of the audit log for each call, verdict and result: bounded, without secrets and without output.

The log lies where no command can reach it. If a line cannot be written, `AuditError` is raised.
"""

from __future__ import annotations

import os

from corral._lib.json_text import dumps
from corral._lib.sha256 import sha256_hex
from corral.audit.ledger import Ledger
from corral.audit.secret_patterns import may_hold_secret, secrets_of
from corral.model.errors import AuditError, PolicyError
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.audit.ledger import Link
    from corral.model.call import Call, Connection, Decision, Finding, Verdict, Violation
    from corral.model.grant import Grant
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig

ID_BYTES = 16
MAX_TEXT = 4096  # characters of a call; the line has the length and the hash of a longer one
MAX_WORD = 1024  # characters of any other text
MAX_ITEMS = 20  # findings or violations of one call
MAX_CONNECTIONS = 50  # of one call
MAX_READ = 256 * 1024  # characters of a call that are searched for secrets; the guard refuses longer calls
_NUMBERS = ("exit_code", "signal", "timed_out", "denied", "truncated", "stdout_bytes", "stderr_bytes", "killed")
_PLAIN = ("backend", "enforcement", "started_at", "network")


def directory(environ: Mapping[str, str]) -> str:
    """Return the directory of the log. It need not exist."""
    return f"{user_dirs.user_directory('state', environ)}/audit"


def new_id() -> str:
    """Return a new unique id."""
    return os.urandom(ID_BYTES).hex()


class Log:
    """Writes calls of one project to the audit log. Pass `Log(config).result` to a sandbox as `on_result`."""

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        event: str = "run",
        host: str = "",
        call: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._root = "" if config is None else config.project_root
        self._profile = "" if config is None else config.rules.name
        self._event = event
        self._host = host
        self._call = call  # ties a hook's verdict to the run that it allowed
        self._environ = os.environ if environ is None else environ
        self._secrets: tuple[tuple[str, str], ...] | None = None

    def check(self) -> None:
        """Raise AuditError if the log cannot be written now."""
        self._ledger().check()

    def obstacle(self) -> str:
        """Return why the log cannot be written now, or an empty text. Unlike `check` it makes no directory."""
        place = above = directory(self._environ)
        if not os.path.lexists(place):
            while not os.path.lexists(above):
                above = os.path.dirname(above)
            if os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK):
                return ""
            return f"the audit log cannot be written: {above} is not writable; set XDG_STATE_HOME to a place that is"
        try:
            self.check()
        except AuditError as error:
            return str(error)
        return ""

    def result(self, result: SandboxResult) -> None:
        """Write the outcome of a call."""
        fields = self._called(result.argv, shell=result.shell, cwd=result.cwd)
        verdict = result.verdict
        # An allowed call may still be refused for its working directory or its environment.
        decision = "deny" if result.denied and verdict.allowed else str(verdict.decision)
        fields |= {"decision": decision, "findings": self._findings(verdict.findings)}
        if result.reason:
            fields["reason"] = self._text(result.reason)
        told: dict[str, object] = {
            **{name: getattr(result, name) for name in (*_NUMBERS, *_PLAIN)},
            "duration_ms": round(result.duration_ms, 3),
            "missing_layers": list(result.missing_layers),
            "violations": [self._violation(v) for v in result.violations[:MAX_ITEMS]],
            "usage": {name: getattr(result.usage, name) for name in result.usage._fields},
        }
        if result.grants:
            told["grants"] = [self._violation(grant) for grant in result.grants[:MAX_ITEMS]]
        if result.connections:
            told["connections"] = [self._violation(c) for c in result.connections[:MAX_CONNECTIONS]]
        fields["result"] = told
        if result.transaction:
            fields["transaction"] = result.transaction
        self._append(result.id or new_id(), fields)

    def verdict(
        self, call: Call, verdict: Verdict, *, decision: Decision | None = None, reason: str = "", id_: str = ""
    ) -> None:
        """Write the verdict of a call; `decision` replaces the guard's own."""
        fields = self._called(call.argv, shell=call.shell, cwd=self._cwd(call.cwd))
        given = verdict.decision if decision is None else decision
        fields |= {"decision": str(given), "findings": self._findings(verdict.findings)}
        if reason:
            fields["reason"] = self._text(reason)
        self._append(id_ or new_id(), fields)

    def failure(self, call: Call, error: object) -> None:
        """Write that corral itself failed, so that a call did not run."""
        fields = self._called(call.argv, shell=call.shell, cwd=self._cwd(call.cwd))
        self._append(new_id(), fields | {"decision": "deny", "error": self._text(str(error))})

    def note(self, fields: Mapping[str, object]) -> None:
        """Write an entry without a command: files that a host would write, a trusted file, a grant."""
        self._append(new_id(), {name: self._plain(value) for name, value in fields.items()})

    def _cwd(self, cwd: object) -> str:
        return self._root if cwd is None else os.path.join(self._root, str(cwd))

    def _append(self, id_: str, fields: Mapping[str, object]) -> Link:
        entry: dict[str, object] = {"id": id_, "event": self._event}
        if self._host:
            entry["host"] = self._host
        if self._call:
            entry["call"] = self._call
        if self._event == "hook" and "CORRAL_TRIAL" in self._environ:
            from corral.audit.hook_trials import is_trial  # noqa: PLC0415  only trials need it

            if is_trial(self._environ):
                entry["trial"] = True
        if self._root:
            entry |= {"root": self._text(self._root), "profile": self._profile}
        entry |= {**fields, "pid": os.getpid()}
        return self._ledger().append(dumps(entry)[1:-1])

    def _ledger(self) -> Ledger:
        place = directory(self._environ)
        try:
            if self._root:
                user_dirs.refuse_inside_project(place, self._root)
            try:
                user_dirs.refuse_writable_by_others(os.path.dirname(place))
                user_dirs.refuse_writable_by_others(place)
            except FileNotFoundError:
                user_dirs.private_directory("state", self._environ, self._root or "/nonexistent")
                os.makedirs(place, 0o700, exist_ok=True)
                user_dirs.refuse_writable_by_others(place)
        except PolicyError as error:
            raise AuditError(f"the audit log cannot be written: {error}") from None
        except OSError as error:
            message = (
                f"the audit log cannot be written: {place}: {error.strerror}; set XDG_STATE_HOME to a place that can be"
            )
            raise AuditError(message) from None
        return Ledger(place)

    def _known(self) -> tuple[tuple[str, str], ...]:
        if self._secrets is None:
            self._secrets = secrets_of(self._environ)
        return self._secrets

    def _text(self, text: str) -> str:
        plain = self._clean(text)
        return plain if len(plain) <= MAX_WORD else f"{plain[:MAX_WORD]}…"

    def _clean(self, text: str) -> str:
        secrets, plain = self._known(), text[:MAX_READ]
        if may_hold_secret(plain, secrets):
            from corral.audit.redact import redact  # noqa: PLC0415  most texts contain no secret

            plain = redact(plain, secrets)
        # At the cut there may be half a secret, which has no known shape.
        return plain if len(text) <= MAX_READ else plain[:-MAX_WORD]

    def _clean_words(self, words: list[str]) -> list[str]:
        secrets = self._known()
        if not may_hold_secret(" ".join(words), secrets) and not any(may_hold_secret(word, secrets) for word in words):
            return words
        from corral.audit.redact import redact_words  # noqa: PLC0415  as above

        return redact_words(words, secrets)

    def _plain(self, value: object) -> object:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {name: self._plain(item) for name, item in value.items()}
        return [self._plain(item) for item in value[:MAX_ITEMS]] if isinstance(value, (list, tuple)) else value

    def _called(self, argv: Sequence[object] | str, *, shell: bool, cwd: str) -> dict[str, object]:
        fields: dict[str, object] = {"cwd": self._text(cwd)}
        words = [argv] if isinstance(argv, str) else [w if isinstance(w, str) else repr(w) for w in argv]
        if shell and len(words) == 1:
            text = self._clean(words[0])
            if len(text) > MAX_TEXT or len(words[0]) > MAX_READ:
                fields["cut"] = _cut(len(words[0]), text)
            return fields | {"shell": text[:MAX_TEXT]}
        words, read = _bounded(words)
        plain = self._clean_words(words)
        if read < 0 or sum(map(len, plain)) > MAX_TEXT:
            fields["cut"] = _cut(abs(read), "\0".join(plain)) | {"words": len(argv)}
        return fields | {"argv": _kept(plain)}

    def _findings(self, findings: Sequence[Finding]) -> list[dict[str, str]]:
        return [
            {"rule": f.rule, "decision": str(f.decision), "reason": self._text(f.reason)} for f in findings[:MAX_ITEMS]
        ]

    def _violation(self, violation: Violation | Connection | Grant) -> dict[str, object]:
        given = {name: getattr(violation, name) for name in violation._fields if name != "instead"}
        return {name: self._plain(value) for name, value in given.items() if value}


def _cut(length: int, text: str) -> dict[str, object]:
    return {"length": length, "sha256": sha256_hex(text.encode("utf-8", "surrogatepass"))}


def _bounded(words: list[str]) -> tuple[list[str], int]:
    """Return the words to search for secrets, and the length of all words; the length is negative if words are left out."""
    length = sum(map(len, words))
    if length <= MAX_READ and len(words) <= MAX_TEXT:
        return words, length
    made, room = [], MAX_READ
    for word in words[:MAX_TEXT]:
        room -= len(word)
        if room < 0:
            break
        made.append(word)
    return made, -length


def _kept(words: list[str]) -> list[str]:
    kept, room = [], MAX_TEXT
    for word in words:
        if room <= 0:
            break
        kept.append(word[:room])
        room -= len(word) + 1
    return kept
