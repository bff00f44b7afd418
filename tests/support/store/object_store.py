"""A bucket as the server's own replication of its log needs it: objects, and lists of them by prefix."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from xml.sax.saxutils import escape

from aiohttp import web

_BUCKET: Final = "mesh"
_BATCH: Final = re.compile(r"\d+-\d+-(\d+)\.zstd$")


class ObjectStore:
    """One bucket, in memory. It checks no signatures."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.url = ""
        self._newest_s = 0
        self._stored = asyncio.Event()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a server finds it."""
        values = {
            "ENDPOINT": self.url,
            "BUCKET": _BUCKET,
            "DATABASE_ID": "mesh",
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "AWS_DEFAULT_REGION": "us-east-1",
            "BATCH_INTERVAL_SECS": "1",
        }
        return {f"LIBSQL_BOTTOMLESS_{name}": value for name, value in values.items()}

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request as S3 does."""
        body = await request.read()
        _, _, key = request.path.lstrip("/").partition("/")
        if not key:
            return self._listed(request.query) if request.method == "GET" else web.Response()
        if request.method == "PUT":
            self.objects[key] = body
            if (batch := _BATCH.search(key)) is not None:
                self._newest_s = int(batch[1])
                self._stored.set()
            return web.Response()
        found = self.objects.get(key)
        if found is None:
            return _xml("<Error><Code>NoSuchKey</Code></Error>", status=404)
        return web.Response(body=found)

    async def batch_after(self, second: int) -> int:
        """Wait for a part of the log that the server has closed after this second; return when."""
        while self._newest_s <= second:
            self._stored.clear()
            await self._stored.wait()
        return self._newest_s

    def _listed(self, query: Mapping[str, str]) -> web.Response:
        prefix, after = query.get("prefix", ""), query.get("marker") or query.get("start-after") or ""
        keys = [key for key in sorted(self.objects) if key.startswith(prefix) and key > after]
        limit = int(query.get("max-keys", "1000"))
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size></Contents>"
            for key in keys[:limit]
        )
        more = str(len(keys) > limit).lower()
        return _xml(f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{contents}</ListBucketResult>")


def _xml(text: str, status: int = 200) -> web.Response:
    return web.Response(text=f'<?xml version="1.0"?>{text}', status=status, content_type="application/xml")


@asynccontextmanager
async def open_object_store() -> AsyncIterator[ObjectStore]:
    """Serve one on a free port."""
    store = ObjectStore()
    app = web.Application(client_max_size=2**28)
    app.router.add_route("*", "/{path:.*}", store.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    store.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield store
    finally:
        await runner.cleanup()
