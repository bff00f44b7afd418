"""The files of the console, read once: they are small, and come with the package.

Its modules are sent as one script, and its style sheets as one, without what a browser does not need.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

from vox_mesh.http.console.bundle import bundle
from vox_mesh.http.console.compaction import compact_style

INDEX: Final = "index.html"
SCRIPT: Final = "console.js"
STYLE: Final = "console.css"
FOLDER: Final = Path(__file__).parents[2] / "web"

_ENTRY: Final = "app/main.js"
_STYLES: Final = ("base.css", "parts.css", "screens.css")

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
"""The types of files that are served. Others are not."""

_LEVEL: Final = 9
_GZIP: Final = 16 + zlib.MAX_WBITS
_MEMORY_LEVELS: Final = (5, 7, 9)


class WebFile(NamedTuple):
    """A file, plain and compressed."""

    content_type: str
    body: bytes
    compressed: bytes
    tag: str

    def response(self, request: web.Request) -> web.Response:
        """Return the response with the file; 304 if the browser's copy is current."""
        is_compressed = "gzip" in request.headers.get("Accept-Encoding", "")
        tag = f'"{self.tag}-gzip"' if is_compressed else f'"{self.tag}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        known = request.headers.get("If-None-Match", "")
        if tag in [each.strip().removeprefix("W/") for each in known.split(",")]:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        headers["Content-Type"] = self.content_type
        if is_compressed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=self.compressed if is_compressed else self.body, headers=headers)


class WebFiles:
    """All files below a folder, read together at the first request: so a page never gets a mixture."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._files: dict[str, WebFile] | None = None
        self._reading = asyncio.Lock()

    async def find(self, name: str) -> WebFile | None:
        """Return the file with this path below the folder, or `None`."""
        async with self._reading:
            if self._files is None:
                self._files = await asyncio.to_thread(read_files, self._folder)
        return self._files.get(name)

    async def prepare(self) -> None:
        """Read the files, so that the first page does not wait for that."""
        await self.find(INDEX)


def read_files(folder: Path) -> dict[str, WebFile]:
    """Return the files that are served, by their paths."""
    return {name: _file(_TYPES[Path(name).suffix], body) for name, body in _read_bodies(folder)}


def _read_bodies(folder: Path) -> Iterator[tuple[str, bytes]]:
    modules: dict[str, str] = {}
    styles: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".js" and path.parent != folder:
            modules[name] = path.read_text("utf-8")
        elif name in _STYLES:
            styles[name] = path.read_text("utf-8")
        elif path.suffix in _TYPES and path.is_file():
            yield name, path.read_bytes()
    if _ENTRY in modules:
        yield SCRIPT, bundle(modules, _ENTRY).encode()
    yield STYLE, "".join(compact_style(styles[name]) for name in _STYLES if name in styles).encode()


def _file(content_type: str, body: bytes) -> WebFile:
    tag = hashlib.blake2b(body, digest_size=16).hexdigest()
    return WebFile(
        content_type, body, min((_compressed(body, each) for each in _MEMORY_LEVELS), key=len), tag
    )


def _compressed(body: bytes, memory: int) -> bytes:
    """Return the file as gzip; how much memory is used decides where blocks end, and so the size."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP, memory)
    return compressor.compress(body) + compressor.flush()
