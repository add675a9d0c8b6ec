"""Check, run and stream commands from a program: one call in, one result out."""

from corral import Containment, Limits, Sandbox, SandboxConfig

config = SandboxConfig(
    project_root=".",
    profile="workspace",
    timeout_seconds=60,
    containment=Containment(project="read-only"),
    limits=Limits(memory_bytes=512 * 1024**2, processes=200),
)
with Sandbox(config) as box:  # on_ask=… would be asked where the verdict is ask
    verdict = box.check(["sudo", "id"])  # runs nothing
    print(verdict.decision, [finding.rule for finding in verdict.findings])

    result = box.run("sort notes.txt | head -1", shell=True)
    print(result.ok, result.stdout_text.strip(), result.enforcement)

    refused = box.run(["git", "push", "--force"])
    print(refused.exit_code, refused.denied, refused.reason.partition(":")[0])

    written = box.run(["touch", "new.txt"])  # the project is read-only here
    print(written.exit_code, [violation.kind for violation in written.violations])

    slow = box.run(["sleep", "60"], timeout_seconds=0.2)
    print(slow.exit_code, slow.timed_out)
