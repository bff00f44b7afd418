"""The replication protocol: what a real server sends is understood, and nothing else does harm.

The constants are what sqld 0.24.32 sent over gRPC-web, recorded with aiohttp as hexadecimal digits: to a
Hello before and after `CREATE TABLE t (a)`, to LogEntries from frame 0 on, and, with `--max-log-size 1` and
3 MB written, to LogEntries and Snapshot again. Of each page only its beginning was kept: the rest is zeros.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.running.examples import many
from vox_mesh.store.replica import wire
from vox_mesh.store.replica.wire import PAGE, BadWire, FrameParts, Hello, Trailers, WalFrame

_LOG_ID = "4c5590cb-5636-4c3b-92b3-3b8b8bd3d06d"
_SESSION = "32aa4df1-b6b7-e32f-c6d7-dd08dab6280b"
_ID_FIELDS = (
    "0a2435313061353165352d653939612d346137332d393430362d326137326366306633323030"
    "1a2434633535393063622d353633362d346333622d393262332d336238623862643364303664"
    "222433326161346466312d623662372d653332662d633664372d646430386461623632383062"
)
_CONFIG = "321320c0ece9d9b6c137400550c096b10258006800"
SUCCESS = bytes.fromhex("800000000f677270632d7374617475733a300d0a")
NEED_SNAPSHOT = bytes.fromhex(
    "800000002b677270632d7374617475733a390d0a677270632d6d6573736167653a4e4545445f534e415053484f540d0a"
)
HELLO_EMPTY = bytes.fromhex("0000000087" + _ID_FIELDS + _CONFIG) + SUCCESS
HELLO_FILLED = bytes.fromhex("0000000089" + _ID_FIELDS + "2802" + _CONFIG) + SUCCESS


def _with_page(head: str, page: str, tail: str = "") -> bytes:
    return bytes.fromhex(head) + bytes.fromhex(page).ljust(PAGE, b"\0") + bytes.fromhex(tail)


_FIRST_PAGE = "53514c69746520666f726d6174203300100002020040202000000002"
_NEW_LEAF = "0d0000000010"
FRAME = _with_page("000000101b0a98200000000000000000dfe7836862ea8ecc0100000000000000", _FIRST_PAGE)
LAST_FRAME = _with_page(
    "00000010220a98200100000000000000b99c0a6da16b81e80200000002000000", _NEW_LEAF, "1098fcfbee9d34"
)
SNAPSHOT_FIRST = _with_page(
    "000000101b0a98200b01000000000000ce38912e70586c9bf700000000000000", "000000004c1f02494529"
)
SNAPSHOT_LAST = _with_page(
    "000000101b0a98200500000000000000cce7505a68a3724003000000f7000000", "00000004ba3e9012a32f"
)


def parted(data: bytes) -> list[memoryview | Trailers]:
    """The parts of bytes that come in at once."""
    return list(FrameParts().feed(data))


def only_message(data: bytes) -> memoryview:
    """The one message before the trailers of success."""
    message, ending = parted(data)
    assert isinstance(message, memoryview)
    assert ending == Trailers(0, "")
    return message


# --- what a real server sends ---------------------------------------------------------------------


def test_the_hello_of_an_empty_database_names_its_log_and_frame_0_as_the_next() -> None:
    assert wire.hello(only_message(HELLO_EMPTY)) == Hello(_LOG_ID, _SESSION, 0)


def test_the_hello_of_a_filled_database_names_the_frame_after_its_last() -> None:
    assert wire.hello(only_message(HELLO_FILLED)) == Hello(_LOG_ID, _SESSION, 3)


def test_frames_of_the_log_are_read_with_and_without_a_commit() -> None:
    messages = [part for part in parted(FRAME + LAST_FRAME) if isinstance(part, memoryview)]
    first, last = map(wire.frame, messages)
    assert first[:3] == (0, 1, 0)
    assert first.page == bytes.fromhex(_FIRST_PAGE).ljust(PAGE, b"\0")
    assert last[:3] == (1, 2, 2)
    assert last.page == bytes.fromhex(_NEW_LEAF).ljust(PAGE, b"\0")


def test_a_snapshot_comes_newest_first_and_only_its_last_page_has_the_size() -> None:
    *messages, ending = parted(SNAPSHOT_FIRST + SNAPSHOT_LAST + SUCCESS)
    frames = [wire.frame(message) for message in messages if isinstance(message, memoryview)]
    assert [frame[:3] for frame in frames] == [(267, 247, 0), (5, 3, 247)]
    assert ending == Trailers(0, "")


def test_trailers_tell_how_a_call_ended() -> None:
    assert parted(NEED_SNAPSHOT) == [Trailers(9, "NEED_SNAPSHOT")]
    # Reported at once, these stand in the headers instead, by the same names.
    assert wire.trailers(memoryview(b"grpc-status:9\r\ngrpc-message:NO_HELLO")) == Trailers(9, "NO_HELLO")


@pytest.mark.parametrize(
    ("number", "sent"), [(0, "00000000020800"), (1, "00000000020801"), (797, "0000000003089d06")]
)
def test_a_request_is_one_number(number: int, sent: str) -> None:
    assert wire.request(number) == bytes.fromhex(sent)


@many
@given(st.integers(0, 2**64 - 1))
def test_a_number_that_is_sent_is_read_back(number: int) -> None:
    (message,) = parted(wire.request(number))
    assert isinstance(message, memoryview)
    assert list(wire._fields(message)) == [(1, number)]


# --- however it comes in --------------------------------------------------------------------------

STREAM = HELLO_FILLED[: -len(SUCCESS)] + FRAME + LAST_FRAME + SNAPSHOT_LAST + bytes(5) + NEED_SNAPSHOT


@many
@given(st.lists(st.integers(0, len(STREAM)), max_size=60))
@example(list(range(20)))
def test_messages_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    parts = FrameParts()
    bounds = pairwise([0, *sorted(cuts), len(STREAM)])
    found = [part for start, end in bounds for part in parts.feed(STREAM[start:end])]
    assert found == parted(STREAM)
    assert len(found) == 6


def test_messages_are_the_same_byte_by_byte() -> None:
    parts = FrameParts()
    assert [part for byte in STREAM for part in parts.feed(bytes([byte]))] == parted(STREAM)


@pytest.mark.parametrize("length", [0, 255, 65_536, 2**20])
def test_a_message_may_be_of_any_length(length: int) -> None:
    part = b"\0" + length.to_bytes(4, "big") + bytes(length)
    assert parted(part + part) == [memoryview(bytes(length))] * 2


# --- what is not of the protocol ------------------------------------------------------------------

_spoiled = st.builds(
    lambda data, at, junk: data[: at % len(data)] + junk + data[at % len(data) + len(junk) :],
    st.sampled_from([HELLO_EMPTY[5:-20], HELLO_FILLED[5:-20], FRAME[5:], LAST_FRAME[5:], NEED_SNAPSHOT[5:]]),
    st.integers(0, 2**16),
    st.binary(min_size=1, max_size=8),
)
_bytes = st.binary(max_size=300) | _spoiled


def understood(message: memoryview) -> list[object]:
    """What each reader makes of a message; the ones that refuse it leave nothing."""
    found: list[object] = []
    for read in (wire.hello, wire.frame, wire.trailers):
        with suppress(BadWire):
            found.append(read(message))
    return found


@many
@given(_bytes)
@example(b"\x1a\x01\xff\x22\x01a")
@example("grpc-status: ²".encode())
@example(b"grpc-status: " + b"9" * 5_000)
def test_no_bytes_are_more_than_refused(data: bytes) -> None:
    for found in understood(memoryview(data)):
        assert isinstance(found, Hello | WalFrame | Trailers)


@many
@given(st.lists(_bytes, max_size=6))
def test_no_stream_is_more_than_refused(chunks: list[bytes]) -> None:
    parts = FrameParts()
    given_in = came_out = 0
    with suppress(BadWire):
        for chunk in chunks:
            given_in += len(chunk)
            came_out += sum(5 + len(part) for part in parts.feed(chunk) if isinstance(part, memoryview))
    assert came_out <= given_in


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a number that does not end", b"\x08" + b"\xff" * 11),
        ("beyond its message", b"\x0a\x05abc"),
        ("beyond its message", b"\x0d\x00"),
        ("wire type 3", b"\x0b"),
        ("a frame of 3 bytes", b"\x0a\x03abc"),
        ("a frame of 0 bytes", b"\x10\x01"),
        ("a frame for page 0", FRAME[5:24] + bytes(4) + FRAME[28:]),
    ],
)
def test_a_refusal_says_what_is_wrong(what: str, message: bytes) -> None:
    with pytest.raises(BadWire, match=what):
        wire.frame(memoryview(message))


@pytest.mark.parametrize("message", [b"", HELLO_FILLED[5:43], b"\x18\x01\x20\x01"])
def test_a_hello_without_log_or_session_is_refused(message: bytes) -> None:
    with pytest.raises(BadWire, match="hello"):
        wire.hello(memoryview(message))
