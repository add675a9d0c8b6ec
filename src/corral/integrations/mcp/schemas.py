"""The tools' records and their JSON schemas: the field names of a result, UTF-8 text only, and a bound on every list and text."""

from __future__ import annotations

import importlib.resources
import json

from mcp_types import CallToolResult, TextContent

from corral._lib.network.network_grants import mask_injection
from corral.model.call import Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from corral.integrations.mcp.background_jobs import Job
    from corral.model.call import Finding, Verdict
    from corral.model.result import SandboxResult
    from corral.policy.loader import Policy
    from corral.policy.merge import Setting

MAX_FINDINGS = 20  # of one call; a long script can have thousands
MAX_TEXT = 2000  # characters of one word that is repeated from the call
MAX_CALL = 4000  # characters of all words
_OF_ENDED = ("exit_code", "signal", "timed_out", "duration_ms", "killed", "violations", "hint", "stdout_bytes", "stderr_bytes",
             "full_output_path", "transaction")  # fmt: skip
_PUBLISHED: dict[str, Any] = json.loads(
    (importlib.resources.files("corral") / "model" / "schemas" / "result.schema.json").read_text("utf-8")
)
_FIELDS: dict[str, Any] = _PUBLISHED["properties"]
_INSTEAD = {"description": "What to do instead of a refused call; empty if nothing is known.", "type": "string"}


def _object(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "$defs": _PUBLISHED["$defs"]}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": schema.get("description", ""), "anyOf": [schema, {"type": "null"}]}


RESULT_SCHEMA = _object(
    {name: schema for name, schema in _FIELDS.items() if not name.endswith("_base64")} | {"instead": _INSTEAD},
    [*_PUBLISHED["required"], "instead"],
)
VERDICT_SCHEMA = _object(
    _PUBLISHED["$defs"]["verdict"]["properties"] | {"reason": _FIELDS["reason"], "instead": _INSTEAD},
    ("decision", "complete", "findings", "reason", "instead"),
)
PROCESS_SCHEMA = _object(
    {
        "process_id": {"description": "For read_output and stop_process; empty if nothing was started.", "type": "string"},
        "running": {"type": "boolean"},
        "output": {"description": "Both streams in the order of printing, from `offset` on.", "type": "string"},
        "offset": {"description": "Where `output` begins, in bytes since the process started.", "type": "integer"},
        "next_offset": {"description": "The value of `since` for the next read.", "type": "integer"},
        "omitted_bytes": {"description": "Bytes after `since` that are no longer stored.", "type": "integer"},
        **{name: _FIELDS[name] for name in ("argv", "shell", "cwd", "denied", "reason", "verdict")},
        "instead": _INSTEAD,
        **{name: _or_null(_FIELDS[name]) for name in _OF_ENDED},
    },
    ("process_id", "running", "output", "offset", "next_offset", "omitted_bytes", "denied", "reason", "instead"),
)  # fmt: skip


def result_data(result: SandboxResult, note: str = "") -> dict[str, Any]:
    """Return the record of a result. `note` is added to the reason of a refusal."""
    data = {name: value for name, value in result.to_dict().items() if not name.endswith("_base64")}
    data["argv"] = _words(result.argv)
    data["verdict"] = _verdict_data(result.verdict)
    data["instead"] = _instead(result.verdict) if result.denied else ""
    if result.denied and note:
        data["reason"] = data["hint"] = f"{result.reason} {note}"
    return _as_utf8(data)


def verdict_data(verdict: Verdict, note: str = "") -> dict[str, Any]:
    """Return the record of a verdict. `note` is added to its reason."""
    reason = f"{verdict.reason} {note}".strip()
    return _as_utf8(_verdict_data(verdict) | {"reason": reason, "instead": _instead(verdict)})


def process_data(job: Job, since: int) -> dict[str, Any]:
    """Return the record of a background process: its output since an offset, and how it ended if it has."""
    output, offset, next_offset = job.output.read(since, is_over=job.result is not None)
    data: dict[str, Any] = {
        "process_id": job.id,
        "running": job.result is None,
        "output": output,
        "offset": offset,
        "next_offset": next_offset,
        "omitted_bytes": offset - since,
        "denied": False,
        "reason": "",
        "instead": "",
    }
    if job.result is not None:
        whole = result_data(job.result)
        data |= {name: whole[name] for name in _OF_ENDED}
    if job.hint:
        data["hint"] = f"{job.hint} {data.get('hint', '')}".strip()
    return _as_utf8(data)


