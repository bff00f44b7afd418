"""A bucket of an S3-compatible service, by plain HTTP requests."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from vox_mesh.errors import ArchiveFailed
from vox_mesh.store.targets.aws_signature import Credentials, quoted_path, quoted_query, signed_headers
from vox_mesh.store.targets.bucket_listing import BucketListing, read_listing
from vox_mesh.store.targets.content import blocks_of, file_digest

if TYPE_CHECKING:
    import httpx

_NO_CONTENT: Final = hashlib.sha256(b"").hexdigest()
_DEADLINE_S: Final = 600.0
_STEP_TIMEOUT_S: Final = 30.0
_RIGHTS: Final = (
    "the key needs s3:GetObject, s3:PutObject and s3:DeleteObject below the prefix, and s3:ListBucket of the "
    "bucket: without that one, AWS answers 403 for an object that is missing"
)
_PARALLEL: Final = 16
"""How many requests about sizes are sent at the same time."""

_MAX_LISTING_BYTES: Final = 8 * 2**20
"""The size of a page of a listing."""

_MAX_OBJECTS: Final = 100_000
"""How many objects a listing may have; a page counts as one at least. Segments of 5 billion entries fit."""


class S3Target:
    """The objects below a path of a service: `https://HOST/BUCKET/PREFIX`."""

    def __init__(self, url: str, credentials: Credentials, settings: str = "VOX_ARCHIVE") -> None:
        """`settings` is how the names of the settings begin, for errors."""
        self._settings = settings
        parts = urlsplit(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.netloc
        self._path = parts.path.rstrip("/")
        bucket, _, below = self._path.lstrip("/").partition("/")
        self._bucket = f"/{bucket}"
        self._below = f"{below}/" if below else ""
        self._credentials = credentials

    def __str__(self) -> str:
        return self._origin + self._path

    async def put(self, name: str, file: Path) -> None:
        """Store an object. The service compares its content with the digest that is signed."""
        digest, stat = await asyncio.to_thread(lambda: (file_digest(file), file.stat()))

        async def content() -> AsyncIterator[bytes]:
            for block in blocks_of(file):
                yield block

        async with self._client() as client, self._deadline(name):
            headers = self._headers("PUT", name, digest) | {"content-length": str(stat.st_size)}
            answer = await client.put(self._url(name), headers=headers, content=content())
            self._check(answer, name)

    @asynccontextmanager
    async def get(self, name: str, size: int) -> AsyncIterator[Path]:
        """Download an object of this size to a temporary file."""
        with tempfile.TemporaryDirectory(prefix="vox-mesh-") as folder:
            path = Path(folder) / name
            async with self._client() as client, self._deadline(name):
                headers = self._headers("GET", name, _NO_CONTENT)
                async with client.stream("GET", self._url(name), headers=headers) as answer:
                    self._check(answer, name)
                    with path.open("wb") as file:
                        async for block in answer.aiter_raw():
                            if file.tell() + len(block) > size:
                                raise self._error(name, f"the object is larger than {size} bytes")
                            await asyncio.to_thread(file.write, block)
            yield path

    async def read(self, name: str, limit: int) -> bytes | None:
        """Return a small object; `None` if it is missing."""
        async with self._client() as client, self._deadline(name):
            headers = self._headers("GET", name, _NO_CONTENT)
            async with client.stream("GET", self._url(name), headers=headers) as answer:
                if answer.status_code == HTTPStatus.NOT_FOUND:
                    return None
                self._check(answer, name)
                return await self._read(answer, name, limit)

    async def _read(self, answer: httpx.Response, name: str, limit: int) -> bytes:
        content = bytearray()
        async for block in answer.aiter_raw():
            content += block
            if len(content) > limit:
                raise self._error(name, f"the object is larger than {limit} bytes")
        return bytes(content)

    async def sizes(self, names: Collection[str]) -> dict[str, int]:
        """Return the sizes of the objects that are there, by several requests at a time."""
        found: dict[str, int] = {}
        left = iter(names)

        async def ask() -> None:
            for name in left:
                async with self._deadline(name):
                    answer = await client.head(
                        self._url(name), headers=self._headers("HEAD", name, _NO_CONTENT)
                    )
                if answer.status_code != HTTPStatus.NOT_FOUND:
                    self._check(answer, name)
                    size = answer.headers.get("content-length", "")
                    found[name] = int(size) if size.isdecimal() else 0

        async with self._client() as client:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(_PARALLEL):
                        group.create_task(ask())
            except* ArchiveFailed as failed:
                raise failed.exceptions[0] from None
        return found

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of all objects whose names begin so: a request for each 1,000 of them."""
        found: dict[str, int] = {}
        async with self._client() as client, self._deadline(prefix):
            async for page in self._pages(client, prefix):
                found |= {key.removeprefix(self._below): size for key, size in page.sizes.items()}
        return found

    async def _pages(self, client: httpx.AsyncClient, prefix: str) -> AsyncIterator[BucketListing]:
        """Yield the pages of a listing, each read in a thread. Raises `ArchiveFailed` if it does not end."""
        tokens: set[str] = set()
        begin: str | None = None
        listed = 0
        while True:
            page = await asyncio.to_thread(read_listing, await self._list(client, prefix, begin))
            listed += max(len(page.sizes), 1)
            if listed > _MAX_OBJECTS:
                raise self._error(prefix, f"the listing has more than {_MAX_OBJECTS} objects")
            yield page
            begin = page.next_token
            if begin is None:
                return
            if begin in tokens:
                raise self._error(prefix, "the listing repeats itself, and does not end")
            tokens.add(begin)

    async def _list(self, client: httpx.AsyncClient, prefix: str, begin: str | None) -> bytes:
        values = {"list-type": "2", "prefix": self._below + prefix}
        query = quoted_query(values if begin is None else {**values, "continuation-token": begin})
        headers = self._signed("GET", quoted_path(self._bucket), _NO_CONTENT, query)
        url = f"{self._origin}{quoted_path(self._bucket)}?{query}"
        async with client.stream("GET", url, headers=headers) as answer:
            self._check(answer, prefix)
            return await self._read(answer, prefix, _MAX_LISTING_BYTES)

    async def remove(self, name: str) -> None:
        """Delete an object."""
        async with self._client() as client, self._deadline(name):
            answer = await client.delete(self._url(name), headers=self._headers("DELETE", name, _NO_CONTENT))
            if answer.status_code not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND):
                self._check(answer, name)

    def _client(self) -> httpx.AsyncClient:
        import httpx  # imported late: it is large, and few commands archive

        return httpx.AsyncClient(timeout=_STEP_TIMEOUT_S, trust_env=False, follow_redirects=False)

    @asynccontextmanager
    async def _deadline(self, name: str) -> AsyncIterator[None]:
        import httpx

        try:
            async with asyncio.timeout(_DEADLINE_S):
                yield
        except TimeoutError:
            raise self._error(name, f"no answer within {_DEADLINE_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._error(name, str(error) or type(error).__name__) from None

    def _url(self, name: str) -> str:
        return self._origin + quoted_path(f"{self._path}/{name}")

    def _headers(self, method: str, name: str, digest: str) -> dict[str, str]:
        return self._signed(method, quoted_path(f"{self._path}/{name}"), digest)

    def _signed(self, method: str, path: str, digest: str, query: str = "") -> dict[str, str]:
        now = datetime.now(UTC)
        return {
            "host": self._host,
            "accept-encoding": "identity",
            **signed_headers(self._credentials, method, self._host, path, digest, now, query),
        }

    def _check(self, answer: httpx.Response, name: str) -> None:
        if answer.status_code != HTTPStatus.OK:
            what = f"the service answered {answer.status_code} {answer.reason_phrase}"
            raise self._error(name, what, is_forbidden=answer.status_code == HTTPStatus.FORBIDDEN)

    def _error(self, name: str, what: str, *, is_forbidden: bool = False) -> ArchiveFailed:
        settings = ", ".join(f"{self._settings}_{part}" for part in ("URL", "KEY_ID", "SECRET"))
        hint = f"check {settings} and {self._settings}_REGION"
        return ArchiveFailed(f"{self}/{name}: {what}", hint=f"{hint}; {_RIGHTS}" if is_forbidden else hint)
