"""Known mistakes of the guard. A case that starts to pass fails the run, so the list stays true."""

from __future__ import annotations

import pytest

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

STRICT = SandboxConfig(project_root="/usr/share")
WORKSPACE = SandboxConfig(project_root="/usr/share", profile="workspace")

ALLOWED_BUT_DANGEROUS = {
    "a program that no row knows and that runs its argument": "frobnicate --exec id",
    "a project script with commands that the guard would refuse": "./deploy.sh",
    "an expression in the name of a tag of exiftool": "exiftool '-title<${make;system(1)}' a.jpg",
    "a patch whose files only it names": "patch -p0 < fix.patch",
}
REFUSED_BUT_HARMLESS = {
    "a name that a variable holds from outside": '"$BIN" --version',
    "an extended glob beside quotes": "echo 'x'; ls !(a|b)",
    "a name that is true or false": "x=false; if [ -f y ]; then x=true; fi; if $x; then ls; fi",
    "a command in an array that a branch extends": 'c=(make); if [ -f y ]; then c+=(-k); fi; "${c[@]}"',
}


@pytest.mark.xfail(reason="known: strict allows it", strict=True)
@pytest.mark.parametrize("text", [pytest.param(t, id=name) for name, t in ALLOWED_BUT_DANGEROUS.items()])
def test_known_danger_is_refused(text: str) -> None:
    assert not vet(Call(text, shell=True), STRICT).allowed


@pytest.mark.xfail(reason="known: workspace refuses it", strict=True)
@pytest.mark.parametrize("text", [pytest.param(t, id=name) for name, t in REFUSED_BUT_HARMLESS.items()])
def test_known_harmless_call_is_allowed(text: str) -> None:
    assert vet(Call(text, shell=True), WORKSPACE).allowed
