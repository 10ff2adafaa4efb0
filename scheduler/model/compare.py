"""Differences between two values, or two texts, for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any, NamedTuple

MAX_CHANGES = 200
MAX_LINES = 2_000  # of each text: comparing takes the square of it at worst
_MISSING = object()
_MAX_DEPTH = 20
_TIME = re.compile(r"^\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)? ?")
_VARYING = re.compile(r"[0-9a-fA-F]{8,}|\d+")


class FieldChange(NamedTuple):
    """``path``: such as ``lines[2].price``, "" for the whole value. ``added``: it was not there before; ``removed``:
    it is not there any more."""

    path: str
    before: Any
    after: Any
    added: bool = False
    removed: bool = False


def changes(before: Any, after: Any) -> list[FieldChange]:
    """What is different in ``after``, of values as JSON has them; the first 200 differences."""
    return list(islice(_changes("", before, after, 0), MAX_CHANGES))


def _changes(path: str, before: Any, after: Any, depth: int) -> Iterator[FieldChange]:
    if before is _MISSING or after is _MISSING:
        added, removed = before is _MISSING, after is _MISSING
        yield FieldChange(path, None if added else before, None if removed else after, added, removed)
    elif isinstance(before, dict) and isinstance(after, dict) and depth < _MAX_DEPTH:
        for name in dict.fromkeys([*before, *after]):
            inner = f"{path}.{name}" if path else str(name)
            yield from _changes(inner, before.get(name, _MISSING), after.get(name, _MISSING), depth + 1)
    elif isinstance(before, list) and isinstance(after, list) and depth < _MAX_DEPTH:
        for number, (one, other) in enumerate(zip_longest(before, after, fillvalue=_MISSING)):
            yield from _changes(f"{path}[{number}]", one, other, depth + 1)
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield FieldChange(path, before, after)


class TextDiff(NamedTuple):
    """``lines``: as a unified diff has them, without its head. ``truncated``: the texts are longer than is compared."""

    lines: list[str]
    truncated: bool


def text_diff(before: str, after: str) -> TextDiff:
    """What is different in ``after``, by lines without the times that they begin with.

    The last 2,000 lines of each text are compared.
    """
    old, new = ([_TIME.sub("", line) for line in text.splitlines()] for text in (before, after))
    truncated = max(len(old), len(new)) > MAX_LINES
    import difflib

    found = difflib.unified_diff(old[-MAX_LINES:], new[-MAX_LINES:], lineterm="", n=3)
    return TextDiff(list(found)[2:], truncated)


def pattern(text: str) -> str:
    """A name without what varies from one run to the next: ``order-#`` of ``order-4711``."""
    return _VARYING.sub("#", text)
