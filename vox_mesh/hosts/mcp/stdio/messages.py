"""Messages of MCP as the pipe sees them: which era they are of, and the headers that they need over HTTP."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

VERSION: Final = "MCP-Protocol-Version"
SESSION: Final = "Mcp-Session-Id"
INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
CANCELLED: Final = "notifications/cancelled"

_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_NAMES: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that each of these methods names in a header."""

_PLAIN: Final = re.compile(r"(?!\s)[\x20-\x7e]*(?<!\s)")
_ENCODED: Final = re.compile(r"=\?base64\?.*\?=")
_INVALID: Final = -32600
_FAILED: Final = -32000


@dataclass(frozen=True)
class PipedMessage:
    """A message of the host. One with an id and a method is a request, which gets an answer."""

    line: bytes
    method: str | None
    request_id: Any
    params: dict[str, Any]

    @classmethod
    def read(cls, line: bytes) -> PipedMessage | None:
        """Return the message of a line; `None` if it is none."""
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(document, dict):
            return None
        method, params = document.get("method"), document.get("params")
        return cls(
            line.strip(),
            method if isinstance(method, str) else None,
            document.get("id"),
            params if isinstance(params, dict) else {},
        )

    @property
    def is_request(self) -> bool:
        """Whether it gets an answer."""
        return self.method is not None and self.request_id is not None

    @property
    def stateless_version(self) -> str | None:
        """The revision of the protocol in the message itself; `None` if a session has it."""
        meta = self.params.get("_meta")
        found = meta.get(_VERSION_KEY) if isinstance(meta, dict) else None
        return found if isinstance(found, str) else None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that repeat parts of a message without a session."""
        version = self.stateless_version
        return {} if version is None else self.headers_at(version)

    def headers_at(self, version: str) -> dict[str, str]:
        """Return the headers of a message without a session, at a revision of the protocol."""
        if self.method is None:
            return {}
        headers = {VERSION: header_text(version), "Mcp-Method": header_text(self.method)}
        name = self.params.get(_NAMES.get(self.method, ""))
        return {**headers, "Mcp-Name": header_text(name)} if isinstance(name, str) else headers


def header_text(text: str) -> str:
    """Return a text as the value of a header: in base64, if a header can't carry it."""
    if _PLAIN.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='replace')).decode()}?="


def error_reply(request_id: Any, text: str, *, is_invalid: bool = False) -> bytes:
    """Return the answer to a request that has failed on its way."""
    error = {"code": _INVALID if is_invalid else _FAILED, "message": text}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})
