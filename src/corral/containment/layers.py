"""Collects the containment layers, finds out by trying which of them this machine has, and enters them.

Nothing weakens silently: every result names the layers that are wanted and missing.
"""

from __future__ import annotations

import os

from corral.containment import kernel
from corral.containment.kernel.layer import TREE
from corral.containment.kernel.mounts import verify_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from corral.containment.kernel.layer import Layer
    from corral.containment.plan import WardenPlan
    from corral.policy.config import SandboxConfig


def _find() -> Iterator[Layer]:
    """Yield the layers that the modules of `kernel` list, so that a new layer needs an edit in one file only."""
    for file in os.listdir(os.path.dirname(kernel.__file__)):
        if file.endswith(".py") and file != "__init__.py":
            module = __import__(f"{kernel.__name__}.{file[:-3]}", fromlist=("LAYERS",))
            yield from getattr(module, "LAYERS", ())


LAYERS: dict[str, Layer] = {layer.name: layer for layer in sorted(_find(), key=lambda layer: layer.order)}
_BY_STAGE = sorted(LAYERS.values(), key=lambda layer: layer.stage)
if not LAYERS or [layer.order for layer in LAYERS.values()] != list(range(len(LAYERS))):
    # Without this check, a missing file would silently leave its layer out.
    raise ImportError(
        f"corral's installation is incomplete: only the layers {', '.join(LAYERS)} are there. Reinstall it"
    )


def wanted(network: object) -> tuple[str, ...]:
    """Return the layers that a config with this network setting asks for."""
    return tuple(name for name, layer in LAYERS.items() if not (layer.unwanted_with_network and network == "on"))


def downgrade(wanted: Collection[str], available: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return how much holds, `full`, `partial` or `none`, and which of the wanted layers are missing."""
    usable = {name for name in wanted if _stands(name, available)}
    missing = tuple(name for name in LAYERS if name in wanted and name not in usable)
    if not any(LAYERS[name].confines for name in usable):
        return "none", missing
    return ("partial" if missing else "full"), missing


def _stands(name: str, available: Collection[str]) -> bool:
    return name in available and all(_stands(below, available) for below in LAYERS[name].needs)


def of_stage(stage: int, plan: WardenPlan) -> Iterator[Layer]:
    """Yield the layers of one stage that hold on this machine."""
    return (layer for layer in _BY_STAGE if layer.stage == stage and layer.name in plan.layers)


def confine(plan: WardenPlan) -> None:
    """Enter all the layers that a warden enters itself. No layer can be left again."""
    in_bubblewrap = plan.backend == "bubblewrap"
    if in_bubblewrap:
        # Bubblewrap follows links, so check that it bound the right files.
        for path in (plan.host.project, *plan.expected):
            verify_path(*path)
    for layer in _BY_STAGE:
        is_ours = layer.enters_in_bubblewrap if in_bubblewrap else layer.stage >= TREE
        if is_ours and layer.name in plan.layers:
            layer.enter(plan)


def probe(stage: str) -> set[str]:
    """Return the layers that hold on this machine."""
    return {name for name, refusal in attempt(stage).items() if refusal is None}


def attempt(stage: str) -> dict[str, OSError | None]:
    """Try every layer as it will be used, in a child; return the kernel's error for each. `stage` is an empty directory."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            _try_all(stage, writer)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as file:
        answers = [line.rstrip("\n").split(" ", 2) for line in file]
    os.waitpid(child, 0)
    found = {name: OSError(int(number), words) if words else None for name, number, words in answers}
    untried = {name: layer.probe and OSError(0, "it was not tried") for name, layer in LAYERS.items()}
    return untried | found


def _try_all(stage: str, writer: int) -> None:
    held: set[str] = set()
    for layer in LAYERS.values():
        if layer.probe is None:
            held.add(layer.name)
        elif held.issuperset(layer.needs):
            # `proc` is the last that can fork: with the end of that process, the pid namespace of this one is spent.
            trial = _trial(layer.name, layer.probe, stage, writer)
            if _in_child(trial) if layer.probe_forks else trial():
                held.add(layer.name)


def _trial(name: str, probe: Callable[[str], None], stage: str, writer: int) -> Callable[[], bool]:
    """Return a function that runs a probe and writes its result: the name, and the errno and words of an error."""

    def trial() -> bool:
        words, number = "", 0
        try:
            probe(stage)
        except OSError as error:
            words, number = f"{error.strerror}{f': {error.filename}' if error.filename else ''}", error.errno or 0
        os.write(writer, f"{name} {number} {words}\n".encode("utf-8", "replace"))
        return not words

    return trial


def _in_child(trial: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if trial() else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def unmet_requirement(config: SandboxConfig, backend: str, enforcement: str, missing: tuple[str, ...]) -> str:
    """Return which containment the config requires that this machine lacks, and what to do; or an empty string."""
    containment = config.containment
    more = "Set containment.accept_partial = true in your own policy to run with less"
    protects_files = not {"mount", "landlock"} <= {*missing}
    if containment.project == "read-only" and (backend == "none" or "mount" in missing):
        wanted, less = "containment.project 'read-only'", "leave it 'read-write'"
        more = "Use a machine that has the layer mount"
    elif containment.settings and enforcement == "partial" and "mount" in missing:
        wanted, less = "an agent inside the sandbox", "run the agent outside, with corral's hook"
        more = "Use a machine that has the layer mount"
    elif enforcement == "full" or (containment.accept_partial and enforcement == "partial" and protects_files):
        return ""
    elif config.rules.needs_containment:
        wanted, less = f"profile {config.rules.name}", "use profile 'strict', which does not rely on it"
    elif containment.backend in ("warden", "bubblewrap"):
        wanted, less = f"containment.backend '{containment.backend}'", "choose 'auto', which accepts fewer layers"
    else:
        return ""
    lacking = "; ".join(f"{name} ({LAYERS[name].keeps})" for name in missing)
    if containment.accept_partial and enforcement == "partial" and not protects_files:
        more = "Neither mounts nor Landlock protect files here, which accept_partial does not accept"
    if backend == "none":
        lacking, more = "containment.backend is 'none'", "Choose containment.backend 'auto'"
    elif containment.backend == "auto" and containment.scratch == "project" and "mount" in missing:
        # Not tried automatically, since scratch does not last with it.
        more = f"Try containment.backend 'bubblewrap', which may be allowed more. {more}"
    return f"{wanted} needs the kernel to contain the command, and this machine lacks: {lacking}. {more}, or {less}"
