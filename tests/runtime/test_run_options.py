"""Tests the argument types that run() accepts and rejects."""

import asyncio
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from corral import Sandbox
from corral.runtime.run_options import RunOptions, call_of

Run = Callable[..., Any]


def _map(box: Sandbox, argv: object, **more: Any) -> Any:
    with box.map([{"argv": argv, **more}]) as results:
        return next(results)


WAYS: dict[str, Run] = {
    "run": lambda box, *words, **more: box.run(*words, **more),
    "arun": lambda box, *words, **more: asyncio.run(box.arun(*words, **more)),
    "start": lambda box, *words, **more: box.start(*words, **more).wait(),
    "astart": lambda box, *words, **more: asyncio.run(_astart(box, *words, **more)),
    "map": _map,
}


async def _astart(box: Sandbox, *words: Any, **more: Any) -> Any:
    return await (await box.astart(*words, **more))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Run:
    """Every method that runs a call."""
    return WAYS[request.param]


@pytest.mark.parametrize(
    "given", ["grüße\n", "grüße\n".encode(), bytearray("grüße\n".encode()), memoryview("grüße\n".encode())]
)
def test_input_is_text_or_bytes(given: Any, way: Run, box: Sandbox) -> None:
    assert way(box, ["cat"], stdin=given).stdout_text == "grüße\n"


def test_argv_may_contain_paths(way: Run, project: Path, box: Sandbox) -> None:
    (project / "src").mkdir()
    (project / "src" / "file").touch()
    result = way(box, ["ls", Path("src")])
    assert (result.stdout, result.argv) == (b"file\n", ("ls", "src"))
    assert way(box, ["ls", PurePosixPath(project) / "src"]).stdout == b"file\n"


def test_single_path_is_a_command(box: Sandbox) -> None:
    assert box.run(Path("/bin/true")).ok
    assert box.check(Path("/bin/true")).allowed


def test_pathlike_is_read_once(box: Sandbox) -> None:
    class Changing:
        """A path that changes on each access."""

        def __init__(self) -> None:
            self.answers = ["src", "/etc/shadow"]

        def __fspath__(self) -> str:
            return self.answers.pop(0)

    assert box.check(["cat", Path("/etc/shadow")]).decision == box.check(["cat", "/etc/shadow"]).decision
    assert box.run(["echo", Changing()]).stdout == b"src\n"


@pytest.mark.parametrize("given", [3, object(), ["x"], {"a": 1}], ids=["number", "object", "list", "mapping"])
def test_stdin_of_another_type_raises_type_error(given: object, way: Run, box: Sandbox) -> None:
    with pytest.raises(TypeError, match="stdin must be bytes or str, not"):
        way(box, ["cat"], stdin=given)


@pytest.mark.parametrize("seconds", [0, 0.0, -1, float("nan"), float("inf"), 10**12])
def test_nonpositive_timeout_raises_value_error(seconds: float, way: Run, box: Sandbox) -> None:
    with pytest.raises(ValueError, match=r"timeout_seconds must be above 0 .* Leave it out .*timeout_seconds=None"):
        way(box, ["true"], timeout_seconds=seconds)


@pytest.mark.parametrize("seconds", ["1", True, [1]])
def test_timeout_of_another_type_raises_type_error(seconds: object, way: Run, box: Sandbox) -> None:
    with pytest.raises(TypeError, match="timeout_seconds must be a number, not"):
        way(box, ["true"], timeout_seconds=seconds)


def test_argument_error_does_not_affect_later_runs(box: Sandbox) -> None:
    with pytest.raises(TypeError):
        box.run(["cat"], stdin=3)  # type: ignore[arg-type]
    assert box.run(["cat"], stdin="x").stdout == b"x"


def test_timeout_hint_names_the_limit(way: Run, open_box: Sandbox) -> None:
    result = way(open_box, ["sleep", "1000"], timeout_seconds=0.05)
    assert result.timed_out
    assert result.hint.startswith("Timed out after 0.")
    assert result.hint.endswith(" seconds. Set timeout_seconds for another limit.")


def test_start_failure_is_the_hint(project: Path, open_box: Sandbox) -> None:
    (project / "plain").write_text("x")
    for argv, exit_code in (["no-such-program"], 127), (["./plain"], 126):
        result = open_box.run(argv)
        assert (result.exit_code, result.denied) == (exit_code, False)
        assert result.stderr_text == f"corral: {result.hint}\n"
        assert result.hint != ""


def test_call_of_copies_words_as_plain_strings() -> None:
    call = call_of(["a", Path("b")], False, Path("c"), None)
    assert (call.argv, call.cwd) == (("a", "b"), "c")
    assert (RunOptions(call), RunOptions(call, timeout_seconds=2).timeout_seconds) == (
        RunOptions(call, None, None),
        2.0,
    )


def test_refusal_of_a_number_names_the_argument(box: Sandbox) -> None:
    result = box.run(["ls", 3])  # type: ignore[list-item]
    assert result.reason.endswith("Argument 1 is int, not a string. Pass a list of strings.")