def unstarted_data(result: SandboxResult, note: str = "") -> dict[str, Any]:
    """Return the record of a background process that was not started."""
    whole = result_data(result, note)
    fields = ("argv", "shell", "cwd", "denied", "reason", "instead", "verdict", *_OF_ENDED)
    empty = {"process_id": "", "running": False, "output": whole["stderr"], "offset": 0, "omitted_bytes": 0}
    return {**empty, "next_offset": 0, **{name: whole[name] for name in fields}}


def policy_data(policy: Policy) -> dict[str, Any]:
    """Return the record of a policy: its rules, its limits, and the files that set them."""
    config, rules = policy.config, policy.config.rules
    groups: dict[str, Any] = {
        name: {field: getattr(record, field) for field in record._fields}
        for name, record in (("containment", config.containment), ("limits", config.limits), ("output", config.output))
    }
    groups["output"]["exported"] = sorted(config.output.exported)
    # An agent reads this record, and must not learn the injected credentials.
    groups["containment"]["inject"] = [mask_injection(text) for text in config.containment.inject]
    return _as_utf8(
        {
            "project_root": config.project_root,
            "profile": rules.name,
            "effects": {name: str(decision) for name, decision in rules.effects.items()},
            "groups": {name: str(decision) for name, decision in rules.groups.items()},
            "denylist": sorted(config.denylist or ()),
            "interpreters": sorted(config.interpreter_block or ()),
            "environment": sorted(config.env_allowlist),
            "timeout_seconds": config.timeout_seconds,
            "max_output_bytes": config.max_output_bytes,
            **groups,
            "files": [{"level": s.level, "path": s.path, "trusted": s.trusted} for s in policy.sources],
            "settings": [_setting_data(setting) for setting in policy.settings],
        }
    )


def _setting_data(setting: Setting) -> dict[str, Any]:
    data = {name: getattr(setting, name) for name in ("key", "value", "path", "line", "in_force")}
    if setting.key == "containment.inject":
        data["value"] = [mask_injection(text) for text in data["value"]]
    return data


def tool_result(data: dict[str, Any], text: str) -> CallToolResult:
    """Return a tool's result: a short text for the model, and the whole record as structured content."""
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=data)


def _verdict_data(verdict: Verdict) -> dict[str, Any]:
    worst_first = sorted(verdict.findings, key=lambda finding: (-finding.decision, finding.axis))
    return verdict.to_dict() | {"findings": [_finding_data(finding) for finding in worst_first[:MAX_FINDINGS]]}


def _finding_data(finding: Finding) -> dict[str, Any]:
    return {name: _clip(value) if isinstance(value, str) else value for name, value in finding.to_dict().items()}


def _instead(verdict: Verdict) -> str:
    """Return the ways out of the strictest findings, each once."""
    decisive = [
        finding.instead for finding in verdict.findings if finding.decision == verdict.decision != Decision.ALLOW
    ]
    return " ".join(dict.fromkeys(text for text in decisive if text))[:MAX_TEXT]


def _words(argv: Sequence[str]) -> list[str]:
    """Return as many words of a call as fit, and the number of those left out."""
    words: list[str] = []
    room = MAX_CALL
    for word in argv:
        room -= len(word)
        if words and room < 0:
            return [*words, f"… and {len(argv) - len(words)} more"]
        words.append(_clip(word))
    return words


def _clip(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… and {len(text) - MAX_TEXT} characters more"


def _as_utf8(data: dict[str, Any]) -> dict[str, Any]:
    """Escape bytes that are not UTF-8 in all texts: a file name need not be UTF-8, and the transport would fail on it."""

    def convert(value: Any) -> Any:
        if isinstance(value, str):
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, dict):
            return {name: convert(item) for name, item in value.items()}
        return [convert(item) for item in value] if isinstance(value, (list, tuple)) else value

    return {name: convert(item) for name, item in data.items()}
