"""Decisions that stay with the user over MCP: approvals, project roots, time limits and the policy, which is read at each call."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_client_ways import Home, connected, drive, eventually, served, told
from mcp_types import ElicitResult, InputRequiredResult, ListRootsResult, Root
from observe import alive, unique_seconds
from sampling import sampled

from corral import Sandbox
from corral._lib.terminal import printable
from corral.integrations.mcp.elicitation import (
    LINE_CHARACTERS,
    MAX_OPEN,
    MAX_QUESTION,
    NOT_ASCII,
    SAID_NO,
    Questions,
)
from corral.model.call import Axis, Call, Decision, Finding, Verdict
from corral.model.grant import ANY_COMMAND, Grant
from corral.policy import loader as policy
from corral.policy.answers import approvals
from corral.policy.answers.family_grants import list_family_grants, store_family_grant
from corral.policy.answers.refusals import open_refusals

Connect = Callable[..., AbstractAsyncContextManager[Client]]
ASKED = {"shell": "git init -q . && git reset --hard"}


@pytest.fixture
def home(tmp_path: Any) -> Home:
    """A user's home directory beside a project."""
    return Home(tmp_path)


@pytest.fixture(params=["auto", "legacy"])
def connect(request: pytest.FixtureRequest, home: Home) -> Connect:
    """A function that connects a client by pipes, for each protocol version."""

    def make(*options: str, **callbacks: Any) -> AbstractAsyncContextManager[Client]:
        return connected(home, "stdio", request.param, options=options, **callbacks)

    return make


class Person:
    """A person that answers questions and records them."""

    def __init__(self, action: str, **content: Any) -> None:
        self.answer = ElicitResult(action=action, content=content or None)  # type: ignore[arg-type]
        self.asked: list[str] = []

    async def __call__(self, _: object, params: Any) -> ElicitResult:
        """Answer a question."""
        self.asked.append(params.message)
        return self.answer


def test_answer_once_lets_one_call_run(connect: Connect) -> None:
    person = Person("accept", answer="once")

    async def body() -> None:
        async with connect(elicitation_callback=person) as client:
            for _ in range(2):
                data = told(await client.call_tool("run_command", ASKED))
                assert (data["denied"], data["exit_code"], data["verdict"]["decision"]) == (False, 0, "ask")
            started = told(await client.call_tool("start_process", ASKED))
            assert started["process_id"]
            # An allowed call needs no question, and a refused call cannot be approved.
            assert told(await client.call_tool("run_command", {"argv": ["true"]}))["ok"]
            assert told(await client.call_tool("run_command", {"argv": ["sudo", "ls"]}))["denied"]
            assert told(await client.call_tool("check_command", ASKED))["decision"] == "ask"

    drive(body)
    assert len(person.asked) == len(set(person.asked)) == 3
    assert all("git init -q . && git reset --hard" in text for text in person.asked)


@pytest.fixture
def own_port(home: Home, port: int) -> int:
    """The port of a server at the name own.example, which no command may reach without a grant."""
    home.policy('[containment]\nhosts = ["own.example=127.0.0.1"]\n')
    return port


@pytest.mark.parametrize("answer", ["once", "no"])
def test_question_names_the_opening_that_one_call_gets(home: Home, own_port: int, answer: str) -> None:
    home.home.chmod(0o700)
    person = Person("accept", answer=answer)
    fetch = {"argv": ["curl", "-sS", f"http://own.example:{own_port}/"]}
    expected = (False, "reached", [f"own.example:{own_port}"]) if answer == "once" else (True, "", [])

    async def body() -> None:
        async with connected(home, "stdio", "auto", elicitation_callback=person) as client:
            for _ in range(2):
                data = told(await client.call_tool("run_command", fetch))
                assert (data["denied"], data["stdout"], [grant["target"] for grant in data["grants"]]) == expected

    drive(body)
    # After a no, the same question is not asked again for some time.
    assert len(person.asked) == (2 if answer == "once" else 1)
    assert all(f"own.example:{own_port}  (in the call)" in text for text in person.asked)


