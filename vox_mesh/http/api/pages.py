"""Pagination: long answers come in pages, each with the cursor of the next."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate
from typing import Annotated, Any, Final, Generic, TypeVar

import orjson
from pydantic import Field

from vox_mesh.errors import TooLarge
from vox_mesh.http.api.operations import RequestModel
from vox_mesh.http.problems import Problem

MAX_LIMIT: Final = 500
_LIMIT: Final = 100
MAX_PAGE_BYTES: Final = 2**20
"""About how large the items of a page may be together."""

MAX_SCANNED: Final = 50_000
"""How many rows are looked at for a page."""

_MIN_BATCH: Final = 16
_MAX_CURSOR: Final = 2_048

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a long answer; `next` is the cursor of the part after it, if there may be one."""

    items: list[T]
    next: str | None


class LimitQuery(RequestModel):
    """The limit of a list that has no pages."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = _LIMIT


class PageQuery(RequestModel):
    """The limit and cursor of a page."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = _LIMIT
    cursor: Annotated[str, Field(max_length=_MAX_CURSOR)] | None = None

    @property
    def position(self) -> Any:
        """The position the cursor stands for, or `None`."""
        if self.cursor is None:
            return None
        try:
            position = orjson.loads(base64.urlsafe_b64decode(self.cursor + "=" * (-len(self.cursor) % 4)))
        except (ValueError, binascii.Error):
            raise bad_cursor() from None
        return position

    @property
    def number(self) -> int | None:
        """The position as a row id. Raises a problem if it is none."""
        position = self.position
        if position is not None and not (type(position) is int and 0 <= position < 2**63):
            raise bad_cursor()
        return position

    @property
    def text(self) -> str | None:
        """The position as a name. Raises a problem if it is none."""
        position = self.position
        if position is not None and not isinstance(position, str):
            raise bad_cursor()
        return position

    def page(
        self,
        items: Sequence[T],
        position: Callable[[T], Any],
        *,
        goes_on: bool = False,
        scanned_to: Any = None,
    ) -> Page[T]:
        """Return a page of these items; another follows if the page is full, or with `goes_on`.

        With `scanned_to`, nothing was looked for beyond that position: the next page goes on there.
        """
        if len(items) < self.limit and not goes_on:
            return Page(list(items), None if scanned_to is None else _cursor(scanned_to))
        return Page(list(items), _cursor(position(items[-1]) if items else self.position))

    def page_of(self, items: Sequence[T], position: Callable[[T], str]) -> Page[T]:
        """Return the requested page of all items, ordered by name."""
        after = self.text
        ordered = sorted(items, key=position)
        rest = ordered if after is None else [each for each in ordered if position(each) > after]
        part = rest[: self.limit]
        return Page(part, _cursor(position(part[-1])) if len(rest) > len(part) else None)


async def read_page(
    read: Callable[[Any, int], Awaitable[Sequence[T]]],
    start: Any,
    limit: int,
    position: Callable[[T], Any],
    size: Callable[[T], int],
) -> tuple[list[T], bool]:
    """Return up to `limit` items, and whether more may follow; large items make it shorter.

    They are read in batches that grow as long as the items are small.
    """
    items: list[T] = []
    batch, max_batch, left = _MIN_BATCH, limit, MAX_PAGE_BYTES
    while len(items) < limit:
        wanted = min(batch, limit - len(items))
        try:
            some = await read(start, wanted)
        except TooLarge:
            if wanted == 1:
                raise
            batch = max_batch = wanted // 2
            continue
        for item in some:
            items.append(item)
            left -= size(item)
            if left <= 0:
                return items, True
        if len(some) < wanted:
            return items, False
        start = position(items[-1])
        batch = min(2 * batch, max_batch)
    return items, True


async def read_first(
    read: Callable[[int], Awaitable[Sequence[T]]], limit: int, size: Callable[[T], int]
) -> list[T]:
    """Return the first items of a list without pages; large items make it shorter."""
    wanted = min(_MIN_BATCH, limit)
    while True:
        items = list(await read(wanted))
        sizes = list(accumulate(map(size, items)))
        fitting = 1 + bisect_left(sizes, MAX_PAGE_BYTES)
        if fitting < len(items) or len(items) < wanted or wanted == limit:
            return items[:fitting]
        wanted = min(4 * wanted, limit)


def _cursor(position: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


def bad_cursor() -> Problem:
    """Return the problem for an invalid cursor."""
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "bad_cursor",
        "cursor is not valid",
        "use `next` of the previous page, unchanged",
    )
