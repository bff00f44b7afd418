"""Listings of a bucket: what is none is refused, and no service can list without end."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.errors import ArchiveFailed, MeshError
from vox_mesh.store.targets import s3_target
from vox_mesh.store.targets.aws_signature import Credentials
from vox_mesh.store.targets.bucket_listing import BucketListing, read_listing
from vox_mesh.store.targets.s3_target import S3Target

_LAST = "<IsTruncated>false</IsTruncated>"
_LISTING = (
    '<?xml version="1.0" encoding="UTF-8"?><R><Contents><Key>a</Key><Size>1</Size></Contents>'
    f"<Contents><Key>b</Key><Size>2</Size></Contents>{_LAST}</R>"
).encode()


def page(number: int, token: str, objects: int = 1) -> str:
    """A page that is not the last one."""
    parts = [
        f"<Contents><Key>mesh/s-{number}-{each}</Key><Size>1</Size></Contents>" for each in range(objects)
    ]
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
    return f"<R>{''.join(parts)}{more}</R>"


@asynccontextmanager
async def listing_of(pages: Iterator[str]) -> AsyncIterator[S3Target]:
    """A bucket whose service answers with these pages."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=next(pages))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/bucket/mesh"
        yield S3Target(url, Credentials("key", "secret", "us-east-1"))
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "<html>",
        "<a/>",
        '<!DOCTYPE a [<!ENTITY b "c">]><a><IsTruncated>&b;</IsTruncated></a>',
        f"<R><Key><Contents><Size>1</Size></Contents></Key>{_LAST}</R>",
        f"<R><Key>x<Contents><Size>1</Size></Contents>y</Key>{_LAST}</R>",
        f'<?xml version="1.0" encoding="foo"?><R>{_LAST}</R>',
        f'<?xml version="1.0" encoding="utf-7"?><R>{_LAST}</R>',
        f"<R><Contents><Key>{'k' * 1_025}</Key><Size>1</Size></Contents>{_LAST}</R>",
    ],
)
def test_what_is_no_listing_of_a_bucket_is_refused(answer: str) -> None:
    with pytest.raises(ArchiveFailed, match="does not list the bucket"):
        read_listing(answer.encode())


_TAGS = ("R", "Contents", "Key", "Size", "IsTruncated", "NextContinuationToken")
_NAMES = st.sampled_from(["utf-8", "utf-16", "utf-7", "idna", "base64", "cp037", "foo", "ascii", "undefined"])
_PARTS = st.one_of(
    st.sampled_from([f"<{slash}{tag}>" for tag in _TAGS for slash in ("", "/")]),
    st.sampled_from(["1", "-", "true", "false", "&amp;", "&b;", "<!--", "<![CDATA[x]]>", "\0", "é"]),
)


@given(encoding=_NAMES, parts=st.lists(_PARTS, max_size=30))
def test_documents_of_the_elements_of_a_listing_raise_no_other_error(encoding: str, parts: list[str]) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><R>{"".join(parts)}{_LAST}</R>'
    with suppress(MeshError):
        read_listing(text.encode())


@given(
    place=st.integers(0, len(_LISTING)),
    length=st.integers(0, 40),
    put=st.one_of(st.binary(max_size=20), st.sampled_from([each.encode() for each in _TAGS])),
)
def test_mangled_listings_raise_no_other_error(place: int, length: int, put: bytes) -> None:
    with suppress(MeshError):
        read_listing(_LISTING[:place] + put + _LISTING[place + length :])


@pytest.mark.parametrize("period", [1, 2])
async def test_a_service_that_repeats_a_token_is_refused(period: int) -> None:
    pages = (page(number, f"token-{number % period}") for number in range(10))
    async with listing_of(pages) as target:
        with pytest.raises(ArchiveFailed, match="repeats itself"):
            await target.list_sizes("s-")
    assert len([*pages]) == 10 - period - 1


@pytest.mark.parametrize("objects", [0, 3])
async def test_a_listing_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, objects: int) -> None:
    monkeypatch.setattr(s3_target, "_MAX_OBJECTS", 30)
    pages = (page(number, f"token-{number}", objects) for number in itertools.count())
    async with listing_of(pages) as target:
        with pytest.raises(ArchiveFailed, match="more than 30 objects"):
            await target.list_sizes("s-")


async def test_the_event_loop_goes_on_while_a_page_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, is_read = asyncio.get_running_loop(), threading.Event()

    def read_slowly(document: bytes) -> BucketListing:
        loop.call_soon_threadsafe(is_read.set)  # the loop must turn before the page is read
        assert is_read.wait(5.0)
        return read_listing(document)

    monkeypatch.setattr(s3_target, "read_listing", read_slowly)
    async with listing_of(iter([_LISTING.decode()])) as target:
        assert await target.list_sizes("") == {"a": 1, "b": 2}