def test_cancelled_question_is_asked_again(home: Home, own_port: int) -> None:
    home.home.chmod(0o700)
    person = Person("cancel")
    fetch = {"argv": ["curl", "-sS", f"http://own.example:{own_port}/"]}

    async def body() -> None:
        async with connected(home, "stdio", "auto", elicitation_callback=person) as client:
            for _ in range(2):
                assert told(await client.call_tool("run_command", fetch))["denied"]

    drive(body)
    assert len(person.asked) == 2


@pytest.fixture
def beside() -> Iterator[Path]:
    """A directory outside the project. Not below /tmp, which is the sandbox's own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        yield Path(made).resolve()


def test_stored_yes_for_a_kind_of_command_needs_no_question(home: Home, beside: Path) -> None:
    home.home.chmod(0o700)
    for name in "ab":
        (beside / name).write_text(name)
    config = policy.load(str(home.project), home.env).config
    store_family_grant(ANY_COMMAND, [Grant("read", f"{beside}/a")], config, home.env, channel="terminal")

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            for argv, is_denied in ((["cat", f"{beside}/a"], False), (["cat", f"{beside}/b"], True)):
                data = told(await client.call_tool("run_command", {"argv": argv}))
                assert (data["denied"], data["stdout"]) == (is_denied, "" if is_denied else "a")

    drive(body)
    assert [grant.uses for grant in list_family_grants(home.env)] == [1]


def test_yes_of_another_terminal_lets_one_call_run(home: Home, own_port: int) -> None:
    home.home.chmod(0o700)
    fetch = {"argv": ["curl", "-sS", f"http://own.example:{own_port}/"]}

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            denied = told(await client.call_tool("run_command", fetch))
            (refusal,) = open_refusals(home.env)
            assert (denied["denied"], f"corral allow {refusal.id}" in json.dumps(denied)) == (True, True)
            config = policy.load(str(home.project), home.env).config
            approvals.approve(refusal.as_call.replace(cwd=None), refusal.verdict, config, home.env, once=True)
            for is_denied in (False, True):
                assert told(await client.call_tool("run_command", fetch))["denied"] is is_denied

    drive(body)


def test_any_other_answer_refuses(connect: Connect) -> None:
    someone = Person("accept")

    async def body() -> None:
        async with connect(elicitation_callback=someone) as client:
            for action, content in (("accept", {"answer": "no"}), ("decline", {}), ("cancel", {})):
                someone.answer = Person(action, **content).answer
                data = told(await client.call_tool("run_command", ASKED))
                assert data["denied"], action
                assert data["reason"].endswith(SAID_NO)
                assert told(await client.call_tool("start_process", ASKED))["denied"], action

    drive(body)
    assert len(someone.asked) == 6


def test_invalid_answer_runs_nothing(connect: Connect, home: Home) -> None:
    someone = Person("accept")

    async def body() -> None:
        async with connect(elicitation_callback=someone) as client:
            for content in ({}, {"answer": "always"}, {"answer": True}, {"answer": ""}):
                someone.answer = Person("accept", **content).answer
                result = await client.call_tool("run_command", {"shell": "touch ran; git reset --hard"})
                assert result.is_error, content

    drive(body)
    assert not (home.project / "ran").exists()
    assert len(someone.asked) == 4


def test_answer_counts_only_once_and_for_its_question(home: Home) -> None:
    async def body() -> None:
        async with connected(home, "stdio", "auto", elicitation_callback=Person("accept", answer="no")) as client:

            async def call(arguments: dict[str, Any], **more: Any) -> Any:
                return await client.session.call_tool("run_command", arguments, allow_input_required=True, **more)

            first = await call(ASKED)
            assert isinstance(first, InputRequiredResult)
            (key,) = first.input_requests or {}
            answer = {
                "input_responses": {key: ElicitResult(action="accept", content={"answer": "once"})},
                "request_state": first.request_state,
            }
            # The state belongs to one command, and is rejected for another.
            with pytest.raises(Exception, match="requestState"):
                await call({"shell": "git clean -fdx"}, **answer)
            # Without the state the answer belongs to no question.
            unasked = await call(ASKED, input_responses=answer["input_responses"])
            assert isinstance(unasked, InputRequiredResult)
            ran = await call(ASKED, **answer)
            assert told(ran)["denied"] is False
            again = await call(ASKED, **answer)
            assert isinstance(again, InputRequiredResult)

    drive(body)


def finding(text: str = "It would be lost.") -> Finding:
    return Finding(Axis.ARGV, "argv-test", Decision.ASK, text)


def question(call: Call, verdict: Verdict) -> str:
    return Questions().text(("/home/me/project", "", call, verdict))


def test_question_shows_the_whole_command_escaped() -> None:
    call = Call(("git", "reset", "--hard\x1b[2K\rls", "\u202etxt"), False, "sub\ndir")
    text = question(call, Verdict((finding("a\x1bb"),)))
    assert all(line.isprintable() for line in text.splitlines())
    assert [line for line in text.splitlines() if "git" in line] == [r"git reset '--hard\x1b[2K\rls' \u202etxt"]
    assert r"sub\ndir" in text
    assert NOT_ASCII in text
    assert NOT_ASCII not in question(Call(("git", "reset")), Verdict((finding(),)))


def test_too_long_command_is_not_asked_about() -> None:
    assert question(Call(("x" * MAX_QUESTION,)), Verdict((finding(),))) == ""


def test_questions_are_used_once_and_bounded() -> None:
    questions, verdict = Questions(), Verdict((finding(),))
    call = Call(("git", "reset"))
    key = ("/project", "", call, verdict)
    first = questions.text(key)
    assert questions.text(key) == first
    assert not questions.close(("/project", "", call, Verdict((finding("Another reason."),))))
    assert questions.close(key)
    assert not questions.close(key)
    assert questions.text(key) != first
    for number in range(MAX_OPEN):
        questions.text(("/project", "", Call((str(number),)), verdict))
    assert not questions.close(key)


def test_question_belongs_to_one_root_and_one_session() -> None:
    questions, call, verdict = Questions(), Call(("git", "reset")), Verdict((finding(),))
    keys = [(root, session, call, verdict) for root in ("/one", "/two") for session in ("", "a")]
    texts = [questions.text(key) for key in keys]
    assert len({*texts}) == 4
    assert ["/one" in text for text in texts] == [True, True, False, False]
    assert questions.close(keys[0])
    assert [questions.close(key) for key in keys] == [False, True, True, True]


@pytest.mark.parametrize(
    "word",
    [
        pytest.param("x\n```\n<!--", id="end of the block"),
        pytest.param("x````` <!-- ", id="a longer fence"),
        pytest.param("<details><summary>", id="markup"),
        pytest.param("[harmless](https://x.example)", id="a link"),
        pytest.param("x" + " " * 300 + "&& rm -rf .", id="beyond the edge"),
    ],
)
def test_markdown_hides_no_part_of_a_question(word: str) -> None:
    text = question(Call(f"git reset; {word}", shell=True), Verdict((finding(f"It has {word}."),)))
    lines, shown, fence = text.splitlines(), [], ""
    for line in lines:
        is_fence = bool(line) and not line.strip("`")
        if is_fence and not fence:
            fence = line
        elif is_fence and len(line) >= len(fence):
            fence = ""
        elif fence:
            shown.append(line)
            assert len(line) <= LINE_CHARACTERS
        else:
            assert word not in line
    assert not fence
    assert printable(f"git reset; {word}") in "".join(shown)


def roots(*paths: object) -> Callable[..., Any]:
    """Return a client's answer to a request for its roots."""

    async def answer(_: object) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=f"file://{path}") for path in paths])  # type: ignore[arg-type]

    return answer


