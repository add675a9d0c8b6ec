"""A fake model that follows a script, in the four protocols that hosts use, and a driver that runs a host against it.

As a program it runs in a network namespace that has only loopback: `unshare --net python scripted.py PLAN REPORT`, two files.
The plan names the host's command and environment, with {url} for the model's address and {port} for its port, the tool calls of the script,
and servers that run beside the model. The report has the results of the calls; it is written again after each of them.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41
DONE = "The script is at its end."
WAIT_SECONDS = 120  # for a file that the test makes, or a server that starts


def until(is_true: Callable[[], object]) -> None:
    """Wait until something is true, but not for ever."""
    give_up_at = time.monotonic() + WAIT_SECONDS
    while not is_true() and time.monotonic() < give_up_at:
        time.sleep(0.01)


class Model(ThreadingHTTPServer):
    """Answers the n-th turn with the n-th call of the script, and records the host's requests."""

    daemon_threads = True

    def __init__(self, calls: list[dict[str, Any]], report: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls = calls
        self.report = report
        self.results: list[str] = []
        self.requests: list[str] = []
        self.lock = threading.Lock()

    def turn(self, results: list[str], tools: list[str]) -> dict[str, Any] | None:
        """Return the call to make now. Return None for a request without tools: a host sends one to get a title."""
        with self.lock:
            if len(results) > len(self.results):
                self.results = results
                self.write_report()
            if not tools or len(results) >= len(self.calls):
                return None
            call = self.calls[len(results)]
        if "after" in call:
            until(lambda: os.path.exists(call["after"]))
        return call

    def write_report(self, **more: object) -> None:
        """Replace the report, so that a reader never sees a part of it."""
        with open(f"{self.report}.new", "w", encoding="utf-8") as written:
            json.dump({**more, "results": self.results, "requests": self.requests}, written)
        os.replace(f"{self.report}.new", self.report)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self.server.requests.append(f"GET {self.path}")
        self.reply(b'{"object": "list", "data": [], "models": []}', "application/json")

    def do_HEAD(self) -> None:
        self.reply(b"", "application/json")

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = self.chunks()
        self.server.requests.append(f"POST {self.path}")
        try:
            body = json.loads(data)
        except ValueError:
            body = {}
        path = self.path.partition("?")[0]
        if path.endswith("/messages"):
            answer = anthropic(self.server, body)
        elif path.endswith("/responses"):
            answer = responses(self.server, body)
        elif path.endswith("/chat/completions"):
            answer = chat(self.server, body)
        elif path.endswith("enerateContent"):
            answer = gemini(self.server, body)
            if not path.endswith("streamGenerateContent"):
                return self.reply(json.dumps(answer[0][1]).encode(), "application/json")
        else:
            return self.reply(b'{"input_tokens": 1, "totalTokens": 1}', "application/json")
        if not body.get("stream") and path.endswith(("/messages", "/chat/completions")):
            whole = anthropic_whole(answer) if path.endswith("/messages") else chat_whole(answer)
            return self.reply(json.dumps(whole).encode(), "application/json")
        text = "".join((f"event: {name}\n" if name else "") + f"data: {dumped(piece)}\n\n" for name, piece in answer)
        return self.reply(text.encode(), "text/event-stream")

    def chunks(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def reply(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


Events = list[tuple[str, Any]]


def dumped(piece: Any) -> str:
    return piece if isinstance(piece, str) else json.dumps(piece)


def flat(value: object) -> str:
    """Return the whole text of a tool's result."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(map(flat, value))
    return "\n".join(map(flat, value.values())) if isinstance(value, dict) else ""


def anthropic(model: Model, body: dict[str, Any]) -> Events:
    results = [
        flat(block.get("content"))
        for message in body.get("messages", ())
        if isinstance(message.get("content"), list)
        for block in message["content"]
        if block.get("type") == "tool_result"
    ]
    call = model.turn(results, [tool.get("name", "") for tool in body.get("tools") or ()])
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model", ""), "content": []}
    events: Events = [
        ("message_start", {"type": "message_start", "message": {**start, "stop_reason": None, "usage": usage}})
    ]
    if call is None:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": DONE}
    else:
        block = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": call["tool"], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call["input"])}
    events += [
        ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}),
        ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
    ]
    reason = "end_turn" if call is None else "tool_use"
    ending = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    return [*events, ("message_delta", ending), ("message_stop", {"type": "message_stop"})]


def anthropic_whole(events: Events) -> dict[str, Any]:
    message: dict[str, Any] = dict(events[0][1]["message"])
    block, delta = dict(events[1][1]["content_block"]), events[2][1]["delta"]
    if block["type"] == "text":
        block["text"] = delta["text"]
    else:
        block["input"] = json.loads(delta["partial_json"])
    return {**message, "content": [block], "stop_reason": events[-2][1]["delta"]["stop_reason"]}


def responses(model: Model, body: dict[str, Any]) -> Events:
    items = body.get("input")
    results = [
        flat(item.get("output"))
        for item in (items if isinstance(items, list) else ())
        if item.get("type") in ("function_call_output", "custom_tool_call_output")
    ]
    call = model.turn(results, [tool.get("name") or tool.get("type", "") for tool in body.get("tools") or ()])
    if call is None:
        content = [{"type": "output_text", "text": DONE, "annotations": []}]
        item: dict[str, Any] = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
        item["content"] = content
    elif "text" in call:
        item = {
            "type": "custom_tool_call",
            "id": f"f{len(results)}",
            "call_id": f"c{len(results)}",
            "name": call["tool"],
        }
        item |= {"input": call["text"], "status": "completed"}
    else:
        item = {"type": "function_call", "id": f"f{len(results)}", "call_id": f"c{len(results)}", "name": call["tool"]}
        item |= {"arguments": json.dumps(call["input"]), "status": "completed"}
        item |= {"namespace": call["namespace"]} if "namespace" in call else {}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    answer = {"id": f"r{len(results)}", "object": "response", "created_at": 1, "model": body.get("model", "")}
    events = [
        {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**answer, "status": "completed", "output": [item], "usage": usage}},
    ]
    return [(event["type"], {**event, "sequence_number": at}) for at, event in enumerate(events)]


def chat(model: Model, body: dict[str, Any]) -> Events:
    results = [flat(message.get("content")) for message in body.get("messages", ()) if message.get("role") == "tool"]
    call = model.turn(results, [tool.get("function", {}).get("name", "") for tool in body.get("tools") or ()])
    delta: dict[str, Any] = {"role": "assistant", "content": DONE}
    if call is not None:
        function = {"name": call["tool"], "arguments": json.dumps(call["input"])}
        tool = {"index": 0, "id": f"call_{len(results)}", "type": "function", "function": function}
        delta = {"role": "assistant", "content": None, "tool_calls": [tool]}
    base = {"id": f"x{len(results)}", "object": "chat.completion.chunk", "created": 1, "model": body.get("model", "")}
    ending = "stop" if call is None else "tool_calls"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return [
        ("", {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        ("", {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": ending}], "usage": usage}),
        ("", "[DONE]"),
    ]


def chat_whole(events: Events) -> dict[str, Any]:
    first, last = events[0][1], events[1][1]
    choice = {"index": 0, "message": first["choices"][0]["delta"], "finish_reason": last["choices"][0]["finish_reason"]}
    return {**first, "object": "chat.completion", "choices": [choice], "usage": last["usage"]}


def gemini(model: Model, body: dict[str, Any]) -> Events:
    parts = [part for content in body.get("contents", ()) for part in content.get("parts", ())]
    results = [flat(part["functionResponse"].get("response")) for part in parts if "functionResponse" in part]
    tools = [f.get("name", "") for tool in body.get("tools") or () for f in tool.get("functionDeclarations", ())]
    call = model.turn(results, tools)
    part = {"text": DONE} if call is None else {"functionCall": {"name": call["tool"], "args": call["input"]}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    counts = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return [("", {"candidates": [candidate], "usageMetadata": counts, "modelVersion": "scripted"})]


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run_host(words: list[str], env: dict[str, str], plan: dict[str, Any]) -> tuple[int, bytes, bytes]:
    """Run the host, captured or on this program's own terminal. Return its exit code and output."""
    streams: dict[str, Any] = {} if plan["on_terminal"] else {"stdin": subprocess.DEVNULL, "capture_output": True}
    try:
        done = subprocess.run(words, check=False, cwd=plan["cwd"], env=env, timeout=plan["seconds"], **streams)
    except subprocess.TimeoutExpired as late:
        return -1, late.stdout or b"", late.stderr or b""
    return done.returncode, done.stdout or b"", done.stderr or b""


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    raise_loopback()
    model = Model(plan["calls"], sys.argv[2])
    threading.Thread(target=model.serve_forever, daemon=True).start()
    port = str(model.server_address[1])
    url = f"http://127.0.0.1:{port}"

    def placed(text: str) -> str:
        return text.replace("{url}", url).replace("{port}", port)

    for name, text in plan["files"].items():
        with open(name, "w", encoding="utf-8") as written:
            written.write(placed(text))
    environment = {name: placed(value) for name, value in plan["env"].items()}
    servers = [subprocess.Popen(words, stderr=subprocess.DEVNULL) for words, _ in plan["servers"]]
    try:
        for _, at in plan["servers"]:
            until(lambda at=at: answers(at))  # type: ignore[misc]
        status, out, err = run_host([placed(word) for word in plan["command"]], environment, plan)
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    model.write_report(status=status, stdout=out.decode("utf-8", "replace"), stderr=err.decode("utf-8", "replace"))


if __name__ == "__main__":
    main()
