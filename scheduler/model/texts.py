"""Formats instants, spans, counts and lists for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from scheduler.model.times import SECOND, to_datetime
from scheduler.ports import FOREVER

_UNITS = (("d", 86_400 * SECOND), ("h", 3_600 * SECOND), ("min", 60 * SECOND), ("s", SECOND))


def rfc3339(us: int, *, exact: bool = True) -> str:
    """An instant as RFC 3339 in UTC: ``2026-01-31T02:30:00.250000Z``; not ``exact``: to the second."""
    if us >= FOREVER:
        return "never"
    if not exact:
        us -= us % SECOND
    return to_datetime(us).isoformat(timespec="auto").replace("+00:00", "Z")


def span_text(us: int) -> str:
    """About how long: ``250 ms``, ``12 s``, ``3 min 20 s``, ``2 d 4 h``."""
    us = abs(us)
    if us < SECOND:
        return f"{us // 1000} ms"
    largest = next(index for index, (_, size) in enumerate(_UNITS) if us >= size)
    parts = []
    for unit, size in _UNITS[largest : largest + 2]:
        count, us = divmod(us, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def storable(text: str) -> str:
    """The text without characters that a database refuses: NUL, and halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "�")


def within(text: str, most: int) -> str:
    """The text, or its beginning and a digest of all of it: two texts that differ stay different."""
    if len(text) <= most:
        return text
    import hashlib

    return f"{text[: most - 33]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def listed(texts: Sequence[str], most: int = 5) -> str:
    """``a, b and 3 more``."""
    if len(texts) <= most:
        return ", ".join(texts)
    return f"{', '.join(texts[:most])} and {len(texts) - most} more"


def beyond(before: str, now: str) -> str:
    """The new part of a log, whose beginning may have been dropped since ``before``, because it grew too long."""
    if now.startswith(before):
        return now[len(before) :]
    mark = before[-200:]
    place = now.rfind(mark)
    return now if place < 0 else now[place + len(mark) :]


def counted(count: int, noun: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ranges(ids: Iterable[int]) -> str:
    """Ids as a short text: ``1-500, 502``."""
    found: list[list[int]] = []
    for task_id in sorted(ids):
        if found and task_id == found[-1][1] + 1:
            found[-1][1] = task_id
        else:
            found.append([task_id, task_id])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """Replace each character that could control a terminal, or disguise a line, by a dot.

    These are escapes and all other control characters (C0, DEL, C1), marks that turn the direction of writing, and
    separators of lines other than the line feed. Line feed and tab are kept.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else "·" for c in text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """The same value in JSON, with each such character as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
