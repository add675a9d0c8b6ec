"""What a span says of a result: facts under our own prefix, and, where that is allowed, the call and its output without secrets."""

from __future__ import annotations

import os

from corral._lib.json_text import dumps
from corral.audit.redact import redact, redact_words
from corral.audit.secret_patterns import secrets_of
from corral.integrations.telemetry import labels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.model.call import Verdict
    from corral.model.result import SandboxResult

MAX_CONTENT = 16 * 1024  # characters of arguments, and of each stream; backends drop larger attributes
_WORD_COST = 4  # characters of JSON around a word
_LOOKED_AT = 2  # times as much is looked through for secrets: one that the cut divides is known by its whole


def attributes_of(result: SandboxResult, *, content: bool) -> dict[str, Any]:
    """Return the attributes of the tool's span; with `content` those that quote the call or its output."""
    told: dict[str, Any] = {
        "corral.decision": labels.decision_of(result),
        "corral.denied": result.denied,
        "corral.enforcement": result.enforcement,
        "corral.backend": result.backend,
        "corral.truncated": result.truncated,
        "corral.timed_out": result.timed_out,
        "corral.stdout.bytes": result.stdout_bytes,
        "corral.stderr.bytes": result.stderr_bytes,
        "corral.result.id": result.id,
    }
    told |= rule_attributes(result.verdict)
    if result.missing_layers:
        told["corral.missing_layers"] = result.missing_layers
    if result.violations:
        told["corral.violations"] = tuple(dict.fromkeys(violation.kind for violation in result.violations))
    return told | _content(result) if content else told


def rule_attributes(verdict: Verdict) -> dict[str, Any]:
    """Return the rule that decided, and all of a verdict; nothing where there are none."""
    rules = labels.rules_of(verdict)
    return {"corral.rule.id": rules[0], "corral.rule.ids": rules} if rules else {}


def _content(result: SandboxResult) -> dict[str, str]:
    """Return what holds the call's own words, without the secrets that are known by shape, name or value."""
    words = words_of(result)
    given = {"command": words[0]} if result.shell and len(words) == 1 else {"argv": words}
    told = {"gen_ai.tool.call.arguments": dumps(given)}
    if not result.denied:
        printed = {name: _plain(getattr(result, f"{name}_text")) for name in ("stdout", "stderr")}
        told["gen_ai.tool.call.result"] = dumps({"exit_code": result.exit_code, **printed})
    if result.reason:
        told["corral.reason"] = _plain(result.reason)
    return told


def words_of(result: SandboxResult) -> list[str]:
    """Return the words of the call without secrets, as many as fit: whole but for the last, so that they stay JSON."""
    room = MAX_CONTENT
    kept: list[str] = []
    for word in redact_words(list(result.argv), secrets_of(os.environ)):
        if room <= 0:
            break
        kept.append(word[:room])
        room -= len(word) + _WORD_COST
    return kept


def _plain(text: str) -> str:
    return redact(text[: MAX_CONTENT * _LOOKED_AT], secrets_of(os.environ))[:MAX_CONTENT]