def test_client_roots_choose_the_project_inside_the_bound(connect: Connect, home: Home) -> None:
    one, two = home.project / "one", home.project / "two words"
    one.mkdir()
    two.mkdir()
    quoted = str(two).replace(" ", "%20")

    async def body() -> None:
        async with connect(list_roots_callback=roots("/usr", one, quoted)) as client:
            place = told(await client.call_tool("run_command", {"argv": ["pwd"]}))
            other = told(await client.call_tool("run_command", {"argv": ["pwd"], "cwd": str(two)}))
            beside = told(await client.call_tool("run_command", {"argv": ["ls", str(two)]}))
        assert (place["stdout"], other["stdout"]) == (f"{one}\n", f"{two}\n")
        assert beside["denied"] or not beside["ok"]

    drive(body)


@pytest.mark.parametrize(
    "outside", sampled(["/usr", "/nonexistent/x", "{project}-evil", "{project}/../home", "{project}/link"], every=2)
)
def test_roots_outside_the_bound_run_nothing(home: Home, outside: str) -> None:
    path = outside.format(project=home.project)
    home.project.with_name("project-evil").mkdir()
    (home.project / "link").symlink_to(home.home)

    async def body() -> None:
        async with connected(home, "stdio", "auto", list_roots_callback=roots(path)) as client:
            result = await client.call_tool("run_command", {"argv": ["pwd"]})
        assert result.is_error
        assert "--root" in result.content[0].text

    drive(body)


