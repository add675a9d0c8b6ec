"""Lists the effects that the kernel must contain, for calls that `workspace` allows: `python tools/contained.py FILE.jsonl [SCOPE]`.

It also lists the calls that have no such effect, which the guard allows because they are harmless.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from corral import Decision, SandboxConfig
from corral.guard.evaluate import trace, vet
from corral.guard.rules.loader import profile_named
from corral.model.call import Call


def main() -> None:
    """Print the effects of the allowed calls, most frequent first, and the calls without such effects."""
    strict, workspace = (profile_named(name).effects for name in ("strict", "workspace"))
    contained = {
        key for key, decision in workspace.items() if decision == Decision.ALLOW and strict[key] != Decision.ALLOW
    }
    counts: Counter[str] = Counter()
    plain: list[str] = []
    allowed = total = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        config = SandboxConfig(project_root=root, profile="workspace")
        for line in Path(sys.argv[1]).read_text().splitlines():
            row = json.loads(line)
            if len(sys.argv) > 2 and row.get("scope") != sys.argv[2]:
                continue
            total += 1
            call = Call(row["shell"], shell=True) if "shell" in row else Call(row["argv"])
            if not vet(call, config).allowed:
                continue
            allowed += 1
            effects = {e.key for step in trace(call, config) for e in step.effects} & contained
            counts.update(effects)
            if not effects:
                plain.append(repr(row.get("shell") or row["argv"])[:120])
    print(f"{allowed} of {total} allowed under workspace; {len(plain)} without an effect that strict refuses")
    for key, count in counts.most_common():
        print(f"{count:6} {key}")
    print(*plain, sep="\n")


if __name__ == "__main__":
    main()
