"""Messages between the engine and its child processes: lists, as msgpack, each with its length in front.

Several may go in one write and come in one read. Never pickle: what is in them comes from the database.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_LISTS = {*range(0x90, 0xA0), 0xDC, 0xDD}  # what a list begins with, and no text of Latin letters
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list)


def frame(*message: Any) -> bytes:
    """One message for a stream."""
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Takes a stream apart again."""

    def __init__(self) -> None:
        self.broken = False  # there was something else in it: what came after is no message either
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[list[Any]]:
        """The messages that are complete now."""
        found: list[list[Any]] = []
        if self.broken:
            return found
        rest = self._rest
        rest += data
        at, end = 0, len(rest)
        while end - at > 4:
            (length,) = _LENGTH.unpack_from(rest, at)
            if rest[at + 4] not in _LISTS or not length:
                self.broken = True
                break
            if end - at - 4 < length:
                break
            try:
                found.append(_decoder.decode(memoryview(rest)[at + 4 : at + 4 + length]))
            except msgspec.DecodeError:
                self.broken = True
                break
            at += 4 + length
        del rest[:at]
        return found


def order(number: int, *message: Any) -> bytes:
    """One message for a socket that keeps them apart, with a number that can be read without decoding it."""
    return _NUMBER.pack(number) + _encoder.encode(message)


def number_of(data: bytes) -> int:
    number: int = _NUMBER.unpack_from(data)[0]
    return number


def message_of(data: bytes) -> list[Any]:
    message: list[Any] = _decoder.decode(memoryview(data)[8:])
    return message
