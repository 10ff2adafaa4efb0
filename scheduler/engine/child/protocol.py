"""Messages between the engine and its children: msgpack lists, each with its length in front.

One write or read may hold several. They are never pickled: their content comes from the database.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from scheduler.errors import PayloadError

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 2**30
_NUMBER = struct.Struct("<Q")
_LISTS = {*range(0x90, 0xA0), 0xDC, 0xDD}  # first bytes of msgpack lists; no Latin text begins with them
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list)
MAX_DEPTH = 900  # of lists and maps in each other; the decoder's own bound depends on the Python
_NESTING = bytes({*range(0x80, 0xA0), *range(0xDC, 0xE0)})  # first bytes of lists and maps


def frame(*message: Any) -> bytes:
    """One message for a stream. Raises PayloadError if it is too long."""
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise PayloadError(
            f"{len(data)} bytes are too much for one message between processes: {MAX_MESSAGE_BYTES} at most"
        )
    return _LENGTH.pack(len(data)) + data


class FrameDecoder:
    """Splits a stream into messages. ``decoder``: for the messages that the stream may hold."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any] = _decoder) -> None:
        self._decode = decoder.decode
        self.broken = False  # the stream held something else; nothing after it can be decoded
        self._rest = bytearray()

    @property
    def unfinished(self) -> bool:
        """Whether part of a message has been received."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are complete now."""
        found: list[Any] = []
        if self.broken:
            return found
        rest = self._rest
        rest += data
        at, end = 0, len(rest)
        while end - at > 4:
            (length,) = _LENGTH.unpack_from(rest, at)
            if rest[at + 4] not in _LISTS or not 0 < length <= MAX_MESSAGE_BYTES:
                self.broken = True
                break
            if end - at - 4 < length:
                break
            try:
                message = self._decode(memoryview(rest)[at + 4 : at + 4 + length])
            except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: no UTF-8
                self.broken = True
                break
            if length > MAX_DEPTH and _too_deep(rest[at + 4 : at + 4 + length], message):
                self.broken = True
                break
            found.append(message)
            at += 4 + length
        del rest[:at]
        return found


def _too_deep(data: bytearray, message: Any) -> bool:
    """Whether a message is nested deeper than MAX_DEPTH."""
    if len(data) - len(data.translate(None, _NESTING)) <= MAX_DEPTH:
        return False  # mostly
    level = [message]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(one: Any) -> Iterable[Any]:
    if isinstance(one, dict):
        return one.values()
    if isinstance(one, msgspec.Struct):
        return (getattr(one, name) for name in one.__struct_fields__)
    return one if isinstance(one, list | tuple) else ()


def numbered_message(number: int, *message: Any) -> bytes:
    """One message for a packet socket. Its number can be read without decoding it."""
    return _NUMBER.pack(number) + _encoder.encode(message)


def number_of(data: bytes) -> int:
    """The number of such a message."""
    number: int = _NUMBER.unpack_from(data)[0]
    return number


def message_of(data: bytes) -> list[Any]:
    """The list in such a message."""
    message: list[Any] = _decoder.decode(memoryview(data)[8:])
    return message


def socket_pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets without a timeout.

    If a task's module has called ``socket.setdefaulttimeout``, new sockets have non-blocking descriptors, also in the
    process that inherits one.
    """
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for one in pair:
        one.settimeout(None)
    return pair
