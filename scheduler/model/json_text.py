"""JSON of strangers: how deep it is nested, the elements of a list, and texts that are no Unicode. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

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
