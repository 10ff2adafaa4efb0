"""JSON of values without NaN and infinity, which the encoder writes as null, without an error; and JSON of strangers:
how deep it is nested, the elements of a list, and texts that are no Unicode. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from math import isfinite
from typing import Any, NoReturn

import msgspec

from scheduler.errors import PayloadError
from scheduler.model.spec import plain

MAX_DEPTH = 500  # levels of JSON that is taken; Python's own bound differs between its versions
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)


def too_deep(text: bytes) -> bool:
    """Whether a JSON text is nested deeper than :data:`MAX_DEPTH`."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _TOKEN.finditer(text):
        sign = found[0]
        if sign in (b"[", b"{"):
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif sign in (b"]", b"}"):
            depth -= 1
    return False


def json_fault(text: str | bytes, error: Exception) -> str:
    """The fault of a text that msgspec did not decode: of half a surrogate pair it says that the text ends."""
    if "truncated" in str(error):
        with suppress(ValueError, RecursionError):
            json.loads(text if isinstance(text, str) else text.decode(), parse_constant=_refuse_constant)
            return "a text has half a surrogate pair"
    return str(error)


def decode_leniently(text: bytes) -> Any:
    """Decode JSON whose texts may be broken: half a surrogate pair, or bytes that are no UTF-8, stay in them.

    So one bad text in a batch costs no other message. Raises ValueError, RecursionError.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(text.decode("utf-8", "surrogateescape"), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def elements(text: bytes) -> Iterator[bytes]:
    """The elements of a list as they are written, however deep they are; nothing of what is no list."""
    if not text.lstrip().startswith(b"["):
        return
    depth, begin = 0, 0
    for found in _TOKEN.finditer(text):
        sign = found[0]
        if sign in (b"[", b"{"):
            depth += 1
            if depth == 1:
                begin = found.end()
        elif sign in (b"]", b"}") or (sign == b"," and depth == 1):
            if depth == 1:
                element = text[begin : found.start()].strip()
                begin = found.end()
                if element or sign == b",":
                    yield element
            if sign != b",":
                depth -= 1
                if depth == 0:
                    return


_Path = tuple["_Path", object] | None  # of what it is in, and its key or place there
_LOOKED_INTO = frozenset((float, dict, list, tuple))
# MessagePack keeps these numbers, and is much faster than a check of each value: a float begins with 0xcb, and these
# have all bits of the exponent set. Other values may contain the same bytes by chance.
_quick = msgspec.msgpack.Encoder(enc_hook=plain)
_encoder = msgspec.json.Encoder(enc_hook=plain)
_PERHAPS = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


def encode_json(value: object, what: str) -> str:
    """Compact JSON text. Raises PayloadError that names ``what``, also for NaN and infinity."""
    try:
        text = _encoder.encode(value)
        lost = find_not_finite(value) if b"null" in text else None
    except UnicodeEncodeError:  # its words name the codec and repeat a part of what may be secret
        raise PayloadError(f"{what} has a text with half a surrogate pair, or with a byte that is not UTF-8") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadError(f"{what} is not JSON: {error}") from None
    if lost is not None:
        raise PayloadError(f"{what} is not JSON: it has {lost}; put None or a text there")
    return text.decode()


def find_not_finite(value: object) -> str | None:
    """The first NaN or infinity in what JSON can be made of: ``nan at $.sizes[2]``; None if there is none."""
    try:
        if not _PERHAPS.search(_quick.encode(value)):
            return None
    except OverflowError:  # an integer of more than 64 bits
        pass
    left: list[tuple[Any, _Path]] = [(msgspec.to_builtins(value, enc_hook=plain), None)]
    for one, path in left:  # it grows meanwhile
        if type(one) is float:
            if not isfinite(one):
                return f"{one} at {_told(path)}"
        elif type(one) is dict:
            left += [(inner, (path, key)) for key, inner in one.items() if type(inner) in _LOOKED_INTO]
        elif type(one) is list or type(one) is tuple:
            left += [(inner, (path, place)) for place, inner in enumerate(one) if type(inner) in _LOOKED_INTO]
    return None


def _told(path: _Path) -> str:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return "$" + "".join(reversed(keys))
