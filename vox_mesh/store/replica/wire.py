"""Encode and decode the replication protocol: gRPC-web with three small protobuf messages.

A gRPC-web body is a sequence of parts: a flag, the length as four bytes, and a message; the last part holds
the trailers. All fields that are read here use one of two protobuf wire types.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

PAGE: Final = 4_096
"""The size of a page; servers support no other."""

_PART: Final = struct.Struct(">BI")
_FRAME: Final = struct.Struct("<QQII")
_USUAL_FRAME: Final = struct.Struct("<3sQQII")
_FRAME_PREFIX: Final = b"\x0a\x98\x20"
"""The usual beginning of a frame message: field 1, with the length of a frame."""

_USUAL_BYTES: Final = _USUAL_FRAME.size + PAGE

_EMPTY: Final = memoryview(b"")
_MAX_PART: Final = 2**20
_TRAILERS: Final = 0x80
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


class BadWire(ValueError):
    """The bytes violate the protocol."""


class WalFrame(NamedTuple):
    """A page written by a transaction; on its last frame, `size_after` is the database's size in pages.

    The checksum covers the log up to here, so it shows whether two logs are equal so far. 0: unknown.
    """

    number: int
    page_number: int
    size_after: int
    page: memoryview
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """The id of the primary's log, and the number that its next frame will have."""

    log_id: str
    session: str
    next_frame: int


@dataclass(frozen=True, slots=True)
class Trailers:
    """The end of a call: the gRPC status and its reason."""

    status: int
    message: str


def request(number: int) -> bytes:
    """Return a request: one number, either the handshake's version or the next frame wanted."""
    body = b"\x08" + _varint(number)
    return _PART.pack(0, len(body)) + body


def hello(message: memoryview) -> Hello:
    """Decode the answer to the handshake."""
    found = dict(_fields(message))
    log_id, session, last_frame = found.get(3), found.get(4), found.get(5, -1)  # no frame: an empty log
    if not isinstance(log_id, memoryview) or not isinstance(session, memoryview):
        raise BadWire("the primary's hello lacks its log or session")
    if not isinstance(last_frame, int):
        raise BadWire("the primary's hello has something else for a frame")
    return Hello(_name(log_id), _name(session), last_frame + 1)


def _name(value: memoryview) -> str:
    name = bytes(value).decode(errors="replace")
    if not (name and name.isascii() and name.isprintable()):
        raise BadWire("the primary's hello has something else for a name")
    return name


def frame(message: memoryview) -> WalFrame:
    """Decode a frame of the push stream or of a snapshot."""
    if len(message) >= _USUAL_BYTES:
        prefix, number, checksum, page_number, size_after = _USUAL_FRAME.unpack_from(message)
        if prefix == _FRAME_PREFIX and page_number:  # the frame comes first, so the rest can be skipped
            return WalFrame(
                number, page_number, size_after, message[_USUAL_FRAME.size : _USUAL_BYTES], checksum
            )
    return _unusual_frame(message)


def _unusual_frame(message: memoryview) -> WalFrame:
    first = (value for field, value in _fields(message) if field == 1)
    value = next((each for each in first if isinstance(each, memoryview)), _EMPTY)
    if len(value) != _FRAME.size + PAGE:
        raise BadWire(f"a frame of {len(value)} bytes")
    number, checksum, page_number, size_after = _FRAME.unpack_from(value)
    if not page_number:
        raise BadWire("a frame for page 0")
    return WalFrame(number, page_number, size_after, value[_FRAME.size :], checksum)


def trailers(message: memoryview) -> Trailers:
    """Decode the trailers in the body's last part."""
    lines = bytes(message).decode(errors="replace").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    found = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return ending(found.get("grpc-status", ""), found.get("grpc-message", ""))


def ending(status: str, message: str) -> Trailers:
    """Return the trailers for a status and message, also of a call that failed at once."""
    if not re.fullmatch(r"[0-9]{1,9}", status):
        raise BadWire("no status that is a number")
    return Trailers(int(status), message)


class FrameParts:
    """Splits a stream of bytes, received in any chunks, into parts."""

    def __init__(self) -> None:
        self._buffered: list[bytes] = []
        self._have = 0
        self._need = _PART.size

    def feed(self, data: bytes) -> Iterator[memoryview | Trailers]:
        """Yield the messages that are complete now, and at the end the trailers."""
        self._buffered.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        buffer = memoryview(b"".join(self._buffered) if len(self._buffered) > 1 else data)
        at = 0
        while True:
            self._need = _PART.size
            if len(buffer) - at >= _PART.size:
                flag, length = _PART.unpack_from(buffer, at)
                if length > _MAX_PART:
                    raise BadWire(f"a part of {length} bytes")
                self._need += length
                if len(buffer) - at >= self._need:
                    message = buffer[at + _PART.size : at + self._need]
                    at += self._need
                    yield trailers(message) if flag & _TRAILERS else message
                    continue
            break
        rest = bytes(buffer[at:])
        self._buffered, self._have = [rest], len(rest)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at, end = 0, len(message)
    while at < end:
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _read_varint(message, at)
        elif kind in (_FIXED_32, _FIXED_64):
            length = 4 if kind == _FIXED_32 else 8
        else:
            raise BadWire(f"wire type {kind}")
        if at + length > end:
            raise BadWire("a field that ends beyond its message")
        yield key >> 3, message[at : at + length]
        at += length


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise BadWire("a number that does not end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
