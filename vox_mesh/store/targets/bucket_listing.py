"""Listings of a bucket: the answers to `ListObjectsV2`."""

from __future__ import annotations

from typing import Final, NamedTuple
from xml.parsers import expat

from vox_mesh.errors import ArchiveFailed

_MAX_KEY: Final = 1_024
"""The longest key of an object, in bytes: S3 allows no longer one."""


class BucketListing(NamedTuple):
    """A page of the objects of a bucket."""

    sizes: dict[str, int]
    """By key."""

    next_token: str | None
    """What the next page begins with; `None`: this is the last one."""


class _ListingReader:
    """Takes the texts of the elements that matter from a document; entities are refused."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.fields: dict[str, str] = {}
        self._open: list[str] = []
        self._texts: dict[str, str] = {}

    def read(self, document: bytes) -> None:
        """Read a document. Raises `ExpatError`, `LookupError` or `ValueError` if it is no listing."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add
        parser.EntityDeclHandler = self._refuse
        parser.Parse(document, True)

    def _begin(self, name: str, _: dict[str, str]) -> None:
        self._open.append(name)
        self._texts[name] = ""

    def _add(self, text: str) -> None:
        self._texts[self._open[-1]] += text

    def _end(self, name: str) -> None:
        self._open.pop()
        if name == "Contents":
            self._add_object(self._texts.pop("Key", ""), int(self._texts.pop("Size", "")))
        elif len(self._open) == 1:
            self.fields[name] = self._texts[name]

    def _add_object(self, key: str, size: int) -> None:
        if len(key.encode()) > _MAX_KEY:
            raise ValueError("key too long")
        self.sizes[key] = size

    def _refuse(self, *_: object) -> None:
        raise ValueError("entities")


def read_listing(document: bytes) -> BucketListing:
    """Return what a service answers. Raises `ArchiveFailed` if it is no listing."""
    reader = _ListingReader()
    try:
        reader.read(document)
    except (expat.ExpatError, LookupError, ValueError):  # an unknown encoding is a `LookupError`
        reader.fields.clear()
    is_cut = reader.fields.get("IsTruncated")
    token = reader.fields.get("NextContinuationToken")
    if is_cut not in ("true", "false") or (is_cut == "true" and not token):
        raise ArchiveFailed(
            "the service does not list the bucket: its answer can't be read",
            hint="check that the URL is https://HOST/BUCKET/PREFIX, and that the service has ListObjectsV2",
        )
    return BucketListing(reader.sizes, token if is_cut == "true" else None)
