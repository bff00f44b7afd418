"""A model over HTTP that wants to write a file once, and is done when it has the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final


class ScriptedModel:
    """What a model was asked, and where it listens: as those of Anthropic, OpenAI and Google, by the path."""

    def __init__(self, url: str, asked: list[dict[str, Any]]) -> None:
        self.url = url
        self.asked = asked

    @property
    def last_asked(self) -> str:
        """The last request, with the result of the tool in it."""
        return json.dumps(self.asked[-1])


@contextmanager
def scripted_model(path: str) -> Iterator[ScriptedModel]:
    """A model that writes this file."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self._answer(b"{}", "application/json")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            asked.append(body)
            events = _API[next(each for each in _API if each in self.path)](body, path)
            lines = (f"{_name(each)}data: {json.dumps(each)}\n\n" for each in events)
            self._answer("".join(lines).encode(), "text/event-stream")

        def _answer(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ScriptedModel(f"http://127.0.0.1:{server.server_address[1]}", asked)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _name(event: dict[str, Any]) -> str:
    """Return the line with the type of an event, where there are types."""
    return f"event: {event['type']}\n" if "type" in event else ""


def _of_anthropic(body: dict[str, Any], path: str) -> list[dict[str, Any]]:
    has_tool = any(tool.get("name") == "Write" for tool in body.get("tools", []))
    writes = has_tool and "tool_result" not in json.dumps(body.get("messages", [])[-1:])
    block: dict[str, Any] = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "text_delta", "text": "done"}
    if writes:
        block = {"type": "tool_use", "id": "toolu_1", "name": "Write", "input": {}}
        given = json.dumps({"file_path": path, "content": "text"})
        delta = {"type": "input_json_delta", "partial_json": given}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    ending = {"stop_reason": "tool_use" if writes else "end_turn", "stop_sequence": None}
    begun = {**message, "model": body.get("model"), "stop_reason": None, "usage": usage}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": usage},
        {"type": "message_stop"},
    ]


def _of_openai(body: dict[str, Any], path: str) -> list[dict[str, Any]]:
    item: dict[str, Any] = {"type": "message", "role": "assistant", "id": "m"}
    item["content"] = [{"type": "output_text", "text": "done"}]
    if "call_1" not in json.dumps(body.get("input", [])):
        names = [tool.get("name", "") for tool in body.get("tools", [])]
        shell = next(name for name in names if "shell" in name or "exec" in name)
        patch = f"*** Begin Patch\n*** Add File: {path}\n+text\n*** End Patch\n"
        given = {"cmd": f"apply_patch <<'EOF'\n{patch}EOF"}
        item = {"type": "function_call", "id": "i", "call_id": "call_1", "name": shell}
        item["arguments"] = json.dumps(given)
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {"id": "r", "usage": usage}},
    ]


def _of_google(body: dict[str, Any], path: str) -> list[dict[str, Any]]:
    part: dict[str, Any] = {"text": "done"}
    has_tool = "write_file" in json.dumps(body.get("tools", []))
    if has_tool and "functionResponse" not in json.dumps(body.get("contents", [])[-1:]):
        part = {"functionCall": {"name": "write_file", "args": {"file_path": path, "content": "text"}}}
    content = {"role": "model", "parts": [part]}
    return [{"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}]


_API: Final[dict[str, Callable[[dict[str, Any], str], list[dict[str, Any]]]]] = {
    "/messages": _of_anthropic,
    "/responses": _of_openai,
    "GenerateContent": _of_google,
}
"""How a request is answered, by a part of its path."""
