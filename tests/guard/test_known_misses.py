"""What the guard is known to get wrong. Each is marked to fail loudly when it starts to pass, so that the list stays true."""

from __future__ import annotations

import pytest

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

STRICT = SandboxConfig(project_root="/usr/share")
WORKSPACE = SandboxConfig(project_root="/usr/share", profile="workspace")

ALLOWED_BUT_DANGEROUS = {
    "a program that no row knows and that runs its argument": "frobnicate --exec id",
    "a project script that does what the guard would refuse": "./deploy.sh",
    "a test command of zip inside a cluster": "zip -9TT 'sh -c id' a.zip b",
    "an expression in the name of a tag of exiftool": "exiftool '-title<${make;system(1)}' a.jpg",
    "several outputs in one word of ffmpeg": "ffmpeg -i a.mp4 -f tee 'b.mp4|../c.mp4'",
    "arithmetic on text that a command computes": "x=$(printf 'a[\\x24(rm x)]'); ((x))",
    "a patch whose files only it names": "patch -p0 < fix.patch",
    "a test that the same call wrote": "echo x > test_a.py; pytest",
    "a link whose target is relative to the link": "cd src && ln -s .. ../l",
}
REFUSED_BUT_HARMLESS = {
    "a name that a variable holds from outside": '"$BIN" --version',
    "an extended glob beside quotes": "echo 'x'; ls !(a|b)",
    "a name that is true or false": "x=false; if [ -f y ]; then x=true; fi; if $x; then ls; fi",
    "a command in an array that a branch extends": 'c=(make); if [ -f y ]; then c+=(-k); fi; "${c[@]}"',
}


@pytest.mark.xfail(reason="a known hole of strict", strict=True)
@pytest.mark.parametrize("text", [pytest.param(t, id=name) for name, t in ALLOWED_BUT_DANGEROUS.items()])
def test_a_known_hole(text: str) -> None:
    assert not vet(Call(text, shell=True), STRICT).allowed


@pytest.mark.xfail(reason="a known false refusal of workspace", strict=True)
@pytest.mark.parametrize("text", [pytest.param(t, id=name) for name, t in REFUSED_BUT_HARMLESS.items()])
def test_a_known_false_refusal(text: str) -> None:
    assert vet(Call(text, shell=True), WORKSPACE).allowed
