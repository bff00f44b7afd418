"""A bucket of an S3-compatible service: a real HTTP server, which checks signatures as AWS describes them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

KEY_ID: Final = "AKIAIOSFODNN7EXAMPLE"
SECRET: Final = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def signature_of(
    method: str, path: str, query: str, headers: Mapping[str, str], names: str, scope: str
) -> str:
    """The signature of a request: `names` are the signed headers, `scope` is what the key was made for."""
    lines = [method, path, query]
    lines += [f"{name}:{headers[name].strip()}" for name in names.split(";")]
    lines += ["", names, headers["x-amz-content-sha256"]]
    hashed = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{hashed}"
    key = b"AWS4" + SECRET.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    return hmac.digest(key, text.encode(), hashlib.sha256).hex()


class Bucket:
    """The objects, by path, and the address of the server."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refused = 0
        self.url = ""
        self.requests: list[str] = []
        self.page_size = 1_000
        self.missing_status = 404
        """AWS answers 403 to a key without the right to list the bucket."""

    async def answer(self, request: web.Request) -> web.Response:
        """Store or return an object, if the request is signed."""
        body = await request.read()
        path, _, query = request.raw_path.partition("?")
        self.requests.append(f"{request.method} {path}")
        if not self._is_signed(request, path, query, body):
            self.refused += 1
            return web.Response(status=403, text="SignatureDoesNotMatch")
        if request.method == "GET" and request.query.get("list-type") == "2":
            return self._listing(path, request.query["prefix"], request.query.get("continuation-token", ""))
        if request.method == "PUT":
            self.objects[path] = body
            return web.Response()
        if request.method == "DELETE":
            self.objects.pop(path, None)
            return web.Response(status=204)
        found = self.objects.get(path)
        return web.Response(status=self.missing_status) if found is None else web.Response(body=found)

    def _listing(self, bucket: str, prefix: str, after: str) -> web.Response:
        keys = {unquote(path.removeprefix(f"{bucket}/")): len(body) for path, body in self.objects.items()}
        left = sorted(key for key in keys if key.startswith(prefix) and key > after)
        page = left[: self.page_size]
        parts = [
            f"<Contents><Key>{escape(key)}</Key><ETag>&quot;1&quot;</ETag><Size>{keys[key]}</Size></Contents>"
            for key in page
        ]
        parts.append(f"<IsTruncated>{str(page != left).lower()}</IsTruncated>")
        if page != left:
            parts.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        begin = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        text = f'<?xml version="1.0" encoding="UTF-8"?>{begin}{"".join(parts)}</ListBucketResult>'
        return web.Response(text=text, content_type="application/xml")

    def _is_signed(self, request: web.Request, path: str, query: str, body: bytes) -> bool:
        headers = {name.lower(): value for name, value in request.headers.items()}
        algorithm, _, rest = headers.get("authorization", "").partition(" ")
        parts = dict(each.strip().split("=", 1) for each in rest.split(",") if "=" in each)
        key_id, _, scope = parts.get("Credential", "").partition("/")
        if algorithm != "AWS4-HMAC-SHA256" or key_id != KEY_ID or headers["x-amz-date"][:8] != scope[:8]:
            return False
        made = signature_of(request.method, path, query, headers, parts["SignedHeaders"], scope)
        return (
            made == parts["Signature"] and hashlib.sha256(body).hexdigest() == headers["x-amz-content-sha256"]
        )


@asynccontextmanager
async def open_bucket() -> AsyncIterator[Bucket]:
    """Serve a bucket on a free port."""
    bucket = Bucket()
    app = web.Application(client_max_size=2**28)
    app.router.add_route("*", "/{path:.*}", bucket.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    bucket.url = f"http://127.0.0.1:{runner.addresses[0][1]}/a bucket/mesh"
    try:
        yield bucket
    finally:
        await runner.cleanup()