def test_client_without_roots_uses_the_servers_root(connect: Connect, home: Home) -> None:
    async def body() -> None:
        async with connect(list_roots_callback=roots()) as client:
            assert told(await client.call_tool("run_command", {"argv": ["pwd"]}))["stdout"] == f"{home.project}\n"

    drive(body)


def test_policy_time_limit_cannot_be_exceeded(home: Home) -> None:
    home.policy("timeout_seconds = 0.5\n")

    async def body() -> None:
        seconds = unique_seconds()
        async with connected(home, "stdio", "auto") as client:
            for more in ({}, {"timeout_seconds": 600}):
                data = told(await client.call_tool("run_command", {"argv": ["sleep", seconds], **more}))
                assert data["timed_out"]
            started = told(
                await client.call_tool("start_process", {"argv": ["sleep", seconds], "timeout_seconds": 600})
            )
            asked = {"process_id": started["process_id"], "wait_seconds": 20}
            assert told(await client.call_tool("read_output", asked))["timed_out"]
            assert alive(seconds) == []

    drive(body)


def test_call_may_set_its_own_time_limit(home: Home) -> None:
    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            # A call has thirty seconds by default, a background process has no limit.
            data = told(await client.call_tool("run_command", {"argv": ["true"], "timeout_seconds": 3600}))
            assert data["ok"]

    drive(body)


def test_policy_change_applies_to_the_next_call(home: Home) -> None:
    async def body() -> None:
        seconds = unique_seconds()
        async with connected(home, "stdio", "auto") as client:
            assert told(await client.call_tool("run_command", {"argv": ["ls"]}))["ok"]
            started = told(await client.call_tool("start_process", {"argv": ["sleep", seconds]}))
            assert started["running"]
            home.policy('denylist = ["ls"]\n')
            data = told(await client.call_tool("run_command", {"argv": ["ls"]}))
            assert (data["denied"], data["verdict"]["findings"][0]["rule"]) == (True, "name-ls")
            # The process that ran under the old policy has ended.
            assert alive(seconds) == []
            policy = json.loads((await client.read_resource("corral://policy")).contents[0].text)
            assert "ls" in policy["denylist"]
            assert [file["level"] for file in policy["files"]] == ["owner"]
            home.policy("denylist = 3\n")
            broken = await client.call_tool("run_command", {"argv": ["true"]})
            assert broken.is_error
            assert "policy.toml:1:1" in broken.content[0].text
            assert '"error": ' in home.audit().splitlines()[-1]
            home.policy("")
            assert told(await client.call_tool("run_command", {"argv": ["ls"]}))["ok"]

    drive(body)


