"""Errors of other systems, and whether another attempt may help."""

from __future__ import annotations

import email.utils
import time
from datetime import UTC, datetime
from typing import NoReturn

from scheduler import PermanentError, Retry

TRANSIENT_4XX = frozenset({408, 425, 429})  # of the 4xx; and every 5xx
MAX_RETRY_AFTER = 86_400.0  # seconds that a Retry-After may ask for


class Unreachable(Exception):
    """The other system could not be reached, or fell silent in the middle. Tried again."""


class Refused(Exception):
    """The other system answered that it cannot now. Tried again. ``status``: what it answered."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


def refuse(what: str, status: int, retry_after: str | None = None) -> NoReturn:
    """Raise the error for an HTTP status that is no success.

    5xx, 408, 425 and 429 are transient, and wait as long as ``Retry-After`` says, a day at most; all else is permanent.
    """
    if status < 500 and status not in TRANSIENT_4XX:
        raise PermanentError(what, status=status)
    wait = seconds_of(retry_after)
    if wait is not None:
        raise Retry(after=wait, reason=what, status=status)
    raise Refused(what, status)


def seconds_of(retry_after: str | None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, a number or a date; None if it says neither."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max(0.0, (when - datetime.fromtimestamp(time.time(), UTC)).total_seconds()), MAX_RETRY_AFTER)
