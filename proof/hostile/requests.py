"""Hostile requests, for every route of a node's service. Their bodies are made from its OpenAPI document."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson

from proof.hostile.values import ATTACKER, FORGED, HostileValues

Route = tuple[str, str]
"""A method and a path, with names in braces."""

NO_FLAW: Final = ""
"""A request that may be valid: it must not make the node fail, but it may be obeyed."""

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
_PAGES: Final = frozenset({"/ui", "/ui/{view}", "/ui/static/{name}"})
"""The files of the console, which everyone may read: who has not signed in sees a page to do so."""

DELIVER: Final = "/v1/a2a/deliver"

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "EVIL")
_CREDENTIALS: Final = ("none", "guess", "read", "metrics", "full", "full", "full")
_BULK: Final = frozenset({"/v1/jobs/abort", "/v1/jobs/retry"})
"""Without a selection these act on all jobs, also of others: they are asked what they would do."""

_ODD_HEADERS: Final[Sequence[Mapping[str, str]]] = (
    {},
    {},
    {"Content-Type": "application/xml"},
    {"Content-Encoding": "gzip"},
    {"Expect": "what"},
    {"X-Forwarded-For": "10.0.0.1"},
    {"Accept": "x" * 4_000},
    {"If-None-Match": '","' * 500},
    {"Last-Event-ID": "9" * 30},
    {"traceparent": "00-" + "0" * 32 + "-" + "f" * 16 + "-zz"},
    {"Cookie": "a=" + "b" * 8_000},
    {"Vox-Mesh-Node": "é\x7f".encode().decode("latin-1")},
    {"Range": "bytes=0-18446744073709551616"},
)


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """A request, and why it must be refused."""

    method: str
    route: str
    target: str
    """The path and query that are sent."""
    credential: str
    """`none`, `guess`, `read`, `metrics`, `full`, or `relay`."""
    flaw: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class RequestMaker:
    """Draws requests from a seed."""

    def __init__(
        self, routes: Sequence[Route], document: dict[str, Any], nodes: Sequence[str], rng: random.Random
    ) -> None:
        self._routes = routes
        self._paths: dict[str, dict[str, Any]] = document["paths"]
        self._schemas: dict[str, Any] = document["components"]["schemas"]
        self._nodes = nodes
        self._rng = rng
        self._values = HostileValues(rng)

    def rounds(self) -> Iterator[HostileRequest]:
        """Yield requests without end, in rounds of passes.

        Each pass has every route once, first one of each path, so that a short run tries all paths. Each
        round has every route with every kind of credential.
        """
        while True:
            credentials = {route: self._rng.sample(_CREDENTIALS, len(_CREDENTIALS)) for route in self._routes}
            for number in range(len(_CREDENTIALS)):
                for route in self._in_any_order():
                    yield self._request(*route, credentials[route][number])

    def _in_any_order(self) -> Iterator[Route]:
        """Yield every route once: one of each path, and then the others."""
        routes = self._rng.sample(self._routes, len(self._routes))
        by_path = {path: (method, path) for method, path in routes}
        yield from by_path.values()
        yield from (each for each in routes if by_path[each[1]] != each)

    def _request(self, method: str, path: str, credential: str) -> HostileRequest:
        if method == "*" or self._rng.random() < 0.03:
            method = self._rng.choice(_METHODS)
        if path == DELIVER:
            return self._delivery(method, credential)
        described = self._paths.get(path, {}).get(method.lower(), {})
        target = self._target(path, described)
        headers = dict(self._rng.choice(_ODD_HEADERS))
        body, flaw = b"", NO_FLAW
        if "requestBody" in described:
            schema = described["requestBody"]["content"]["application/json"]["schema"]
            body, flaw = self._body(path, self._instance(schema))
            flaw = flaw or _flaw_of_headers(headers)
            headers = {"Content-Type": "application/json", **headers}
        elif self._rng.random() < 0.1:
            body = self._values.broken_body()[:5_000]
        if (credential in ("none", "guess") and path not in OPEN_PATHS | _PAGES) or (
            credential in ("read", "metrics") and described.get("x-scope") == "write"
        ):
            flaw = f"credential: {credential}"
        return HostileRequest(method, path, target, credential, flaw, headers, body)

    # --- paths and queries ---------------------------------------------------------------------------

    def _target(self, path: str, described: Mapping[str, Any]) -> str:
        parts = [self._segment() if part.startswith("{") else part for part in path.split("/")]
        target = "/".join(parts)
        known = [each["name"] for each in described.get("parameters", ()) if each["in"] == "query"]
        chosen = [name for name in known if self._rng.random() < 0.4]
        if self._rng.random() < 0.1:
            chosen.append(self._values.text()[:50])
        pairs = [(name, self._parameter(name)) for name in chosen]
        if pairs and self._rng.random() < 0.1:
            pairs.append(pairs[0])
        return f"{target}?{urlencode(pairs, errors='replace')}" if pairs else target

    def _segment(self) -> str:
        roll = self._rng.random()
        if roll < 0.5:
            return self._values.name()
        if roll < 0.55:
            return "%ff%fe%00%2f.."
        return quote(self._values.text()[:8_500], safe="", errors="replace") or "%20"

    def _parameter(self, name: str) -> str:
        roll = self._rng.random()
        if name in ("wait", "timeout") and roll < 0.7:
            return "0"
        if roll < 0.3:
            return str(self._values.number())
        return self._values.name() if roll < 0.5 else self._values.text()[:2_000]

    # --- bodies --------------------------------------------------------------------------------------

    def _body(self, path: str, valid: Any) -> tuple[bytes, str]:
        """Return a body, and its flaw."""
        document = valid if isinstance(valid, dict) and valid else {"a": valid}
        if path in _BULK:
            document = {**document, "dry_run": True, "kind": self._values.name()}
            return orjson.dumps(document), NO_FLAW
        makers: dict[str, Callable[[dict[str, Any]], bytes]] = {
            "not JSON or too large": lambda _: self._values.broken_body(),
            "doubled name": self._values.doubled_body,
            "too deep": self._values.deep_body,
            "unknown field": lambda body: orjson.dumps({**body, ATTACKER: 1}),
        }
        roll = self._rng.random()
        if roll < 0.35:
            flaw = self._rng.choice(list(makers))
            return makers[flaw](document), flaw
        if roll < 0.45:
            return self._values.body_beyond(document), NO_FLAW
        for _ in range(self._rng.randrange(3)):
            document = self._values.mutated(document)
        return _encoded(document), NO_FLAW

    def _instance(self, schema: Any, depth: int = 4) -> Any:
        """Return a document that fits a schema, or nearly."""
        if "$ref" in schema:
            return self._instance(self._schemas[schema["$ref"].rpartition("/")[2]], depth)
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                return self._instance(self._rng.choice(schema[choice]), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        if "examples" in schema:
            return self._rng.choice(schema["examples"])
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            count = 0 if depth <= 0 else self._rng.randrange(1, 3)
            return [self._instance(schema.get("items", {}), depth - 1) for _ in range(count)]
        plain: dict[Any, Callable[[], Any]] = {
            "integer": lambda: max(schema.get("minimum", 0), self._rng.randrange(100)),
            "number": self._rng.random,
            "boolean": lambda: self._rng.random() < 0.5,
            "null": lambda: None,
            "string": self._values.name,
        }
        return plain.get(kind, self._values.document)()

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        needed = schema.get("required", ())
        return {
            name: self._instance(each, depth - 1)
            for name, each in schema.get("properties", {}).items()
            if name in needed or (depth > 0 and self._rng.random() < 0.4)
        }

    # --- the relay -----------------------------------------------------------------------------------

    def _delivery(self, method: str, credential: str) -> HostileRequest:
        """Return a delivery of messages that no node signed."""
        credential = "relay" if credential == "full" and self._rng.random() < 0.5 else credential
        node = self._rng.choice(self._nodes)
        message = {
            "message_uuid": self._values.name(),
            "sender_agent": node,
            "receiver_agent": "bait",
            "msg_type": "event",
            "payload": orjson.dumps({FORGED: "relayed without a signature"}).decode(),
            "priority": 1,
            "max_attempts": 10,
            "hlc": f"{1_800_000_000_000}-0000-{node}",
            "sender_node": node,
            "signature": self._rng.choice(("", "ed25519:" + "0" * 128, self._values.text()[:500])),
        }
        body, flaw = self._body(DELIVER, message)
        if self._rng.random() < 0.3:
            body = b"[" + b",".join([body] * self._rng.choice((1, 2, 65))) + b"]"
        target = self._rng.choice((*self._nodes, *self._nodes, ATTACKER))
        headers = {"Content-Type": "application/json", "Vox-Mesh-Node": target, "Vox-Mesh-From": node}
        headers["Vox-Mesh-Stored"] = self._rng.choice(("0", "1"))
        headers["Vox-Mesh-Order"] = self._rng.choice(("", "ed25519:00", "x" * 500))
        flaw = f"credential: {credential}" if credential not in ("full", "relay") else flaw or "not signed"
        return HostileRequest(method, DELIVER, DELIVER, credential, flaw, headers, body)


def _flaw_of_headers(headers: Mapping[str, str]) -> str:
    return next(
        (f"header {name}" for name in ("Content-Type", "Content-Encoding", "Expect") if name in headers),
        NO_FLAW,
    )


def _encoded(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