def test_untrusted_project_file_only_tightens(home: Home) -> None:
    (home.project / "corral.toml").write_text('denylist = ["tac"]\n[containment]\nnetwork = "on"\n')

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            assert told(await client.call_tool("run_command", {"argv": ["tac", "x"]}))["denied"]
            policy = json.loads((await client.read_resource("corral://policy")).contents[0].text)
            assert policy["containment"]["network"] == "off"
            assert [(s["key"], s["in_force"]) for s in policy["settings"]] == [
                ("denylist", True),
                ("containment.network", False),
            ]

    drive(body)


def test_texts_of_an_untrusted_rule_are_quoted(home: Home) -> None:
    rule = '[[rule]]\ncommand = "tac"\ndecision = "deny"\ndeny = ["tac x"]\n'
    (home.project / "corral.toml").write_text(f'{rule}reason = "fine"\ninstead = "Run evil"\n')

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            for tool in ("run_command", "check_command", "start_process"):
                result = await client.call_tool(tool, {"argv": ["tac", "x"]})
                for text in (json.dumps(told(result)), result.content[0].text):
                    said = text.replace('\\"', '"')
                    assert said.count("Run evil") == said.count('not trusted, says: "Run evil"') > 0
                    assert said.count("fine") == said.count('not trusted, says: "fine"') > 0

    drive(body)


def test_nothing_runs_that_cannot_be_logged(home: Home) -> None:
    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            assert told(await client.call_tool("run_command", {"argv": ["true"]}))["ok"]
            (home.state / "audit").chmod(0o777)
            for tool in ("run_command", "check_command", "start_process"):
                result = await client.call_tool(tool, {"argv": ["touch", "ran"]})
                assert result.is_error
                assert "audit log" in result.content[0].text

    drive(body)
    assert not (home.project / "ran").exists()


def test_policy_can_accept_a_missing_log(home: Home) -> None:
    home.policy("[audit]\nrequired = false\n")
    home.state.mkdir(parents=True)
    (home.state / "audit").write_text("in the way")

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            assert told(await client.call_tool("run_command", {"argv": ["true"]}))["ok"]
            assert told(await client.call_tool("check_command", {"argv": ["true"]}))["decision"] == "allow"

    drive(body)


def test_approval_from_a_terminal_needs_no_question(home: Home) -> None:
    home.home.chmod(0o700)
    call = Call((ASKED["shell"],), True)
    found = policy.load(str(home.project), home.env)
    with Sandbox(found.config) as box:
        verdict = box.check(call.argv, shell=True)
    approvals.approve(call, verdict, found.config, home.env)

    async def body() -> None:
        async with connected(home, "stdio", "auto") as client:
            assert told(await client.call_tool("run_command", ASKED))["exit_code"] == 0
            other = {"shell": f"{ASKED['shell']} HEAD"}
            assert told(await client.call_tool("run_command", other))["denied"]
            assert told(await client.call_tool("run_command", {**ASKED, "cwd": ".git"}))["denied"]

    drive(body)


def test_deleted_http_session_ends_only_its_processes(home: Home) -> None:
    async def body() -> None:
        mine, others = unique_seconds(), unique_seconds()
        with served(home) as server:
            async with connected(home, "http", "legacy", server) as stays:
                await stays.call_tool("start_process", {"argv": ["sleep", others]})
                async with connected(home, "http", "legacy", server) as goes:
                    await goes.call_tool("start_process", {"argv": ["sleep", mine]})
                    await eventually(lambda: (len(alive(mine)), len(alive(others))) == (1, 1))
                await eventually(lambda: alive(mine) == [])
                assert len(alive(others)) == 1
        await eventually(lambda: alive(others) == [])

    drive(body)


def test_sigterm_ends_all_processes_of_the_server(home: Home) -> None:
    async def body() -> None:
        seconds = unique_seconds()
        with served(home) as server:
            async with connected(home, "http", "auto", server) as client, anyio.create_task_group() as tasks:
                await client.call_tool("start_process", {"argv": ["sleep", seconds]})
                await eventually(lambda: len(alive(seconds)) == 1)
                server.process.terminate()
                tasks.cancel_scope.cancel()
            await eventually(lambda: alive(seconds) == [])

    drive(body)
