"""Converts times from and to the integers used inside: microseconds, UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from scheduler.errors import ConfigError, InvalidScheduleError

SECOND = 1_000_000
LONGEST = 1000 * 366 * 86400 * SECOND  # a thousand years: beyond it is a mistake
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def span_us(value: object, what: str, *, positive: bool = False) -> int:
    """A timedelta or a number of seconds as microseconds. Raises ConfigError that names ``what``."""
    if isinstance(value, timedelta):
        result = value // _MICROSECOND
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        result = round(value * SECOND)
    else:
        raise ConfigError(f"{what} must be seconds or a timedelta, not {value!r}")
    if result < 0 or (positive and result == 0):
        raise ConfigError(f"{what} must be {'more than' if positive else 'at least'} 0, not {value!r}")
    if result > LONGEST:
        raise ConfigError(f"{what} is over a thousand years: {value!r}")
    return result


def instant_us(value: object, what: str) -> int:
    """An aware datetime as microseconds since the epoch, UTC.

    Raises InvalidScheduleError for a naive one, and for one out of datetime's range in UTC."""
    if not isinstance(value, datetime):
        raise InvalidScheduleError(f"{what} must be an aware datetime, not {value!r}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidScheduleError(
            f"{what} {value.isoformat()} has no time zone; say which, for example datetime(..., tzinfo=UTC)"
        )
    result = (value - _EPOCH) // _MICROSECOND
    if not _FIRST <= result <= LAST:
        raise InvalidScheduleError(f"{what} {value.isoformat()} is not within the years 1 to 9999 in UTC")
    return result


def to_datetime(us: int) -> datetime:
    """Microseconds since the epoch as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=us)
