"""JSON of strangers: how deep it is nested, and the elements of a list, without being decoded. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
